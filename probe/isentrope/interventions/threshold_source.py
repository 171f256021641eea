"""Where the thresholds of a step come from: a first pass over its tokens, the step before, or the micro-batch itself."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from torch import Tensor

from isentrope.interventions.threshold_statistics import ThresholdStatistics, threshold_statistics
from isentrope.plain_state import Plain
from isentrope.scores import TokenScores

logger = logging.getLogger(__name__)

SumsOnTheirWay = Callable[[], Tensor]
"""Gives [ranks, SUMS], once they have come from the other ranks."""


class ThresholdSources:
    """Remembers what thresholds can be counted from, and chooses.

    A source that is wanted but not there yet is replaced by the next one in THRESHOLD_SOURCES, and what was used is what
    is reported. All ranks that are told the same sums choose the same and get the same bits, micro_batch excepted.
    """

    def __init__(self, wanted: str) -> None:
        """
        Args:
            wanted: one of THRESHOLD_SOURCES, or "auto" for the best there is.
        """
        self._wanted = wanted
        self._first_pass = _Latest()
        self._previous_step = _Latest()
        self._told = False

    def first_pass(self, sums: SumsOnTheirWay) -> None:
        """The sums of the whole batch the next steps are made from."""
        self._first_pass.set(sums)

    def step_closed(self, sums: SumsOnTheirWay) -> None:
        """The sums of the step that just ended."""
        self._previous_step.set(sums)

    def choose(self, scores: TokenScores, mask: Tensor) -> tuple[str, ThresholdStatistics]:
        """The source to count the thresholds of this micro-batch from, and its statistics.

        Raises:
            RuntimeError: a rank whose sums were awaited is gone.
        """
        source, statistics = self.known()
        if source != "first_pass":
            self._say_what_is_missing()
        return source, threshold_statistics([scores], [mask]) if statistics is None else statistics

    def known(self) -> tuple[str, ThresholdStatistics | None]:
        """The source that thresholds are counted from now; no statistics when it is each micro-batch itself.

        Raises:
            RuntimeError: a rank whose sums were awaited is gone.
        """
        if self._wanted in ("auto", "first_pass"):
            statistics = self._first_pass.get()
            if statistics is not None:
                return "first_pass", statistics
        if self._wanted != "micro_batch":
            statistics = self._previous_step.get()
            if statistics is not None:
                return "previous_step", statistics
        return "micro_batch", None

    def state(self) -> dict[str, Plain]:
        """What is remembered, as plain values: for a checkpoint. Waits for the device.

        Raises:
            RuntimeError: a rank whose sums were awaited is gone.
        """
        return {name: latest.state() for name, latest in self._remembered().items()}

    def restore(self, state: Mapping[str, Sequence[float | str] | None]) -> None:
        """Go on from what `state` gave; no step may have closed before."""
        for name, latest in self._remembered().items():
            latest.restore(state[name])

    def _remembered(self) -> dict[str, _Latest]:
        return {"first_pass": self._first_pass, "previous_step": self._previous_step}

    def _say_what_is_missing(self) -> None:
        if self._wanted == "first_pass" and not self._told:
            self._told = True
            logger.warning(
                "Thresholds were to be counted from a first pass, but probe.first_pass was not called before the gate; "
                "they come from the previous step or the micro-batch instead."
            )


class _Latest:
    """The newest sums that hold a token: a step without any leaves the thresholds where they were."""

    def __init__(self) -> None:
        self._statistics: ThresholdStatistics | None = None
        self._on_their_way: SumsOnTheirWay | None = None

    def set(self, sums: SumsOnTheirWay) -> None:
        # Those before were awaited a whole step ago: they are here, and no chain of them grows.
        self.get()
        self._on_their_way = sums

    def get(self) -> ThresholdStatistics | None:
        if self._on_their_way is not None:
            arrive, self._on_their_way = self._on_their_way, None
            self._statistics = ThresholdStatistics.of_sums(arrive()).or_else(self._statistics)
        return self._statistics

    def state(self) -> Plain:
        statistics = self.get()
        return None if statistics is None else statistics.to_plain()

    def restore(self, numbers: Sequence[float | str] | None) -> None:
        self._statistics = None if numbers is None else ThresholdStatistics.of_plain(numbers)
