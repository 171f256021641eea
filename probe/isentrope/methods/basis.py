"""Which tokens a method counts from: a first pass over the step's tokens, the step before, or the
micro-batch itself.

Thresholds (the sigmas) and means (of log p and A) are those of all ranks. The value at which a
share of the tokens begins is counted over the step before on this rank: the ranks see tokens of one
kind, so that a share on each is the share on all, and no collective is needed. A first pass gives
thresholds alone: what ranks tokens needs advantages as a rule, which come with the gate.

Everything comes from the micro-batch itself in the first step, when the loop asks for it, and by
default where it is expected to be the whole step: in a process of its own whose step before was one
`gate` call. With several ranks the micro-batch is never the whole step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import torch
from torch import Tensor

from isentrope.guard import SafeLog
from isentrope.methods.base import Centres, Selection
from isentrope.methods.gate import INTERVENTIONS, select_tokens
from isentrope.scores import TokenScores
from isentrope.scores.token_scores import SCORE_FIELDS
from isentrope.statistics.moments import ThresholdStatistics, flat, threshold_statistics
from isentrope.statistics.tokens import TokenBatch
from isentrope_wire.control import Control
from isentrope_wire.numbers import number

if TYPE_CHECKING:
    from jaxtyping import Float

logger = SafeLog(__name__)

PendingRows = Callable[[], Tensor]
"""Waits for the other ranks and gives one row of numbers per rank."""

_T = TypeVar("_T")


class _Latest(Generic[_T]):
    """What was merged from the newest rows; they are waited for when it is read."""

    def __init__(self, merge: Callable[[Tensor, _T | None], _T]) -> None:
        """`merge` is given the rows and the value before, which stays where the rows are of no
        token."""
        self._merge = merge
        self.value: _T | None = None
        self._pending: PendingRows | None = None

    def set(self, rows: PendingRows, *, is_own: bool = False) -> None:
        """`is_own`: the rows are counted when they are read, and those before, if nothing read
        them, never."""
        if not is_own:
            # Those before were awaited a whole step ago: they have arrived, and no chain of them
            # grows.
            self.get()
        self._pending = rows

    def get(self) -> _T | None:
        if self._pending is not None:
            arrive, self._pending = self._pending, None
            self.value = self._merge(arrive(), self.value)
        return self.value


class SelectionBasis:
    """Remembers what methods can count from, and chooses.

    A source that is wanted but does not exist yet is replaced by the next one in THRESHOLD_SOURCES,
    and the one used is reported. All ranks that are given the same sums choose the same and get the
    same bits, micro_batch excepted. What reads sums of other ranks raises RuntimeError where a rank
    that was awaited is gone."""

    def __init__(self, wanted: str) -> None:
        """`wanted` is one of THRESHOLD_SOURCES, or "auto" for the best that exists."""
        self._wanted = wanted
        self._first_pass = _Latest(_merged_thresholds)
        self._previous_step = _Latest(_merged_thresholds)
        self._means = _Latest(_merged_means)
        self._one_call = False
        """Whether the step before was one `gate` call, and there is no other rank."""
        self._ranked: TokenBatch | None = None
        """The tokens of the step before, until a cutoff is counted from them."""
        self._cutoff: tuple[Control, Tensor] | None = None
        self._warned = False

    def first_pass(self, sums: PendingRows) -> None:
        """Take the sums of the whole batch that the next steps are made from: THRESHOLD_SUMS
        numbers per rank."""
        self._first_pass.set(sums)

    def sums_closed(
        self, thresholds: PendingRows, means: PendingRows, *, is_own: bool = False
    ) -> None:
        """Take the sums of the step that just ended, by rank: THRESHOLD_SUMS numbers; and tokens,
        mean of A and mean of log p. `is_own`: they are counted when they are read."""
        self._previous_step.set(thresholds, is_own=is_own)
        self._means.set(means, is_own=is_own)

    def step_closed(self, control: Control, batches: Sequence[TokenBatch], *, alone: bool) -> None:
        """Take the tokens of the step that just ended on this rank. Only where the control ranks
        tokens are they kept, until the next step's first `gate`."""
        if batches:
            self._one_call = alone and len(batches) == 1
            if _ranks_tokens(control):
                self._ranked = _joined(batches)
                if INTERVENTIONS[control.method].follow is None:
                    self._cutoff = None

    def select(self, control: Control, tokens: TokenBatch) -> tuple[str | None, Selection]:
        """The source that the control's decision about a micro-batch was counted from, see
        `choose`; and the decision."""
        source, centres, cutoff = self.choose(control, tokens)
        return source, select_tokens(control, tokens, centres, cutoff)

    def choose(
        self, control: Control, tokens: TokenBatch
    ) -> tuple[str | None, Centres, Tensor | None]:
        """The source that the method counts from (None: it needs none), its centres, and the
        cutoff."""
        method = INTERVENTIONS[control.method]
        first_call = tokens.first_position == 0
        source, thresholds = self.known(first_call)
        if source != "first_pass" and self._wanted == "first_pass" and not self._warned:
            self._warned = True
            logger.warning(
                "Thresholds were to be counted from a first pass, but probe.first_pass was not"
                " called before the gate; they come from the previous step or the micro-batch"
                " instead."
            )
        nothing = torch.full((), torch.nan, dtype=torch.float64, device=tokens.mask.device)
        if thresholds is None:
            is_used = control.method.thresholds
            own_thresholds = None
            if is_used:
                own_thresholds = threshold_statistics([tokens.scores], [tokens.mask])
            thresholds = own_thresholds or ThresholdStatistics(nothing, nothing, nothing, nothing)
        if self._own(first_call):
            means = None
        else:
            means = self.means()
        centres = Centres(
            thresholds,
            *(means or (_own_means(tokens) if method.uses_means else (nothing, nothing))),
        )
        cutoff, own = self._cutoff_of(control, tokens, centres)
        if control.method.thresholds:
            return source, centres, cutoff
        if method.uses_means:
            own = own or means is None
        elif cutoff is None:
            return None, centres, None
        return "micro_batch" if own else "previous_step", centres, cutoff

    def known(self, first_call: bool) -> tuple[str, ThresholdStatistics | None]:
        """The source that thresholds are counted from now; no statistics when it is each
        micro-batch itself."""
        if self._wanted in ("auto", "first_pass"):
            statistics = self._first_pass.get()
            if statistics is not None:
                return "first_pass", statistics
        if not self._own(first_call):
            statistics = self._previous_step.get()
            if statistics is not None:
                return "previous_step", statistics
        return "micro_batch", None

    def means(self) -> tuple[Float[Tensor, ""], Float[Tensor, ""]] | None:
        """Mean log p and mean A of the step before over all ranks; None before the first. Scalars
        on the device."""
        means = self._means.get()
        if means is None:
            return None
        return (means[1], means[0])

    def state(self, control: Control) -> dict[str, Any]:
        """Everything remembered, as plain values: for a checkpoint; waits for the device. The
        cutoff of the next step is counted here, for the tokens of a step can't be kept: under
        another control the first `gate` calls after the restoration count their own."""
        if control.method in INTERVENTIONS and INTERVENTIONS[control.method].follow is not None:
            self._remembered(control)
        means, cutoff = self.means(), self._cutoff if self._ranked is None else None
        if self._ranked is not None and means is not None:
            # What the next step's first `gate` would count, the control and the thresholds being
            # the same.
            _, thresholds = self.known(first_call=False)
            if thresholds is not None and _ranks_tokens(control):
                counted = INTERVENTIONS[control.method].cutoff(
                    control, self._ranked, Centres(thresholds, *means)
                )
                cutoff = None
                if counted is not None:
                    cutoff = (control, counted)
        state: dict[str, Any] = {"one_call": self._one_call, "means": None, "cutoff": None}
        for source, latest in (
            ("first_pass", self._first_pass),
            ("previous_step", self._previous_step),
        ):
            statistics = latest.get()
            state[source] = None
            if statistics is not None:
                state[source] = statistics.write_plain()
        if means is not None:
            state["means"] = [number(float(mean)) for mean in means]
        if cutoff is not None:
            state["cutoff"] = {"control": cutoff[0].to_document(), "value": _plain(cutoff[1])}
        return state

    def restore(self, shared: Mapping[str, Any], own: Mapping[str, Any]) -> None:
        """Continue from rank 0's `state`, with the cutoff of this rank's own; no step may have
        closed before."""
        for source, latest in (
            ("first_pass", self._first_pass),
            ("previous_step", self._previous_step),
        ):
            if shared[source] is None:
                latest.value = None
            else:
                latest.value = ThresholdStatistics.read_plain(shared[source])
        self._one_call = bool(shared["one_call"])
        means, cutoff = shared["means"], own["cutoff"]
        if means is not None:
            self._means.value = torch.stack([_scalar(means[1]), _scalar(means[0])])
        if cutoff is not None:
            self._cutoff = Control.from_document(cutoff["control"]), _read_cutoff(cutoff["value"])

    def _own(self, first_call: bool) -> bool:
        """Whether a micro-batch counts from itself though there is a step before."""
        return self._wanted == "micro_batch" or (
            self._wanted == "auto" and self._one_call and first_call
        )

    def _cutoff_of(
        self, control: Control, tokens: TokenBatch, centres: Centres
    ) -> tuple[Tensor | None, bool]:
        """The cutoff, and whether it is the micro-batch's own."""
        method = INTERVENTIONS[control.method]
        if not method.ranks(control):
            self._ranked = self._cutoff = None
            return None, False
        if method.follow is not None:
            return self._remembered(control), False
        if self._own(tokens.first_position == 0):
            self._ranked = self._cutoff = None
            return method.cutoff(control, tokens, centres), True
        if self._ranked is not None:
            counted = method.cutoff(control, self._ranked, centres)
            # The scores of a whole step are not kept over the next one's forward passes.
            self._ranked, self._cutoff = None, None if counted is None else (control, counted)
        if self._cutoff is None or self._cutoff[0] != control:
            return method.cutoff(control, tokens, centres), True
        return self._cutoff[1], False

    def _remembered(self, control: Control) -> Tensor | None:
        """What a method that remembers has after the step before; None: it has seen none."""
        before: Tensor | None = None
        if self._cutoff is not None and self._cutoff[0] == control:
            before = self._cutoff[1]
        follow = INTERVENTIONS[control.method].follow
        if follow is not None and self._ranked is not None:
            before = follow(control, self._ranked, before)
        self._ranked = self._cutoff = None
        if before is not None:
            self._cutoff = control, before
        return before


