"""What is known of a control before it is pushed: knobs that could not act, and what a hold would do next."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

from isentrope_dashboard.formatting import change, count, number, parameter, percent, threshold
from isentrope_wire.control import Control
from isentrope_wire.control_answers import WhatIfAnswer
from isentrope_wire.dead_knobs import StepEvidence, dead_knobs
from isentrope_wire.hold_decision import (
    COMPARED_STEPS,
    Action,
    Calibrated,
    EntropyEstimate,
    HoldState,
    HoldStatus,
    Measured,
    clipping_method,
    decide,
)
from isentrope_wire.methods import idle_parameters
from isentrope_wire.metrics import (
    CLIP_FRACTION,
    CLIP_FRACTION_NEGATIVE,
    CLIP_FRACTION_POSITIVE,
    ENTROPY_PREDICTION_R2,
    ENTROPY_PREDICTION_SIGN_AGREEMENT,
    HOLD_DRIFT,
    HOLD_GAIN,
    HOLD_RESTING_POINT,
    RATIO_MEAN,
    SCORE_DISCRIMINATOR_MEAN,
    SCORE_DISCRIMINATOR_STD,
    SCORE_VOCAB_CENTERED_STD,
    TOKEN_COUNT,
    TOKEN_EFFECTIVE_FRACTION,
)
from isentrope_wire.what_if import what_if

_SLEWS = 20
"""Steps after which a threshold has come from any score to any other."""
_WORDS: Mapping[HoldStatus, str] = {
    HoldStatus.HOLDING: "would hold it",
    HoldStatus.SLEWING: "would move its threshold there",
    HoldStatus.LIMIT: "would clip as hard as µ min or the share limit allows, which is too little",
    HoldStatus.APPROACHING: "would clip nothing: the entropy moves towards the target",
    HoldStatus.RESTING: "would clip nothing: none is needed",
    HoldStatus.SIDE: "would clip nothing: only the side that is not allowed would help",
    HoldStatus.FALLBACK: "can't hold it now",
}


def cap_of(control: Control) -> float | None:
    """The share of tokens that may be clipped; None: all."""
    return None if control.value("max_fraction") is None else control.number("max_fraction")


def measured_step(
    newest: Mapping[str, float], entropy: float, found: WhatIfAnswer, early_level: float | None, highest: float
) -> Measured:
    """The newest step as the probe's decision takes it.

    The probe's own gain, drift and resting point are used where it reported them, which it does while it holds; else the
    calibration's gain, with no drift.

    Args:
        newest: the step's metrics.
        entropy: its mean entropy, nats.
        found: the step's what-if answer, with its sums.
        early_level: of the run's entropy, nats; None: not known.
        highest: the highest mean entropy of the run so far, nats.
    """
    held = HOLD_GAIN in newest
    agreement = newest.get(ENTROPY_PREDICTION_SIGN_AGREEMENT)
    assert found.sums is not None, "asked for with sums"
    return Measured(
        step=0,
        run_step=found.step,
        entropy=EntropyEstimate(
            mean_entropy=entropy,
            gain=newest[HOLD_GAIN] if held else found.gain,
            to_come=newest.get(HOLD_RESTING_POINT, entropy) - entropy if held else 0.0,
            drift=newest.get(HOLD_DRIFT, 0.0) if held else 0.0,
        ),
        calibrated=Calibrated(
            r2=newest.get(ENTROPY_PREDICTION_R2),
            sign_agreement=agreement,
            compared_steps=0 if agreement is None else COMPARED_STEPS,
        ),
        what_if=found.sums,
        early_level=early_level,
        highest_entropy=highest,
    )


def expected_action(wanted: Control, measured: Measured, *, held: bool) -> Action:
    """What the probe would decide, once its threshold has moved as far as it is going to.

    Args:
        wanted: the form's control, with its hold.
        measured: the newest step.
        held: whether an entropy is held now: then the probe goes on with less trust than it begins with.
    """
    assert wanted.held is not None, "asked for a hold"
    state = HoldState(acting=held)
    for _ in range(_SLEWS):
        before = state
        state, action = decide(
            wanted.held,
            replace(before, plans=()),
            measured,
            step=1,
            method=clipping_method(wanted),
            max_fraction=cap_of(wanted),
            shrink_denominator=wanted.value("denominator") == "shrink",
        )
        if state.mu == before.mu:
            break
    return action


def hold_in_words(wanted: Control, measured: Measured, action: Action) -> str:
    """What the probe would decide for a held entropy, in one sentence."""
    words = f"At step {count(measured.run_step)} the hold {_WORDS[action.status]}"
    if action.target is not None and action.status != HoldStatus.FALLBACK:
        words += f" (target {number(action.target)} nats, now {number(measured.entropy.mean_entropy)})"
    if action.mu is not None:
        clipped = what_if(measured.what_if, action.mu, action.mu, action.scope, clipping_method(wanted))
        words += f": µ {threshold(action.mu)}, {action.scope}, clips {percent(clipped.clip_fraction)}"
        if measured.entropy.gain is not None:
            moved = measured.entropy.gain * clipped.unit_predicted_change + measured.entropy.drift
            words += f", ΔH {change(moved)} nats"
    return f"{words}. {action.reason}".strip()


def dead_before_push(wanted: Control, newest: Mapping[str, float], found: WhatIfAnswer | None) -> list[str]:
    """One sentence for each knob that would do nothing, or less than its number.

    The probe checks the active control with the same `dead_knobs`, from the sums of a step. Here they are read from what
    the newest step reported; what it did not report is taken to be no obstacle.

    Args:
        wanted: the form's control.
        newest: the newest step's metrics.
        found: what its thresholds would have done, where that is known.
    """
    idle = list(idle_parameters(wanted.method, wanted.parameters))
    dead = [*dead_knobs(wanted, _evidence(newest))] if TOKEN_COUNT in newest else idle
    return [*dead, *([] if found is None else _by_what_if(wanted, found))]


def _evidence(newest: Mapping[str, float]) -> StepEvidence:
    tokens = round(newest[TOKEN_COUNT])
    acts = newest.get(TOKEN_EFFECTIVE_FRACTION) != 0
    known = CLIP_FRACTION in newest
    ratio = newest.get(RATIO_MEAN)
    return StepEvidence(
        tokens=tokens,
        positive=int(acts and (not known or CLIP_FRACTION_POSITIVE in newest)),
        negative=int(acts and (not known or CLIP_FRACTION_NEGATIVE in newest)),
        candidates=tokens,
        spared=0,
        decreasing=1,
        increasing=1,
        discriminator_mean=newest.get(SCORE_DISCRIMINATOR_MEAN, 0.0),
        discriminator_std=newest.get(SCORE_DISCRIMINATOR_STD, 0.0),
        vocab_centered_std=newest.get(SCORE_VOCAB_CENTERED_STD, 0.0),
        largest_entropy=math.inf,
        largest_expected_score=math.inf,
        ratio_spread=None if ratio is None else abs(ratio - 1),
    )


def _by_what_if(wanted: Control, found: WhatIfAnswer) -> Iterator[str]:
    if found.capped:
        yield (
            f"max fraction {parameter(wanted.parameters.get('max_fraction'))} binds: more tokens lie beyond the "
            "thresholds, and moving µ changes nothing."
        )
    elif found.clip_fraction == 0 and (found.mu_low is not None or found.mu_high is not None):
        yield "No token of these steps lies beyond the thresholds."
