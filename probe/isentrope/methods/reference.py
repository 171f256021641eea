"""Where the thresholds of a step come from: a first pass over its tokens, the step before, or the micro-batch itself.

What a method counts from: the centres and, where it ranks tokens, the value at which the wanted share begins.

Means are those of the step before over all ranks; a share is counted over the step before on this rank. A first pass
gives top entropy its quantile, for it knows the entropies; what ranks by covariance, or within a scope, needs
advantages, and those come with the gate. In the first
step, or when told to, both come from the micro-batch itself. The ranks see tokens of one kind, so that a share on each
is the share on all; its threshold needs no collective.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from isentrope.methods import entropy
from isentrope.methods.base import Centres, GatedTokens, Selection
from isentrope.methods.gate import METHODS, select_tokens
from isentrope.plain_state import Plain, plain
from isentrope.scores import TokenScores
from isentrope.statistics.moments import ThresholdStatistics, flat, threshold_statistics
from isentrope.statistics.tokens import TokenBatch
from isentrope_wire.control import Control, Method

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


COVARIANCE_METHODS = frozenset({Method.CLIP_COV, Method.KL_COV})

MeansOnTheirWay = Callable[[], Tensor]
"""Gives [ranks, 3], once they have come from the other ranks: tokens, mean of A and mean of log p on each."""


class SelectionBasis:
    """Remembers what the step before was like, and chooses."""

    def __init__(self, wanted: str, thresholds: ThresholdSources) -> None:
        """
        Args:
            wanted: one of THRESHOLD_SOURCES, or "auto" for the best there is.
            thresholds: where the sigmas of Clip_B and Clip_V come from.
        """
        self._wanted = wanted
        self._thresholds = thresholds
        self._means: Tensor | None = None
        self._means_on_their_way: MeansOnTheirWay | None = None
        self._ranked: GatedTokens | None = None
        self._cutoff: tuple[Control, Tensor] | None = None
        self._first_entropies: tuple[Tensor, Tensor] | None = None
        self._first_cutoff: tuple[Control, Tensor] | None = None

    def first_pass(self, scores: Sequence[TokenScores], masks: Sequence[Tensor]) -> None:
        """The tokens of the whole batch the next steps are made from, on this rank; none leaves everything as it was.

        Of each its entropy is held on to until the next first pass.
        """
        if scores and self._wanted in ("auto", "first_pass"):
            entropies = flat([part.entropies.detach() for part in scores]).clone()
            self._first_entropies, self._first_cutoff = (entropies, flat(list(masks))), None

    def means_closed(self, means: MeansOnTheirWay) -> None:
        """The means of the step that just ended, over all ranks."""
        self._arrived_means()
        self._means_on_their_way = means

    def step_closed(self, control: Control, batches: Sequence[TokenBatch]) -> None:
        """The tokens of the step that just ended, on this rank.

        Args:
            control: in force during it. The tokens are held on to until the next step's first `gate`, but only where
                the control ranks tokens.
            batches: none leaves everything as it was.
        """
        if batches and _ranks_tokens(control):
            self._ranked, self._cutoff = _joined(batches), None

    def select(self, control: Control, tokens: GatedTokens) -> tuple[str | None, Selection]:
        """What the control makes of a micro-batch, and what that was counted from, as `choose` says."""
        source, centres, cutoff = self.choose(control, tokens)
        return source, select_tokens(control, tokens, centres, cutoff)

    def state(self, control: Control) -> dict[str, Any]:
        """What is remembered, as plain values: for a checkpoint. Waits for the device.

        Args:
            control: in force in the step that closed last. The value at which its share begins is counted here, for the
                tokens of a step can't be kept: under another control, or after another first pass, the first `gate`
                calls after the restoration count their own.

        Raises:
            RuntimeError: a rank whose sums were awaited is gone.
        """
        means = self._arrived_means()
        cutoff = self._cutoff if self._ranked is None else None
        if self._ranked is not None and means is not None:
            counted = self._counted_ahead(control, self._ranked, means)
            cutoff = None if counted is None else (control, counted)
        return {
            "means": None if means is None else plain([float(mean) for mean in means]),
            "cutoff": None
            if cutoff is None
            else {"control": cutoff[0].to_document(), "value": plain(float(cutoff[1]))},
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` gave; no step may have closed before."""
        means, cutoff = state["means"], state["cutoff"]
        if means is not None:
            self._means = torch.stack([_scalar(means[1]), _scalar(means[0])])
        if cutoff is not None:
            self._cutoff = Control.from_document(cutoff["control"]), _scalar(cutoff["value"])

    def _counted_ahead(self, control: Control, ranked: GatedTokens, means: tuple[Tensor, Tensor]) -> Tensor | None:
        """The cutoff that the next step's first `gate` would count, the control and the thresholds being the same."""
        _, thresholds = self._thresholds.known()
        if thresholds is None or not _ranks_tokens(control):
            return None
        return METHODS[control.method].count_cutoff(control, ranked, Centres(thresholds, *means))

    def choose(self, control: Control, tokens: GatedTokens) -> tuple[str | None, Centres, Tensor | None]:
        """Where the method counts from (None: it needs nothing to count from), and what it finds there.

        Raises:
            RuntimeError: a rank whose sums were awaited is gone.
        """
        source, thresholds = self._thresholds.choose(tokens.scores, tokens.mask)
        means = None if self._wanted == "micro_batch" else self._arrived_means()
        centres = Centres(thresholds, *(means or _own_means(tokens)))
        if control.method == Method.TOP_ENTROPY and self._first_entropies is not None:
            return "first_pass", centres, self._first_pass_cutoff(control, *self._first_entropies)
        cutoff, own = self._cutoff_of(control, tokens, centres)
        if control.method.thresholds:
            return source, centres, cutoff
        if control.method in COVARIANCE_METHODS:
            own = own or means is None
        elif cutoff is None:
            return None, centres, None
        return "micro_batch" if own else "previous_step", centres, cutoff

    def means(self) -> tuple[Tensor, Tensor] | None:
        """Mean log p and mean A of the step before over all ranks; None before the first. Scalars on the device.

        Raises:
            RuntimeError: a rank whose sums were awaited is gone.
        """
        return self._arrived_means()

    def _first_pass_cutoff(self, control: Control, entropies: Tensor, mask: Tensor) -> Tensor:
        if self._first_cutoff is None or self._first_cutoff[0] != control:
            self._first_cutoff = control, entropy.entropy_cutoff(control, entropies, mask)
        return self._first_cutoff[1]

    def _cutoff_of(self, control: Control, tokens: GatedTokens, centres: Centres) -> tuple[Tensor | None, bool]:
        """The cutoff, and whether it is the micro-batch's own."""
        if not _ranks_tokens(control):
            self._ranked = self._cutoff = None
            return None, False
        method = METHODS[control.method]
        if self._wanted == "micro_batch":
            return method.count_cutoff(control, tokens, centres), True
        if self._ranked is not None:
            counted = method.count_cutoff(control, self._ranked, centres)
            # The scores of a whole step are not kept over the next one's forward passes.
            self._ranked, self._cutoff = None, None if counted is None else (control, counted)
        if self._cutoff is None or self._cutoff[0] != control:
            return method.count_cutoff(control, tokens, centres), True
        return self._cutoff[1], False

    def _arrived_means(self) -> tuple[Tensor, Tensor] | None:
        if self._means_on_their_way is not None:
            arrive, self._means_on_their_way = self._means_on_their_way, None
            self._means = _merged_means(arrive(), self._means)
        if self._means is None:
            return None
        advantage, logprob = self._means.unbind()
        return logprob, advantage


