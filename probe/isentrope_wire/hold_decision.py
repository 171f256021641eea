"""How an entropy is held: which thresholds the next step takes, decided from the newest measured
step.

The resting point s of the entropy (`EntropyEstimate`) moves by g u + b per step, where u is the
step's unit prediction and g its gain. The decision (`decide`) wants

    g u* + b = RATE (H* - s), by size at most `Hold.largest_change`

and reads the mu that gives u* from the what-if curve of the newest measured step: clipping tokens
whose update lowers entropy (scope `decreasing`) raises u, clipping those that raise it lowers u.
Where the step without clipping moves s towards H* faster than `Hold.largest_change`, but not faster
than RATE (H* - s), it is left alone: the approach is slowed only near the target, or where
`max_change_per_step` asks for it. Numbers arrive one or more steps late, so the planned effect of
decisions made since is added to s.

Where no threshold reaches u*, an entropy bonus at the gate (method `entropy_bonus`) does. It drops
no token, and reaches above and below what clipping can: with e, what a coefficient of 1 adds to the
unit prediction (`entropy/bonus_effect`), the coefficient is

    c = (u* - u) / e

It begins where it adds what the thresholds added last, and ends where they suffice with MARGIN to
spare, so that the planned change has no jump.

`decide` is a pure function of measurements and state: no clock, no thread, no torch. `distrust`
checks whether the calibrated prediction is good enough to act on; the decision itself, and the
control that results, are in `hold_action.py`."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, replace

from isentrope_wire.control import Control, Hold, HoldLever, HoldSide, Scope
from isentrope_wire.hold_action import Action, HoldStatus, clipping_method
from isentrope_wire.what_if import EDGES, WhatIfCurve, WhatIfSums

COMPARED_STEPS = 5
"""Predictions that must have been compared with their observation before the first action."""
SIGN_AGREEMENT_TO_BEGIN = 0.65
SIGN_AGREEMENT_TO_GO_ON = 0.35
"""Below the half that chance gives: near the target the changes are small and their signs random,
however good the gain is. The bound of the beginning would end every hold that succeeds."""
RATE = 0.2
"""Share of the distance to the target that one step corrects: low enough for numbers that are noisy
and some steps late."""
LOOK_AHEAD = 9
"""Steps. A share RATE of the way to a target that moves stays behind by its change in 1 / RATE
steps, and the entropy behind the resting point by some four, with a beta_1 of 0.9."""
FAR = 0.1
"""Share of the target: an entropy further from it approaches it, and is not held."""
PACE_WEIGHT = 0.2
"""Weight of one step in the pace from which the steps to the target are counted."""
LONGEST_WAY = 10_000
"""Steps to the target; at a slower pace there is no number."""
HYSTERESIS = 0.05
"""Clipping begins when it contributes this share of the largest correction, and ends when it
contributes nothing: with one bound for both, noise would switch it on and off."""
SLEW_FACTOR = 2.0
SLEW_STEP = 0.1
"""From one step to the next mu goes to at most SLEW_FACTOR mu + SLEW_STEP, and back, so that one
step's outliers move it little. It starts where clipping begins: steps with thresholds that no token
reaches would have no effect."""
LARGEST_BONUS = 1.0
"""Coefficient of a bonus, either way: TRL's `entropy_coef_max`. With -5 an entropy fell no further
than with -1: the optimiser normalises the gradient, and the gain went to 0."""
LOW_TARGET = 0.3
"""Share of the early level below which a bonus is exact, where the loop's scores carry the
entropy's gradient, and a fall is not slowed. With H small, an estimate from the sampled tokens is
mostly scatter, and the optimiser divides by that."""
BONUS_STEP = 0.5
"""A bonus changes by at most what moves the entropy by this share of the largest correction, or by
half of itself where that is more."""
MARGIN = 1.0
"""Thresholds take over from a bonus where they reach this share of the largest correction more than
is wanted."""
LARGEST_LAG = 5
"""Steps; older numbers are not acted on."""
_HALVINGS = 30
"""Bisections of the interval that has the threshold: to a millionth of a standard deviation."""


@dataclass(frozen=True, slots=True)
class Calibrated:
    """The quality of the calibrated prediction after a step. None: too few steps to know it."""

    r2: float | None = None
    sign_agreement: float | None = None
    compared_steps: int = 0


def distrust(calibrated: Calibrated, gain: float | None, *, acting: bool) -> str:
    """Why the prediction is not good enough to act on, in one sentence; empty where it is. The gain
    is in nats per unit, None: not known. Where it was acted on in the step before, only clear
    evidence ends that."""
    agreement, r2 = calibrated.sign_agreement, calibrated.r2
    if gain is None:
        return (
            "The gain is not known yet: some steps with an observed entropy change (rescore=) are"
            " needed."
        )
    if not math.isfinite(gain) or gain <= 0:
        return (
            f"The gain is {gain:.3g}: clipping would not move the entropy in the intended"
            " direction. Nothing is to be done: it begins when the gain is above 0."
        )
    if calibrated.compared_steps < COMPARED_STEPS or agreement is None:
        return (
            f"The prediction was compared in {calibrated.compared_steps} steps; {COMPARED_STEPS}"
            " are needed."
        )
    if acting:
        # Both must fail: each alone is noise while the entropy does not change.
        lost = agreement < SIGN_AGREEMENT_TO_GO_ON and (r2 is None or r2 < 0)
    else:
        lost = agreement < SIGN_AGREEMENT_TO_BEGIN and (r2 is None or r2 < SIGN_AGREEMENT_TO_BEGIN)
    if not lost:
        return ""
    explained = "unknown"
    if r2 is not None:
        explained = f"{r2:.2f}"
    return (
        f"The prediction's sign was right in {agreement:.0%} of the steps, and its R² is"
        f" {explained}."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class EntropyEstimate:
    """Where the entropy is after a step, and where it is going."""

    mean_entropy: float
    """Under the policy after the step's update, in nats."""
    gain: float | None
    """a_t g in nats per unit, at the step's learning rate; None: too few steps to know it."""
    to_come: float = 0.0
    """The change that updates made so far will still cause through momentum, in nats."""
    drift: float = 0.0
    """b in nats: the mean change that g x does not explain."""

    @property
    def resting_point(self) -> float:
        """s: where the entropy would come to rest, in nats."""
        return self.mean_entropy + self.to_come


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Measurements of the newest step whose numbers have arrived."""

    step: int
    """Counted from 0 in steps closed by this process."""
    entropy: EntropyEstimate
    calibrated: Calibrated
    what_if: WhatIfSums
    """From which its unit prediction under any thresholds is computed."""
    bonus_effect: float | None = None
    """e: what an entropy bonus of 1 would add to its unit prediction; None: not known."""
    run_step: int = 0
    """Its number in the run."""
    early_level: float | None = None
    """The run's early entropy, in nats; None: not known yet."""
    highest_entropy: float = math.inf
    """The highest mean entropy of any step so far, in nats."""
    vocabulary: int | None = None
    """Number of tokens that a distribution is over; None: not known."""

    @property
    def unclipped_prediction(self) -> float:
        """The unit prediction with nothing clipped."""
        return self.what_if.change_sum / self.what_if.tokens


