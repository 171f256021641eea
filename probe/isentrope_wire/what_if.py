"""What a step would have had under other thresholds: sums over bins of the standardised score, and
their evaluation.

A threshold mu clips the tokens whose score lies more than mu standard deviations from its centre
(`Method.thresholds`). For each such method the step's tokens are counted in bins of |u|, by side
and by group, u the centred score in standard deviations, together with the sum of their
contributions -g S_c to the unit prediction (arXiv:2602.03392, Cor. 4), g the strength with which
the loss raises the token's log-prob. Prefix sums then answer for any thresholds and scope which
share of the tokens would have been clipped and what the unit prediction would have been: exactly
where mu is one of EDGES, by linear interpolation between two of them. All tokens of the step count,
also those that the control active then clipped.

A cap on what is clipped (`max_fraction`, but at least one token) leaves the tokens furthest beyond
their threshold, which are those beyond both thresholds moved outwards by one distance c: the sums
answer for it too, c being looked for. The ratio clip of a control (`epsilon_low`, `epsilon_high`)
looks at something else, and plays no part here."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from itertools import accumulate
from operator import le
from typing import NamedTuple

from isentrope_wire.control import Control, Method, Scope
from isentrope_wire.errors import IsentropeError
from isentrope_wire.methods import SUGGESTED, threshold_methods
from isentrope_wire.numbers import Answer, Number, is_usable

FINE_EDGES = 101
"""0, 0.05, 0.10 ... 5: every position of the dashboard's sliders."""
EDGES: tuple[float, ...] = (
    *(index / 20 for index in range(FINE_EDGES)),
    *(5.5, 6.0, 6.5, 7.0, 7.5, 8.0, 8.5, 9.0, 9.5, 10.0, 11.0, 12.0, 13.0, 14.0, 16.0, 18.0, 20.0),
    *(23.0, 26.0, 30.0, 35.0, 40.0, 50.0, 70.0, 100.0),
)
"""In standard deviations. Bin i of a side holds EDGES[i] < |u| <= EDGES[i + 1], the last one all
beyond the last edge."""
EDGE_SET = 1
"""The number of this list of edges: another list gets another number, for sums are stored."""
COVARIANCE_UNIT = 4.0
"""In nats times the advantage's unit: an edge lies at every 0.2 up to 20."""
SIDES = 2
"""0: below the centre (mu_low clips there), 1: above it (mu_high)."""


class TokenGroup(IntEnum):
    """Sign of A, and which way the advantage moves the entropy (sign of A S_c): what a scope
    selects by."""

    NEGATIVE_DECREASING = 0
    NEGATIVE_INCREASING = 1
    POSITIVE_DECREASING = 2
    POSITIVE_INCREASING = 3
    NEGATIVE_NEUTRAL = 4
    """A < 0 and S_c = 0: such a token changes nothing."""
    POSITIVE_NEUTRAL = 5
    ZERO = 6
    """A = 0: a KL term of the loss may move such a token."""


CELLS = len(TokenGroup) * SIDES * len(EDGES)
"""A cell is one bin of one side of one group: (group * SIDES + side) * len(EDGES) + bin."""

IN_SCOPE: dict[Scope, frozenset[TokenGroup]] = {
    Scope.ALL: frozenset(TokenGroup),
    Scope.NEGATIVE: frozenset(group for group in TokenGroup if group.name.startswith("NEGATIVE")),
    Scope.POSITIVE: frozenset(group for group in TokenGroup if group.name.startswith("POSITIVE")),
    Scope.DECREASING: frozenset(group for group in TokenGroup if group.name.endswith("DECREASING")),
    Scope.INCREASING: frozenset(group for group in TokenGroup if group.name.endswith("INCREASING")),
}


class WhatIfError(IsentropeError, ValueError):
    """A question that the sums of a step can't answer, or sums that are none."""