def _plain(cutoff: Tensor) -> float | str | list[float | str]:
    if cutoff.dim():
        return [number(value) for value in cutoff.tolist()]
    return number(float(cutoff))


def _read_cutoff(value: float | str | list[float | str]) -> Tensor:
    if isinstance(value, list):
        return torch.stack([*map(_scalar, value)])
    return _scalar(value)


def _scalar(number: float | str) -> Tensor:
    return torch.tensor(float(number), dtype=torch.float64, device="cpu")


def _ranks_tokens(control: Control) -> bool:
    return control.method in INTERVENTIONS and INTERVENTIONS[control.method].ranks(control)


def _merged_thresholds(parts: Tensor, before: ThresholdStatistics | None) -> ThresholdStatistics:
    return ThresholdStatistics.merge_sums(parts).or_else(before)


def _merged_means(
    parts: Float[Tensor, "ranks columns"], before: Float[Tensor, " two"] | None
) -> Float[Tensor, " two"]:
    """mean_B(A) and mean_B(log p) over all ranks, from a row per rank that begins with its tokens
    and its means; those of before when none had a token."""
    if before is not None and len(parts) == 1:
        return torch.where(parts[0, 0] > 0, parts[0, 1:3], before.to(parts.device))
    count = parts[:, 0].sum()
    means = (parts[:, :1] * parts[:, 1:3]).sum(0) / count
    if before is None:
        return means
    return torch.where(count > 0, means, before.to(parts.device))


def _own_means(tokens: TokenBatch) -> tuple[Tensor, Tensor]:
    logprobs, advantages = tokens.scores.logprobs.double(), tokens.advantages.double()
    valid = tokens.mask & (logprobs + advantages).isfinite()
    count = valid.sum()
    return (
        torch.where(valid, logprobs, 0.0).sum() / count,
        torch.where(valid, advantages, 0.0).sum() / count,
    )


def _joined(batches: Sequence[TokenBatch]) -> TokenBatch:
    """The micro-batches of a step as one vector of tokens, with the scores that methods read."""
    scores = [batch.scores for batch in batches]
    ratios = [batch.importance_ratios for batch in batches if batch.importance_ratios is not None]
    return TokenBatch(
        scores=TokenScores(
            *(flat([getattr(part, name) for part in scores]) for name in SCORE_FIELDS)
        ),
        advantages=flat([batch.advantages for batch in batches]),
        mask=flat([batch.mask for batch in batches]),
        importance_ratios=flat(ratios) if len(ratios) == len(batches) else None,
    )