@dataclass(frozen=True, slots=True)
class Plan:
    """The planned effect of a decision."""

    step: int
    unit_prediction: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldState:
    """The whole state of a hold from step to step; it goes into checkpoints."""

    acting: bool = False
    """Whether the prediction was good enough to act on."""
    scope: Scope | None = None
    """The side that was clipped; None: neither."""
    mu: float | None = None
    bonus: float | None = None
    """Coefficient of the bonus that acted in the place of thresholds."""
    pace: float | None = None
    """Average of what a step was decided to move towards the target, in nats."""
    plans: tuple[Plan, ...] = ()
    """Plans of the steps whose numbers have not arrived."""


def decide(
    pushed: Control, state: HoldState, measured: Measured | None, *, step: int, stopped: str = ""
) -> tuple[HoldState, Action]:
    """Decide the thresholds of the step that begins next, counted as in `Measured.step`, from the
    control with the hold, what the last decision returned, and the newest measured step (None: no
    numbers have arrived). `stopped` says why the hold was ended; empty: it was not. The next state,
    and the action, whose version the caller fills in."""
    hold = pushed.held
    assert hold is not None, "there is nothing to hold"
    target, run_step = None, 0
    if measured is not None:
        run_step = measured.run_step + step - measured.step
        target = hold.target_at(run_step, measured.early_level)
    reason = stopped or _reason_for_fallback(measured, state, step, target)
    if measured is None or target is None or reason:
        status = HoldStatus.FALLBACK
        if stopped:
            status = HoldStatus.ENDED
        idle_action = Action(version=0, status=status, reason=reason, target=target)
        return HoldState(plans=_plans(state, measured, step)), idle_action
    gain, drift = measured.entropy.gain or 0.0, measured.entropy.drift
    plans = _outstanding(state, measured)
    resting_point = measured.entropy.resting_point + sum(
        gain * plan.unit_prediction + drift for plan in plans
    )
    gap = _target_ahead(hold, measured, run_step, target) - resting_point
    unclipped = gain * measured.unclipped_prediction + drift
    is_low = target < LOW_TARGET * (measured.early_level or 0.0)
    if is_low and gap < 0 and hold.max_change_per_step is None:
        wanted = RATE * gap
    else:
        wanted = _wanted_change(hold, target, gap, unclipped)
    # In nats: what clipping has to add to the change of the step with nothing clipped.
    missing = wanted - unclipped
    scope = _side_to_clip(missing, HYSTERESIS * hold.largest_change(target, gap), state)
    watch = _reason_to_watch(measured, target)
    allowed = {HoldSide.RAISE: Scope.DECREASING, HoldSide.LOWER: Scope.INCREASING}.get(
        hold.side, scope
    )
    if scope is None or scope != allowed:
        status, reason = HoldStatus.RESTING, watch
        if scope is not None:
            status = HoldStatus.SIDE
            reason = watch or (
                f"Only clipping with scope {scope} would move the entropy towards the target, and"
                " side does not allow it."
            )
        idle = HoldState(
            acting=True, pace=_pace(state, unclipped, gap), plans=_plans(state, measured, step)
        )
        action = Action(version=0, status=status, reason=reason, target=target)
        return idle, _mark_approaching(action, idle, gap, watch)
    curve = WhatIfCurve(measured.what_if, scope, clipping_method(pushed))
    cap, shrink_denominator = pushed.value("max_fraction"), pushed.value("denominator") == "shrink"
    lowest = max(
        hold.mu_min, min(_cap_binds_from(curve, None if cap is None else float(cap)), hold.mu_max)
    )

    def reached(mu: float) -> float:
        # Without the cap: it is only called for thresholds at which the cap does not bind.
        return curve.evaluate(mu, mu, shrink_denominator=shrink_denominator).unit_predicted_change

    wanted_unit, largest = (wanted - drift) / gain, hold.largest_change(target, gap)
    solved, is_enough = _solve(reached, scope, wanted_unit, lowest, hold.mu_max)
    if state.bonus is not None and is_enough:
        spare = math.copysign(MARGIN * largest / gain, missing)
        _, is_enough = _solve(reached, scope, wanted_unit + spare, lowest, hold.mu_max)
    bonus = None
    if hold.lever == HoldLever.BONUS or (hold.lever == HoldLever.AUTO and not is_enough):
        bonus = _bonus(state, measured, wanted_unit, BONUS_STEP * largest / gain)
    if bonus is not None and measured.bonus_effect is not None:
        unit = measured.unclipped_prediction + bonus * measured.bonus_effect
        pace = _pace(state, gain * unit + drift, gap)
        plans = (*plans, Plan(step, unit))
        lifting = HoldState(acting=True, scope=scope, bonus=bonus, pace=pace, plans=plans)
        reason = f"An entropy bonus of {bonus:.2g} acts"
        if hold.lever == HoldLever.AUTO:
            reason += ", for no threshold moves the entropy as far"
        action = Action(
            version=0,
            status=HoldStatus.HOLDING,
            bonus=bonus,
            exact=bonus < 0 and is_low,
            reason=f"{reason}. {watch}".strip(),
            target=target,
        )
        return lifting, _mark_approaching(action, lifting, gap, action.reason)
    if state.bonus is not None and state.scope == scope:
        # The thresholds go on from what the bonus did.
        state = replace(state, mu=solved)
    mu = _threshold(hold, state, curve, scope, solved, lowest)
    status = HoldStatus.LIMIT
    if is_enough:
        status = HoldStatus.HOLDING
    if mu != solved:
        status = HoldStatus.SLEWING
    plan = Plan(step, reached(mu))
    pace = _pace(state, gain * plan.unit_prediction + drift, gap)
    acting = HoldState(acting=True, scope=scope, mu=mu, pace=pace, plans=(*plans, plan))
    action = Action(version=0, status=status, scope=scope, mu=mu, reason=watch, target=target)
    return acting, _mark_approaching(action, acting, gap, watch)


