"""The decision for a step: which threshold brings about a bounded correction of the entropy.

The resting point s (`entropy_estimate`) moves by g u + b per step, u being the step's unit prediction and g its gain
(`effect`). Wanted is

    g u* + b = clamp(RATE (H* - s), -max_change_per_step, max_change_per_step)

and the what-if curve of the newest measured step says which mu gives u*: clipping tokens whose update lowers entropy
(scope `decreasing`) raises u from what it is with nothing clipped, clipping those that raise it lowers u. Numbers arrive
a step or more late; what was decided since is added to s as it was planned.

A pure function of what was measured and of its state: no clock, no thread, no torch.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass

from isentrope.steering.action import Action, HoldWord
from isentrope.steering.entropy_estimate import EntropyEstimate
from isentrope.steering.trust import Calibrated, distrust
from isentrope_wire.control import Method, Scope
from isentrope_wire.hold import Hold, HoldSide
from isentrope_wire.what_if import EDGES, WhatIfCurve, WhatIfSums

RATE = 0.2
"""Share of what is missing that one step corrects: low enough for numbers that come some steps late and jitter."""
HYSTERESIS = 0.05
"""Clipping begins when it is worth this share of the largest correction, and ends when it is worth nothing: at the
border it would switch on and off with the noise."""
SLEW_FACTOR = 2.0
SLEW_STEP = 0.1
"""From one step to the next mu goes to at most SLEW_FACTOR mu + SLEW_STEP, and back: one step's odd tokens move it little.
It sets out from where clipping begins: a way through thresholds that no token reaches would be steps without control."""
LARGEST_LAG = 5
"""Steps; numbers older than that are not acted on."""
_HALVINGS = 30
"""Of the interval in which the threshold is looked for: a millionth of a standard deviation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What is known of the newest step whose numbers have arrived."""

    step: int
    """Counted from 0 in steps closed by this process."""
    entropy: EntropyEstimate
    calibrated: Calibrated
    what_if: WhatIfSums
    """What its unit prediction would have been under any thresholds."""

    @property
    def unclipped_prediction(self) -> float:
        """The unit prediction with nothing clipped."""
        return self.what_if.change_sum / self.what_if.tokens


@dataclass(frozen=True, slots=True)
class Plan:
    """What a decision was meant to bring about."""

    step: int
    unit_prediction: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldState:
    """What the controller remembers from step to step; all of it, so that it can be written down and read again."""

    acting: bool = False
    """Whether the calibration was trusted."""
    scope: Scope | None = None
    """The side that was clipped; None: neither."""
    mu: float | None = None
    plans: tuple[Plan, ...] = ()
    """For the steps whose numbers have not arrived."""


def decide(
    hold: Hold,
    state: HoldState,
    measured: Measured | None,
    *,
    step: int,
    method: Method = Method.CLIP_V,
    max_fraction: float | None = None,
    shrink_denominator: bool = False,
) -> tuple[HoldState, Action]:
    """The thresholds for a step that is about to begin.

    Args:
        measured: the newest there is, of a step before this one; None: nothing has arrived.
        step: the one about to begin, counted as in `Measured.step`.
        method: clip_v or clip_b, whose thresholds are moved.
        max_fraction, shrink_denominator: what the pushed parameters make of a threshold, see `WhatIfCurve.at`.
    Returns: the state to come back with, and the action, whose version is the caller's to fill in.
    """
    why = _why_not(measured, state, step)
    if measured is None or why:
        return HoldState(plans=_plans(state, measured, step)), Action(version=0, word=HoldWord.FALLBACK, why=why)
    gain, drift = measured.entropy.gain or 0.0, measured.entropy.drift
    plans = _outstanding(state, measured)
    standing = measured.entropy.resting_point + sum(gain * plan.unit_prediction + drift for plan in plans)
    largest = hold.largest_change
    correction = min(max(RATE * (hold.target_entropy - standing), -largest), largest) - drift
    # In nats: what the step would bring about with nothing clipped, and what clipping has to add.
    missing = correction - gain * measured.unclipped_prediction
    scope = _side_to_clip(missing, HYSTERESIS * largest, state)
    if scope is None or not _allowed(scope, hold.side):
        word = HoldWord.RESTING if scope is None else HoldWord.SIDE
        idle = HoldState(acting=True, plans=_plans(state, measured, step))
        return idle, Action(version=0, word=word, why=_why_idle(scope))
    curve = WhatIfCurve(measured.what_if, scope, method)
    lowest = max(hold.mu_min, min(_cap_binds_from(curve, max_fraction), hold.mu_max))

    def reached(mu: float) -> float:
        # Uncapped: no threshold below the one at which the cap begins to bind is asked about.
        return curve.at(mu, mu, shrink_denominator=shrink_denominator).unit_predicted_change

    solved = _solve(reached, scope, correction / gain, lowest, hold.mu_max)
    mu, word = _threshold(hold, state, curve, scope, solved, lowest)
    plan = Plan(step, reached(mu))
    return (
        HoldState(acting=True, scope=scope, mu=mu, plans=(*plans, plan)),
        Action(version=0, word=word, scope=scope, mu=mu),
    )


def _why_not(measured: Measured | None, state: HoldState, step: int) -> str:
    if measured is None:
        return "No step's numbers have arrived yet."
    lag = step - measured.step
    if lag > LARGEST_LAG:
        return f"The newest numbers are of {lag} steps before."
    return distrust(measured.calibrated, measured.entropy.gain, acting=state.acting)


def _outstanding(state: HoldState, measured: Measured) -> tuple[Plan, ...]:
    """What was planned for steps that `measured` does not know of yet."""
    return tuple(plan for plan in state.plans if plan.step > measured.step)


def _plans(state: HoldState, measured: Measured | None, step: int) -> tuple[Plan, ...]:
    """With the step about to begin, in which nothing is clipped."""
    if measured is None:
        return ()
    return (*_outstanding(state, measured), Plan(step, measured.unclipped_prediction))


def _side_to_clip(missing: float, band: float, state: HoldState) -> Scope | None:
    """Which tokens stand in the way.

    Args:
        missing: what clipping has to add to the step's change, in nats.
        band: how much that must be before clipping begins, or changes sides.
    """
    wanted = Scope.DECREASING if missing > 0 else Scope.INCREASING
    return wanted if abs(missing) > (0.0 if wanted == state.scope else band) else None


def _allowed(scope: Scope, side: HoldSide) -> bool:
    return side == HoldSide.BOTH or (scope == Scope.DECREASING) == (side == HoldSide.RAISE)


def _why_idle(scope: Scope | None) -> str:
    if scope is None:
        return ""
    return f"Only clipping with scope {scope} would bring the entropy nearer, and side does not allow it."


@dataclass(frozen=True, slots=True)
class _Solved:
    mu: float
    enough: bool
    """Whether it does what is wanted; else it comes nearest."""


def _threshold(
    hold: Hold, state: HoldState, curve: WhatIfCurve, scope: Scope, solved: _Solved, lowest: float
) -> tuple[float, HoldWord]:
    """The threshold that was solved for, as far as the slew lets it.

    Args:
        lowest: by mu_min and the cap; a threshold below it does no more.
    """
    begins = min(_furthest_score(curve), hold.mu_max)
    last = min(state.mu, begins) if state.mu is not None and state.scope == scope else begins
    mu = min(max(solved.mu, (last - SLEW_STEP) / SLEW_FACTOR), last * SLEW_FACTOR + SLEW_STEP)
    mu = min(max(mu, lowest), hold.mu_max)
    if mu != solved.mu:
        return mu, HoldWord.SLEWING
    return mu, HoldWord.HOLDING if solved.enough else HoldWord.LIMIT


def _furthest_score(curve: WhatIfCurve) -> float:
    """The lowest threshold, of those counted, beyond which no token in scope lies."""
    within = bisect_left(EDGES, True, key=lambda edge: curve.at(edge, edge).clip_fraction == 0)
    return EDGES[min(within, len(EDGES) - 1)]


def _cap_binds_from(curve: WhatIfCurve, max_fraction: float | None) -> float:
    """The threshold below which the cap lets no more be clipped, however low; 0 where there is no cap, or none binds."""
    if max_fraction is None:
        return 0.0
    low, high = 0.0, _furthest_score(curve)
    if curve.at(low, low).clip_fraction <= max_fraction:
        return low
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if curve.at(middle, middle).clip_fraction > max_fraction else (low, middle)
    return high


def _solve(reached: Callable[[float], float], scope: Scope, wanted: float, low: float, high: float) -> _Solved:
    """The highest threshold within bounds that does what is wanted; the one that comes nearest when none does."""
    sign = 1 if scope == Scope.DECREASING else -1

    def missing(mu: float) -> float:
        return sign * (wanted - reached(mu))

    # From above, edge by edge: with a mean over the kept tokens alone, a lower threshold may do less than a higher one.
    places = [high, *(edge for edge in reversed(EDGES) if low < edge < high), low]
    first = next((index for index, mu in enumerate(places) if missing(mu) <= 0), None)
    if first is None:
        return _Solved(min(reversed(places), key=missing), enough=False)
    if first == 0:
        return _Solved(high, enough=True)
    low, high = places[first], places[first - 1]
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if missing(middle) <= 0 else (low, middle)
    return _Solved(low, enough=True)
