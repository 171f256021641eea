"""Once a step all ranks meet: each one's sums go to all, and rank 0's wishes go to all.

A rank that stayed away would keep the others waiting for ever. So whatever fails on a rank, it comes here, if need be
with empty hands; that is why `Probe.step` calls `meet` in a `finally`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from isentrope.control.relay import ControlRelay
from isentrope.interventions.selection_basis import SelectionBasis
from isentrope.interventions.threshold_source import ThresholdSources
from isentrope.interventions.threshold_statistics import no_threshold_sums
from isentrope.ranks import Gathered, Ranks
from isentrope.statistics.across_ranks import ADDITIVE_FROM, MEANS_COLUMNS, THRESHOLD_COLUMNS, failed_rank_vector
from isentrope.steering.action import Action
from isentrope_wire.messages import ControlSnapshot


class ResumeWord(NamedTuple):
    """What a rank goes on from after a checkpoint."""

    error: str = ""
    """Why it can't; empty when it can."""
    state: Mapping[str, Any] | None = None
    """Of rank 0, whose word counts for all."""
    action: bytes = b""
    """Of rank 0: decided for the step that comes next."""


class RankMeeting:
    """What a rank knows of all ranks. A process on its own meets itself."""

    def __init__(self, ranks: Ranks, thresholds: ThresholdSources, basis: SelectionBasis) -> None:
        """
        Args:
            thresholds, basis: told what the ranks' tokens were like.
        """
        self._ranks = ranks
        self._thresholds = thresholds
        self._basis = basis
        self.alone = ranks.size == 1
        self.leads = ranks.rank == 0
        """Whether what this rank decides counts for all."""
        self._relay = None if self.alone else ControlRelay(ranks.broadcast)
        self._step: Gathered | None = None
        self._heard_action: Action | None = None
        self._told_action: Action | None = None

    @property
    def heard_action(self) -> Action | None:
        """What rank 0 of several decided for the step that `wanted_control` was asked about."""
        return self._heard_action

    @property
    def device(self) -> torch.device | None:
        """Where the vector of a rank without tokens must lie."""
        return self._ranks.device

    def wanted_control(self, desired: ControlSnapshot | None) -> tuple[ControlSnapshot | None, float]:
        """The control to decide about at this step boundary, and the time to decide by: rank 0's, of the last meeting.

        Args:
            desired: the newest on this rank; it counts when the process is alone.

        Raises:
            RuntimeError: rank 0 is gone.
        """
        if self._relay is None:
            return desired, time.time()
        heard = self._relay.hear(time.time())
        self._heard_action = Action.decode(heard.note) if heard.note else None
        return heard.desired, heard.now

    def first_pass(self, sums: Tensor | None) -> None:
        """Bring the sums of this rank's first pass; None: it has none."""
        if sums is None and self.alone:
            return
        gathered = self._ranks.gather(no_threshold_sums(self._ranks.device) if sums is None else sums)
        self._thresholds.first_pass(gathered.rows)

    def meet(
        self,
        sums: Tensor | None,
        *,
        failures: int,
        desired: ControlSnapshot | None,
        action: Action | None = None,
    ) -> None:
        """Start sending. Nothing is waited for.

        Args:
            sums: this rank's vector of the step; None: measuring it failed.
            failures: on this rank so far.
            desired: the newest control this rank was asked for; rank 0's counts.
            action: decided for the next step; rank 0's counts.
        """
        self._told_action = action
        try:
            gathered = self._ranks.gather(
                failed_rank_vector(failures, self._ranks.device, alone=False) if sums is None else sums
            )
            self._thresholds.step_closed(lambda: gathered.rows()[:, THRESHOLD_COLUMNS])
            self._basis.means_closed(lambda: gathered.rows()[:, MEANS_COLUMNS])
            self._step = gathered
        finally:
            if self._relay is not None:
                self._relay.tell(desired, time.time(), b"" if action is None else action.encode())

    def numbers_of_ranks(self) -> Callable[[], Sequence[Sequence[float]]] | None:
        """On rank 0, which reports them: gives the vectors of the last meeting, on a thread that may wait."""
        return self._step.numbers_later(ADDITIVE_FROM) if self._step is not None and self._ranks.rank == 0 else None

    @property
    def told_action(self) -> Action | None:
        """What rank 0 of several told for the next step, on rank 0 itself."""
        return self._told_action

    def resume(self, mine: ResumeWord, desired: ControlSnapshot | None) -> tuple[ResumeWord, ...]:
        """Tell the others what this rank goes on from, and hear what they do. Waits; every rank comes here.

        Args:
            desired: the newest control this rank was asked for; rank 0's counts, as at every meeting.
        """
        words = tuple(self._ranks.agree(mine))
        if self._relay is not None and not any(word.error for word in words):
            self._relay.tell(desired, time.time(), words[0].action)
            self._told_action = Action.decode(words[0].action) if words[0].action else None
        return words

    def settle(self, seconds: float) -> None:
        """Wait until the last meeting is over, for at most so long."""
        if self._step is not None:
            self._step.arrives_within(seconds)