def _target_ahead(hold: Hold, measured: Measured, run_step: int, target: float) -> float:
    """The target that the step steers to, in nats: on a curve that of LOOK_AHEAD steps later."""
    if hold.target_curve is None:
        return target
    return hold.target_at(run_step + LOOK_AHEAD, measured.early_level) or target


def _wanted_change(hold: Hold, target: float, gap: float, unclipped: float) -> float:
    """The change of the resting point that the step is to bring about, in nats: `gap` is its way to
    the target, `unclipped` the change with nothing clipped."""
    largest = hold.largest_change(target, gap)
    if hold.max_change_per_step is None:
        largest = max(largest, math.copysign(unclipped, unclipped * gap))
    return math.copysign(min(RATE * abs(gap), largest), gap)


def _pace(state: HoldState, change: float, gap: float) -> float:
    towards = math.copysign(change, change * gap)
    if state.pace is None:
        return towards
    return state.pace + PACE_WEIGHT * (towards - state.pace)


def _mark_approaching(action: Action, state: HoldState, gap: float, watch: str) -> Action:
    """The action as APPROACHING where the entropy moves towards a target that is far."""
    pace, target = state.pace or 0.0, action.target or 0.0
    if abs(gap) <= FAR * target or pace <= 0 or abs(gap) > LONGEST_WAY * pace:
        return action
    steps = math.ceil(abs(gap) / pace)
    way = f"About {float(f'{steps:.0e}'):,.0f} steps to the target, at {pace:.2g} nats a step."
    reason = f"{way} {watch}".strip()
    return replace(
        action, status=HoldStatus.APPROACHING, steps_to_target=float(steps), reason=reason
    )


