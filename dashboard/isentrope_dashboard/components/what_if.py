"""Under the thresholds: what they would have done to the newest step."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import dash_mantine_components as dmc
from dash import dcc, html

from isentrope_dashboard import ids
from isentrope_dashboard.components.panel import chart
from isentrope_dashboard.figures import what_if
from isentrope_dashboard.figures.held_entropy import WORDS as HOLD_WORDS
from isentrope_dashboard.figures.what_if import change_of
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

EVIDENCE = (
    SCORE_DISCRIMINATOR_MEAN,
    SCORE_DISCRIMINATOR_STD,
    SCORE_VOCAB_CENTERED_STD,
    RATIO_MEAN,
    TOKEN_COUNT,
    TOKEN_EFFECTIVE_FRACTION,
    CLIP_FRACTION,
    CLIP_FRACTION_POSITIVE,
    CLIP_FRACTION_NEGATIVE,
)
"""The metrics of the newest step from which `dead_before_push` is read."""
HOLD_EVIDENCE = (
    ENTROPY_PREDICTION_R2,
    ENTROPY_PREDICTION_SIGN_AGREEMENT,
    HOLD_GAIN,
    HOLD_DRIFT,
    HOLD_RESTING_POINT,
)
"""Those from which `measured_step` is made."""
SHOWN: dict[str, Any] = {}
HIDDEN: dict[str, Any] = {"height": 0, "overflow": "hidden", "visibility": "hidden"}
"""Not `display: none`: a chart drawn where nothing is laid out has no size."""


def what_if_block() -> html.Div:
    """The block without values; the chart comes with the first answer."""
    graph = html.Div(
        chart(
            ids.WHAT_IF_GRAPH,
            what_if.HEIGHT,
            "Clip fraction and predicted change against the thresholds",
            grows=False,
        ),
        id=ids.WHAT_IF,
        style=HIDDEN,
    )
    reading = dmc.Text(id=ids.WHAT_IF_READING, size="xs", c="dimmed", className="what-if-reading num", mt=2)
    stores = [dcc.Store(id=ids.WHAT_IF_QUESTION), dcc.Store(id=ids.WHAT_IF_STEP)]
    return html.Div(
        [_heading(), html.Div(reading, **{"aria-live": "polite"}), graph, *stores],
        className="what-if",
    )


def _heading() -> dmc.Group:
    aside = dmc.Text("of the newest step", size="xs", c="dimmed")
    return dmc.Group([dmc.Text("What if", size="sm", fw=500), aside], justify="space-between")


def reading(found: WhatIfAnswer, beside: Sequence[str] = ()) -> list[Any]:
    """The answer in words: the share that would have been clipped, and the entropy change predicted then.

    Args:
        found: The answer.
        beside: Parameters that are set but not considered in the answer.
    """
    clipped = [html.Span(percent(found.clip_fraction, 2), className="strong")]
    if found.clip_fraction_bound:
        clipped.append(f" ± {percent(found.clip_fraction_bound, 2)}")
    unit = "nats" if found.gain is not None else "nats per unit gain"
    changed = [html.Span(change(change_of(found)), className="strong")]
    per_unit = 1.0 if found.gain is None else found.gain
    if bound := abs(per_unit) * found.unit_predicted_change_bound:
        changed.append(f" ± {change(bound).lstrip('+')}")
    words = [
        html.Span([f"Step {count(found.step)} would clip ", *clipped, " of its tokens"]),
        html.Span(
            [
                "ΔH ",
                *changed,
                f" {unit}, {change(per_unit * found.unclipped_unit_predicted_change)} with nothing clipped",
            ]
        ),
    ]
    if beside:
        words.append(html.Span(f"Not considered here: {', '.join(beside)}"))
    return words


def measured_step(
    newest: Mapping[str, float], entropy: float, found: WhatIfAnswer, early_level: float | None, highest: float
) -> Measured:
    """The newest step as the probe's decision takes it.

    The probe's own gain, drift and resting point are used where it reported them, which it does while it holds; else the
    calibration's gain, with no drift.

    Args:
        newest: Of the newest step, those of HOLD_EVIDENCE that were measured.
        entropy: Its mean entropy, nats.
        found: The newest step with its sums.
        early_level: Of the run's entropy, nats; None: not known.
        highest: The highest mean entropy of the run so far, nats.
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
        wanted: The form's control, with its hold.
        measured: The newest step.
        held: Whether an entropy is held now: then the probe goes on with less trust than it begins with.
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


_SLEWS = 20
"""Steps after which a threshold has come from any score to any other."""


def cap_of(control: Control) -> float | None:
    """The share of tokens that may be clipped; None: all."""
    return None if control.value("max_fraction") is None else control.number("max_fraction")


def hold_reading(measured: Measured, action: Action, found: WhatIfAnswer, *, held: bool) -> list[Any]:
    """What the probe would decide for a held entropy, in words.

    Args:
        measured: The newest step.
        action: What would be decided.
        found: The newest step under the thresholds of `action`.
        held: Whether the numbers of `measured` are the probe's own.
    """
    by = measured.entropy
    title, meaning = HOLD_WORDS[action.status]
    lines = [[_strong(title), f". {action.reason or meaning}"]]
    if action.target is not None:
        distance = by.resting_point - action.target
        where = f"{number(abs(distance))} nats {'above' if distance > 0 else 'below'} the target"
        going = [" would come to rest at ", _strong(number(by.resting_point)), ", "] if held else [" is "]
        lines.insert(0, ["H ", _strong(number(by.mean_entropy)), *going, where])
    if by.gain is not None:
        clipped = "" if action.mu is None else f"; {change(by.gain * found.unit_predicted_change + by.drift)} with "
        chosen = (
            []
            if action.mu is None
            else [_strong(f"µ {threshold(action.mu)}"), f", {action.scope}: clips {percent(found.clip_fraction, 2)}"]
        )
        unclipped = by.gain * measured.unclipped_prediction + by.drift
        lines.append([f"Step {count(found.step)} with nothing clipped: ΔH {change(unclipped)}{clipped}", *chosen])
        own = f"By the probe's own gain {number(by.gain)} and drift {change(by.drift)} nats a step."
        other = f"By entropy/gain {number(by.gain)}, without drift: the probe's own are known once it holds."
        lines.append([own if held else other])
    return [html.Span(line) for line in lines]


def _strong(text: str) -> html.Span:
    return html.Span(text, className="strong")


def dead_before_push(wanted: Control, newest: Mapping[str, float], found: WhatIfAnswer | None) -> list[str]:
    """One sentence for each knob that would do nothing, or less than its number.

    The probe checks the active control with the same `dead_knobs`, from the sums of a step. Here they are read from what
    the newest step reported; what it did not report is taken to be no obstacle.

    Args:
        wanted: The form's control.
        newest: Of the newest step, those of EVIDENCE that were measured.
        found: What its thresholds would have done to that step, where that is known.
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
            f"max_fraction {parameter(wanted.parameters.get('max_fraction'))} would bind: it clips "
            f"{percent(found.clip_fraction, 2)} of step {count(found.step)}'s tokens, and more lie beyond the "
            "thresholds. Moving µ there changes nothing."
        )
    elif found.clip_fraction == 0 and (found.mu_low is not None or found.mu_high is not None):
        yield f"No token of step {count(found.step)} lies beyond these thresholds."