@dataclass(frozen=True, slots=True)
class BinSums(Answer):
    """The tokens of a step by cell, for one method. Cells without a token are not listed."""

    cells: tuple[int, ...] = ()
    """Rising."""
    counts: tuple[int, ...] = ()
    change_sums: tuple[Number, ...] = ()
    """Sums of -g S_c in nats per unit gain; float32 on the wire."""

    def __post_init__(self) -> None:
        if not len(self.cells) == len(self.counts) == len(self.change_sums):
            raise WhatIfError(
                f"Every cell has one count and one sum, got {len(self.cells)} cells,"
                f" {len(self.counts)} counts and {len(self.change_sums)} sums."
            )
        if any(map(le, (*self.cells, CELLS), (-1, *self.cells))):
            raise WhatIfError(f"Cells rise from 0 to at most {CELLS - 1}, got {self.cells[:20]}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIfSums(Answer):
    """The tokens of one step; `merge` adds micro-batches and ranks."""

    tokens: int
    """Valid tokens, including those that no threshold reaches (u = 0)."""
    change_sum: Number
    """Sum of -g S_c over them, in nats per unit gain: what the step has when nothing is clipped."""
    by_method: dict[str, BinSums] = field(default_factory=dict)
    """The tokens that a threshold reaches, for each method with thresholds."""

    @property
    def pulls(self) -> tuple[float, float]:
        """Sum of the changes by the tokens that lower the entropy, and by those that raise it, in
        nats per unit gain."""
        changes = self.by_method.get(SUGGESTED, BinSums()).change_sums
        return sum(change for change in changes if change < 0), sum(
            change for change in changes if change > 0
        )

    @property
    def is_usable(self) -> bool:
        """Whether its sums can be calculated with."""
        changes = [change for sums in self.by_method.values() for change in sums.change_sums]
        return all(map(is_usable, (self.change_sum, *changes)))

    def scaled(self, factor: float) -> WhatIfSums:
        by_method = {
            method: replace(sums, change_sums=tuple(factor * change for change in sums.change_sums))
            for method, sums in self.by_method.items()
        }
        return replace(self, change_sum=factor * self.change_sum, by_method=by_method)

    def merge(self, other: WhatIfSums) -> WhatIfSums:
        return merged((self, other))


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """The step under thresholds it did not have. The truth differs by at most the bounds, which are
    0 at the edges; what a binding cap leaves ends between two edges as a rule. (Tokens of one and
    the same score may exceed a cap.)"""

    clip_fraction: float
    """Share of all tokens."""
    unit_predicted_change: float
    """-mean(keep g S_c) in nats per unit gain."""
    clip_fraction_bound: float
    unit_predicted_change_bound: float
    capped: bool = False
    """Whether the cap binds: fewer are clipped than lie beyond the thresholds, and moving these
    changes nothing."""


class _Beyond(NamedTuple):
    """What a threshold cuts off on one side: tokens, their changes, and how far each may be from
    the truth."""

    tokens: float
    change: float
    tokens_bound: float
    change_bound: float


_NOTHING = _Beyond(0, 0.0, 0.0, 0.0)


class WhatIfCurve:
    """A step's answer for one method and scope, ready for many thresholds."""

    def __init__(self, sums: WhatIfSums, scope: Scope, method: Method) -> None:
        """WhatIfError: the step has no tokens, or the method has no thresholds."""
        if sums.tokens <= 0:
            raise WhatIfError(
                "The step has no valid token, so no threshold would have changed anything."
            )
        if not method.thresholds:
            raise WhatIfError(
                f"Only the thresholds of {', '.join(threshold_methods())} can be asked about, got"
                f" {method}."
            )
        self._sums = sums
        table = sums.by_method.get(method, BinSums())
        self._sides = tuple(_Side(table, side, IN_SCOPE[scope]) for side in range(SIDES))

    def evaluate(
        self,
        mu_low: float | None,
        mu_high: float | None,
        *,
        max_fraction: float | None = None,
        shrink_denominator: bool = False,
    ) -> WhatIf:
        """The step under these thresholds, in standard deviations; None: that side does not clip.
        With `max_fraction` at most this share of the tokens is clipped, but at least one; with
        `shrink_denominator` the mean is over the tokens that are kept. WhatIfError: a threshold
        that is negative or not finite, a cap that is no share."""
        clipped = self._sum_beyond(mu_low, mu_high, 0.0)
        most = self._most(max_fraction)
        capped = clipped.tokens > most
        if clipped.tokens + clipped.tokens_bound > most:
            clipped = self._furthest(mu_low, mu_high, most, clipped)
        return _drop_tokens(
            self._sums, clipped, shrink_denominator=shrink_denominator, capped=capped
        )

    def _most(self, max_fraction: float | None) -> float:
        """How many tokens may be clipped; whole ones, as the gate counts them."""
        if max_fraction is None:
            return math.inf
        if not 0 < max_fraction <= 1:
            raise WhatIfError(f"max_fraction is a share above 0 and at most 1, got {max_fraction}.")
        return max(math.floor(self._sums.tokens * max_fraction + 1e-9), 1)

    def _sum_beyond(self, mu_low: float | None, mu_high: float | None, further: float) -> _Beyond:
        """On both sides together, `further` beyond the thresholds."""
        thresholds = (None if mu is None else mu + further for mu in (mu_low, mu_high))
        low, high = (
            side.count_beyond(mu) for side, mu in zip(self._sides, thresholds, strict=True)
        )
        return _Beyond(*(left + right for left, right in zip(low, high, strict=True)))

    def _furthest(
        self, mu_low: float | None, mu_high: float | None, most: float, clipped: _Beyond
    ) -> _Beyond:
        """What is left of `clipped` when only the `most` tokens furthest beyond their threshold may
        be clipped."""
        # Where an edge is reached on either side: between two such distances every count is a
        # straight line.
        edges = {
            edge - mu for mu in (mu_low, mu_high) if mu is not None for edge in EDGES if edge > mu
        }
        distances = [0.0, *sorted(edges)]

        def sum_beyond(place: int) -> _Beyond:
            # Beyond all edges nothing is left; how far out that is, is not known.
            if place < len(distances):
                return self._sum_beyond(mu_low, mu_high, distances[place])
            return _NOTHING

        first = bisect_left(
            range(len(distances)), True, key=lambda place: sum_beyond(place).tokens <= most
        )
        near, far = max(first - 1, 0), first
        # The end lies between two distances that enclose it for certain: no change beyond them is
        # in doubt.
        while near > 0 and sum_beyond(near).tokens - sum_beyond(near).tokens_bound <= most:
            near -= 1
        while far < len(distances) and sum_beyond(far).tokens + sum_beyond(far).tokens_bound > most:
            far += 1
        in_doubt = self._magnitude(mu_low, mu_high, distances[near], inner=True)
        if far < len(distances):
            in_doubt -= self._magnitude(mu_low, mu_high, distances[far], inner=False)
        more, fewer = sum_beyond(max(first - 1, 0)), sum_beyond(first)
        part = 1.0
        if first:
            part = (most - fewer.tokens) / (more.tokens - fewer.tokens)
        return _Beyond(
            tokens=min(most, clipped.tokens),
            change=fewer.change + part * (more.change - fewer.change),
            tokens_bound=min(
                clipped.tokens_bound, max(0.0, most - (clipped.tokens - clipped.tokens_bound))
            ),
            change_bound=in_doubt,
        )

    def _magnitude(
        self, mu_low: float | None, mu_high: float | None, further: float, *, inner: bool
    ) -> float:
        """Bound on the absolute change by the tokens beyond: upper (inner) or lower."""
        pairs = zip(self._sides, (mu_low, mu_high), strict=True)
        return sum(
            side.magnitude_beyond(mu + further, inner=inner) for side, mu in pairs if mu is not None
        )


def _drop_tokens(
    sums: WhatIfSums, clipped: _Beyond, *, shrink_denominator: bool, capped: bool = False
) -> WhatIf:
    """The step without the clipped tokens."""
    change, tokens = sums.change_sum - clipped.change, float(sums.tokens)
    bound = clipped.change_bound / tokens
    if shrink_denominator:
        tokens = max(sums.tokens - clipped.tokens, 1)
        ends = [
            (change + sign * clipped.change_bound)
            / max(sums.tokens - clipped.tokens + side * clipped.tokens_bound, 1)
            for sign in (-1, 1)
            for side in (-1, 1)
        ]
        bound = max(abs(end - change / tokens) for end in ends)
    return WhatIf(
        clip_fraction=clipped.tokens / sums.tokens,
        unit_predicted_change=change / tokens,
        clip_fraction_bound=clipped.tokens_bound / sums.tokens,
        unit_predicted_change_bound=bound,
        capped=capped,
    )


def knows(control: Control) -> bool:
    """Whether the sums of a step can answer for a control: it clips nothing, by thresholds that
    stay, or by covariance."""
    if control.hold is not None:
        return False
    if control.method == "clip_cov":
        return control.number("omega_low") >= 0
    if control.method == "kl_cov":
        return control.value("estimator") == "abs"
    return control.method.thresholds or control == Control(reason=control.reason)


def band_answer(control: Control, sums: WhatIfSums, entropy: float) -> WhatIf:
    """The step under Entrocraft, at the band that it begins with, where the entropy is as given, in
    nats: without the samples of one sign of A."""
    dropped: frozenset[TokenGroup] = frozenset()
    if entropy < control.number("low"):
        dropped = IN_SCOPE[Scope.POSITIVE]
    elif entropy > control.number("high"):
        dropped = IN_SCOPE[Scope.NEGATIVE]
    table = sums.by_method.get(SUGGESTED, BinSums())
    sides = [_Side(table, side, dropped & IN_SCOPE[control.scope]) for side in range(SIDES)]
    clipped = _NOTHING
    for beyond in (side.count_beyond(0.0) for side in sides):
        clipped = _Beyond(*(left + right for left, right in zip(clipped, beyond, strict=True)))
    shrinks = control.value("denominator") == "shrink"
    return _drop_tokens(sums, clipped, shrink_denominator=shrinks)


def bonus_answer(control: Control, sums: WhatIfSums, effect: float) -> WhatIf:
    """The step with an entropy bonus at the gate; `effect` is what one of 1 adds to the unit
    prediction (`entropy/bonus_effect`)."""
    added = control.number("coefficient") * effect * sums.tokens
    return _drop_tokens(sums, _Beyond(0.0, -added, 0.0, 0.0), shrink_denominator=False)


def evaluate_control(
    control: Control, sums: WhatIfSums, curve: WhatIfCurve | None = None
) -> WhatIf | None:
    """The step under a control; None of one that its sums do not know. Of Clip-Cov's random choice
    it is the mean; KL-Cov clips nothing. `curve`: that of the step for the control's method and
    scope, where it is there already."""
    if not knows(control):
        return None
    shrinks = control.value("denominator") == "shrink"
    if control.method.thresholds:
        cap = control.value("max_fraction")
        curve = curve or WhatIfCurve(sums, control.scope, control.method)
        return curve.evaluate(
            control.mu_low,
            control.mu_high,
            max_fraction=None if cap is None else float(cap),
            shrink_denominator=shrinks,
        )
    if control.method == Method.NONE:
        return _drop_tokens(sums, _NOTHING, shrink_denominator=False)
    table = sums.by_method.get(control.method)
    if table is None:
        return None
    in_scope = _Side(table, 1, IN_SCOPE[control.scope])
    if control.method == "kl_cov":
        listed = max(math.floor(sums.tokens * control.number("k") + 1e-9), 1)
        penalised = in_scope.count_beyond(_Side(table, 1, IN_SCOPE[Scope.ALL]).mu_of_tokens(listed))
        beta = control.number("beta")
        added = _Beyond(0.0, -beta * penalised.change, 0.0, beta * penalised.change_bound)
        return _drop_tokens(sums, added, shrink_denominator=False)
    low, high = (
        in_scope.count_beyond(control.number(end) / COVARIANCE_UNIT)
        for end in ("omega_low", "omega_high")
    )
    band = _Beyond(
        low.tokens - high.tokens,
        low.change - high.change,
        low.tokens_bound + high.tokens_bound,
        low.change_bound + high.change_bound,
    )
    wanted = control.number("ratio") * sums.tokens
    share = 0.0
    if band.tokens:
        share = min(wanted / band.tokens, 1.0)
    return _drop_tokens(
        sums,
        _Beyond(*(share * one for one in band)),
        shrink_denominator=shrinks,
        capped=band.tokens < wanted,
    )


class _Side:
    """One side's bins, over the groups in scope, and their sums from the far end."""

    def __init__(self, table: BinSums, side: int, groups: frozenset[TokenGroup]) -> None:
        bins = len(EDGES)
        self._counts, self._changes, self._magnitudes = [0] * bins, [0.0] * bins, [0.0] * bins
        for cell, count, change in zip(table.cells, table.counts, table.change_sums, strict=True):
            place, index = divmod(cell, bins)
            if place % SIDES == side and place // SIDES in groups:
                self._counts[index] += count
                self._changes[index] += change
                # Within a cell all changes have one sign, unless a KL term outweighs the advantage
                # of some of its tokens: a part of them changes at most as much as all.
                self._magnitudes[index] += abs(change)
        self._count_beyond = [*accumulate(reversed(self._counts))][::-1]
        self._change_beyond = [*accumulate(reversed(self._changes))][::-1]
        self._magnitude_beyond = [*accumulate(reversed(self._magnitudes))][::-1]

    def magnitude_beyond(self, mu: float, *, inner: bool) -> float:
        """Sum of |change| over the bins beyond mu; the bin that mu lies in counts in full (inner)
        or not at all."""
        index = bisect_right(EDGES, mu) - 1
        if not inner and mu != EDGES[index]:
            index += 1
        if index < len(EDGES):
            return self._magnitude_beyond[index]
        return 0.0

    def mu_of_tokens(self, tokens: float) -> float:
        """The mu beyond which so many tokens lie; 0 where there are fewer."""
        index = bisect_left(
            range(len(EDGES)), True, key=lambda at: self._count_beyond[at] <= tokens
        )
        if index in (0, len(EDGES)):
            if index:
                return EDGES[-1]
            return 0.0
        part = (self._count_beyond[index - 1] - tokens) / self._counts[index - 1]
        return EDGES[index - 1] + part * (EDGES[index] - EDGES[index - 1])

    def count_beyond(self, mu: float | None) -> _Beyond:
        """The tokens with |u| > mu."""
        if mu is None:
            return _NOTHING
        if not math.isfinite(mu) or mu < 0:
            raise WhatIfError(
                "A threshold counts standard deviations and must be finite and not negative, got"
                f" {mu}."
            )
        index = bisect_right(EDGES, mu) - 1
        count, change = self._count_beyond[index], self._change_beyond[index]
        if mu == EDGES[index]:
            return _Beyond(count, change, 0.0, 0.0)
        if index == len(EDGES) - 1:  # how far out these tokens lie is not known
            return _Beyond(count, change, count, self._magnitudes[index])
        passed = (mu - EDGES[index]) / (EDGES[index + 1] - EDGES[index])
        error = max(passed, 1 - passed)
        return _Beyond(
            count - passed * self._counts[index],
            change - passed * self._changes[index],
            error * self._counts[index],
            error * self._magnitudes[index],
        )


def merged(steps: Sequence[WhatIfSums]) -> WhatIfSums:
    """The tokens of several steps, micro-batches or ranks together."""
    methods = {method: None for step in steps for method in step.by_method}
    return WhatIfSums(
        tokens=sum(step.tokens for step in steps),
        change_sum=sum(step.change_sum for step in steps),
        by_method={
            method: _merged([step.by_method.get(method, BinSums()) for step in steps])
            for method in methods
        },
    )


def _merged(tables: Sequence[BinSums]) -> BinSums:
    counts, changes = dict[int, int](), dict[int, float]()
    for table in tables:
        for cell, count, change in zip(table.cells, table.counts, table.change_sums, strict=True):
            counts[cell] = counts.get(cell, 0) + count
            changes[cell] = changes.get(cell, 0.0) + change
    cells = tuple(sorted(counts))
    return BinSums(
        cells, tuple(counts[cell] for cell in cells), tuple(changes[cell] for cell in cells)
    )