def _reason_for_fallback(
    measured: Measured | None, state: HoldState, step: int, target: float | None
) -> str:
    if measured is None:
        return "No measurements have arrived yet."
    lag = step - measured.step
    if lag > LARGEST_LAG:
        return f"The newest measurements are {lag} steps old."
    if target is None:
        return (
            "The early level, of which the target is a share, is not known yet: it takes the run's"
            " first steps."
        )
    if measured.vocabulary is not None and target > math.log(measured.vocabulary):
        return (
            f"The target of {target:.4g} nats lies above ln V ="
            f" {math.log(measured.vocabulary):.4g}, the entropy of a uniform distribution over"
            f" {measured.vocabulary} tokens: no policy can have it."
        )
    return distrust(measured.calibrated, measured.entropy.gain, acting=state.acting)


def _reason_to_watch(measured: Measured, target: float) -> str:
    """What to know of a target that the run never had; empty for another one."""
    if target <= measured.highest_entropy:
        return ""
    return (
        f"The target of {target:.4g} nats lies above {measured.highest_entropy:.4g}, the highest"
        " mean entropy of the run so far: whether the policy still learns there is not known."
    )


def _outstanding(state: HoldState, measured: Measured) -> tuple[Plan, ...]:
    """Plans for the steps after `measured`."""
    return tuple(plan for plan in state.plans if plan.step > measured.step)