def _scalar(number: float | str) -> Tensor:
    return torch.tensor(float(number), dtype=torch.float64)


def _ranks_tokens(control: Control) -> bool:
    return control.method in (Method.KL_COV, Method.TOP_ENTROPY) or control.value("max_fraction") is not None


def _merged_means(parts: Tensor, before: Tensor | None) -> Tensor:
    """mean_B(A) and mean_B(log p) over all ranks, [2]; those of before when none had a token.

    Args:
        parts: One row per rank: tokens, mean of A, mean of log p; columns behind them are not read.
    """
    if before is not None and len(parts) == 1:
        return torch.where(parts[0, 0] > 0, parts[0, 1:3], before.to(parts.device))
    count = parts[:, 0].sum()
    means = (parts[:, :1] * parts[:, 1:3]).sum(0) / count
    return means if before is None else torch.where(count > 0, means, before.to(parts.device))


def _own_means(tokens: GatedTokens) -> tuple[Tensor, Tensor]:
    logprobs, advantages = tokens.scores.logprobs.detach().double(), tokens.advantages.double()
    valid = tokens.mask & (logprobs + advantages).isfinite()
    count = valid.sum()
    return (
        torch.where(valid, logprobs, 0.0).sum() / count,
        torch.where(valid, advantages, 0.0).sum() / count,
    )


def _joined(batches: Sequence[TokenBatch]) -> GatedTokens:
    """The micro-batches of a step as one vector of tokens."""
    scores = [batch.scores for batch in batches]
    return GatedTokens(
        scores=TokenScores(
            logprobs=flat([part.logprobs for part in scores]),
            entropies=flat([part.entropies for part in scores]),
            discriminator_scores=flat([part.discriminator_scores for part in scores]),
            expected_scores=flat([part.expected_scores for part in scores]),
            vocab_centered_scores=flat([part.vocab_centered_scores for part in scores]),
        ),
        advantages=flat([batch.advantages for batch in batches]),
        mask=flat([batch.mask for batch in batches]),
    )
