"""What a control is predicted to do when it is pushed, and the verdict on what it did over its first steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, stdev

from isentrope_wire.control import Control
from isentrope_wire.control_answers import Compared, ControlVersion, PredictedEffect, Verdict, VerdictState
from isentrope_wire.diagnosis.course import FOLLOWED, LEAST_POINTS, OVER_LEFT, WINDOW, Slope, slope_of
from isentrope_wire.numbers import decimals_of, fixed
from isentrope_wire.what_if import WhatIfCurve, WhatIfSums

PREDICTION_STEPS = 10
"""Steps that a control's effect is predicted from: the tokens of one step alone scatter by half."""

VERDICT_STEPS = WINDOW
"""Steps after which a control is judged."""

_SPREADS = 2.0
"""Standard deviations of the prediction, within which what came counts as predicted."""
_ALIKE = 0.1
"""Of a predicted clip fraction: a difference that never counts, however little the prediction scatters."""


def predicted_effect(control: Control, steps: Sequence[WhatIfSums], gain: float | None) -> PredictedEffect | None:
    """What a control would have done to the last steps.

    Args:
        control: thresholds.
        steps: the sums of the last steps, with tokens each.
        gain: from the unit prediction to nats; None: not known.

    Returns:
        None for a method without thresholds, for a held entropy, whose thresholds move, and without steps.
    """
    if not control.method.thresholds or control.hold is not None or not steps:
        return None
    cap, shrink = control.value("max_fraction"), control.value("denominator") == "shrink"
    found = [
        WhatIfCurve(sums, control.scope, control.method).at(
            control.mu_low,
            control.mu_high,
            max_fraction=None if cap is None else float(cap),
            shrink_denominator=shrink,
        )
        for sums in steps
    ]
    fractions = [one.clip_fraction for one in found]
    changes = [] if gain is None else [gain * one.unit_predicted_change for one in found]
    tokens = [sums.tokens for sums in steps]
    return PredictedEffect(
        steps=len(found),
        clip_fraction=fmean(fractions, tokens),
        clip_fraction_std=_std(fractions),
        change=fmean(changes, tokens) if changes else None,
        change_std=_std(changes) if changes else None,
    )


def _std(values: Sequence[float]) -> float:
    return stdev(values) if len(values) > 1 else 0.0


def verdict_on(
    version: ControlVersion,
    entropies: Mapping[int, float],
    clip_fractions: Mapping[int, float],
    *,
    target: float | None = None,
    replaced_at: int | None = None,
) -> Verdict | None:
    """What a control did over its first VERDICT_STEPS steps.

    Args:
        version: with its prediction.
        entropies: step -> entropy in nats, finite, from WINDOW steps before the control was applied.
        clip_fractions: step -> share of clipped tokens, finite.
        target: the entropy that it holds, at the last of these steps.
        replaced_at: the step from which another control was applied; None: it is active.

    Returns:
        None of a version that was not applied, and of the one that the run began with.
    """
    applied = version.applied_step
    if applied is None or version.version == 0:
        return None
    end = min(applied + VERDICT_STEPS, applied + VERDICT_STEPS if replaced_at is None else replaced_at)
    # Step `applied` is the first whose update is another one; its own entropy is still that of the steps before.
    before = _slope(entropies, applied - WINDOW, applied)
    after = _slope(entropies, applied, end)
    steps = sum(applied < step <= end for step in entropies)
    is_over = steps >= VERDICT_STEPS or (replaced_at is not None and end == replaced_at and steps >= LEAST_POINTS)
    clipped = _mean(clip_fractions, applied, end - 1)
    predicted = version.predicted
    state = VerdictState.PENDING
    if is_over and after is not None:
        now = fmean([value for step, value in sorted(entropies.items()) if applied < step <= end][-LEAST_POINTS:])
        state = _state_of_hold(after, now, target) if target is not None else _state(after, before, predicted)
    return Verdict(
        version=version.version,
        state=state,
        steps=steps,
        steps_needed=VERDICT_STEPS,
        clip_fraction=Compared(
            before=_mean(clip_fractions, applied - PREDICTION_STEPS, applied - 1),
            predicted=None if predicted is None else predicted.clip_fraction,
            realised=clipped,
        ),
        slope=Compared(
            before=None if before is None else before.value,
            predicted=None if predicted is None else predicted.change,
            realised=None if after is None else after.value,
        ),
        message=_in_words(state, steps, clipped, after, predicted, target),
    )