def _plans(state: HoldState, measured: Measured | None, step: int) -> tuple[Plan, ...]:
    """The outstanding plans, and one for a step in which nothing is clipped."""
    if measured is None:
        return ()
    return (*_outstanding(state, measured), Plan(step, measured.unclipped_prediction))


def _side_to_clip(missing: float, band: float, state: HoldState) -> Scope | None:
    """The tokens to clip, by what their update does to the entropy; None: none. `missing`, what
    clipping has to add to the step's change, in nats, must exceed the band before clipping begins,
    or changes sides."""
    wanted = Scope.INCREASING
    if missing > 0:
        wanted = Scope.DECREASING
    least = band
    if wanted == state.scope:
        least = 0.0
    if abs(missing) > least:
        return wanted
    return None


def _bonus(state: HoldState, measured: Measured, wanted_unit: float, step: float) -> float | None:
    """The coefficient of the next step; it moves from the last one, or from what thresholds last
    added, by at most `step` in unit prediction. None: what a bonus does is not known, or not what
    it is meant to."""
    effect = measured.bonus_effect
    if effect is None or not math.isfinite(effect) or effect <= 0:
        return None
    unclipped = measured.unclipped_prediction
    wanted = (wanted_unit - unclipped) / effect
    last = state.bonus
    if last is None:
        acted = unclipped
        if state.plans:
            acted = state.plans[-1].unit_prediction
        last = (acted - unclipped) / effect
    reach = max(step / effect, abs(last) / 2)
    moved = min(max(wanted, last - reach), last + reach)
    return min(max(moved, -LARGEST_BONUS), LARGEST_BONUS)


def _threshold(
    hold: Hold, state: HoldState, curve: WhatIfCurve, scope: Scope, solved: float, lowest: float
) -> float:
    """The threshold of the next step: the solved one, as far as one step may move it. Below
    `lowest` no more is clipped."""
    begins = min(_furthest_score(curve), hold.mu_max)
    last = begins
    if state.mu is not None and state.scope == scope:
        last = min(state.mu, begins)
    mu = min(max(solved, (last - SLEW_STEP) / SLEW_FACTOR), last * SLEW_FACTOR + SLEW_STEP)
    return min(max(mu, lowest), hold.mu_max)


def _furthest_score(curve: WhatIfCurve) -> float:
    """The lowest edge beyond which no token in scope lies."""
    within = bisect_left(
        EDGES, True, key=lambda edge: curve.evaluate(edge, edge).clip_fraction == 0
    )
    return EDGES[min(within, len(EDGES) - 1)]


def _cap_binds_from(curve: WhatIfCurve, max_fraction: float | None) -> float:
    """The threshold below which the cap stops more from being clipped; 0 where there is no cap, or
    it does not bind."""
    if max_fraction is None:
        return 0.0
    low, high = 0.0, _furthest_score(curve)
    if curve.evaluate(low, low).clip_fraction <= max_fraction:
        return low
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if curve.evaluate(middle, middle).clip_fraction > max_fraction:
            low = middle
        else:
            high = middle
    return high


def _solve(
    reached: Callable[[float], float], scope: Scope, wanted: float, low: float, high: float
) -> tuple[float, bool]:
    """The highest threshold within bounds that reaches `wanted` and True, else the one that comes
    nearest."""
    sign = 1
    if scope != Scope.DECREASING:
        sign = -1

    def missing(mu: float) -> float:
        return sign * (wanted - reached(mu))

    # From above, edge by edge: with a mean over the kept tokens alone, a lower threshold may
    # achieve less.
    places = [high, *(edge for edge in reversed(EDGES) if low < edge < high), low]
    first = next((index for index, mu in enumerate(places) if missing(mu) <= 0), None)
    if first is None:
        return min(reversed(places), key=missing), False
    if first == 0:
        return high, True
    low, high = places[first], places[first - 1]
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if missing(middle) <= 0:
            low = middle
        else:
            high = middle
    return low, True