def _slope(entropies: Mapping[int, float], first: int, last: int) -> Slope | None:
    steps = sorted(step for step in entropies if first <= step <= last)
    return slope_of(steps, [entropies[step] for step in steps])


def _mean(values: Mapping[int, float], first: int, last: int) -> float | None:
    found = [value for step, value in values.items() if first <= step <= last]
    return fmean(found) if found else None


def _state(after: Slope, before: Slope | None, predicted: PredictedEffect | None) -> VerdictState:
    pace = abs(before.value) if before is not None and before.direction else None
    slow = abs(after.value) <= pace * (FOLLOWED if after.direction else 2 * FOLLOWED) if pace else not after.direction
    if slow:
        return VerdictState.HOLDS
    turned = before is not None and before.direction * after.value < 0
    if after.value < 0:
        return VerdictState.TOO_STRONG if turned else VerdictState.TOO_WEAK
    meant = predicted is not None and predicted.change is not None and predicted.change > (predicted.change_std or 0.0)
    return VerdictState.TOO_STRONG if turned and not meant else VerdictState.RISES


def _state_of_hold(after: Slope, entropy: float, target: float) -> VerdictState:
    if OVER_LEFT <= entropy / target <= 1 / OVER_LEFT:
        return VerdictState.HOLDS
    # On its way it is neither.
    return VerdictState.PENDING if after.direction * (target - entropy) > 0 else VerdictState.TOO_WEAK


def _in_words(
    state: VerdictState,
    steps: int,
    clipped: float | None,
    after: Slope | None,
    predicted: PredictedEffect | None,
    target: float | None,
) -> str:
    if state == VerdictState.PENDING or after is None:
        way = "It moves towards its target" if target is not None and after is not None else "No verdict yet"
        return f"{way}: {steps} of {VERDICT_STEPS} steps." if steps < VERDICT_STEPS else f"{way}."
    moves = (
        f"{'falls' if after.value < 0 else 'rises'} by {fixed(abs(after.value), max(4, decimals_of(after.value, 1)))}"
    )
    if target is not None:
        return f"Entropy is {'near' if state == VerdictState.HOLDS else 'not led to'} its target."
    if predicted is None or clipped is None:
        return "Entropy holds." if state == VerdictState.HOLDS else f"Entropy {moves} nats a step."
    off = clipped - predicted.clip_fraction
    as_predicted = abs(off) <= max(_SPREADS * predicted.clip_fraction_std, _ALIKE * predicted.clip_fraction)
    clips = f"Clips {'as' if as_predicted else 'more than' if off > 0 else 'less than'} predicted"
    if state == VerdictState.HOLDS:
        return (
            "Both within the predicted spread." if as_predicted and _fits(after, predicted) else f"{clips}, and holds."
        )
    much = {VerdictState.TOO_WEAK: "too little", VerdictState.TOO_STRONG: "too much"}.get(state)
    if much is not None:
        return f"{clips}, but {much}." if as_predicted else f"{clips}, and {much}."
    return f"{clips}, and rises as predicted." if _fits(after, predicted) else f"{clips}, but {moves} nats a step."


def _fits(after: Slope, predicted: PredictedEffect) -> bool:
    """Whether the predicted change lies within its spread of the slope's interval."""
    if predicted.change is None:
        return False
    spread = _SPREADS * (predicted.change_std or 0.0)
    return after.low - spread <= predicted.change <= after.high + spread
