"""Under the thresholds: what they would have done to the newest step."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import dash_mantine_components as dmc
from dash import dcc, html

from isentrope_dashboard import ids
from isentrope_dashboard.components.panel import chart
from isentrope_dashboard.figures import what_if
from isentrope_dashboard.figures.what_if import change_of
from isentrope_dashboard.formatting import change, count, number, parameter, percent, threshold
from isentrope_dashboard.hold_preview import HoldPreview, Steering
from isentrope_wire.control import Control
from isentrope_wire.control_answers import WhatIfAnswer
from isentrope_wire.dead_knobs import StepEvidence, dead_knobs
from isentrope_wire.methods import idle_parameters
from isentrope_wire.metrics import (
    CLIP_FRACTION,
    CLIP_FRACTION_NEGATIVE,
    CLIP_FRACTION_POSITIVE,
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


def hold_reading(expected: HoldPreview) -> list[Any]:
    """What a controller would have to do to bring the entropy as far towards the target as one step may."""
    by = expected.steering
    distance = by.standing - expected.target
    where = f"{number(abs(distance))} nats {'above' if distance > 0 else 'below'} the target"
    going = [" would come to rest at ", _strong(number(by.standing)), ", "] if by.by_controller else [" is "]
    present = html.Span(["H ", _strong(number(expected.entropy)), *going, where])
    wanted = html.Span(["at most ", _strong(f"{change(expected.correction)} nats"), " in one step"])
    return [present, wanted, html.Span(_outcome(expected)), html.Span(_by_whose_numbers(by))]


def why_no_preview(by: Steering) -> str:
    """Why a hold has no preview: no gain to go by."""
    if by.by_controller:
        return "The controller's gain (hold/gain) is not above 0: what holding it would take can't be predicted."
    why = "The gain is not known yet" if by.gain is None else "The gain of the prediction (entropy/gain) is not above 0"
    return f"{why}: what holding it would take can't be predicted."


def _by_whose_numbers(by: Steering) -> str:
    if by.by_controller:
        return f"By the controller's own gain {number(by.gain)} and drift {change(by.drift)} nats a step."
    return f"By entropy/gain {number(by.gain)}, without drift: the controller's own are known once it holds."


def _outcome(expected: HoldPreview) -> list[Any]:
    unclipped = f"Step {count(expected.step)} with nothing clipped: ΔH {change(expected.unclipped_change)}"
    moved = "raise" if expected.correction > expected.unclipped_change else "lower"
    match expected.outcome:
        case "there":
            return [f"{unclipped}. It is at the target: only what keeps it there would be clipped."]
        case "resting":
            return [f"{unclipped}: it comes by itself, little or nothing would be clipped."]
        case "side":
            return [f"{unclipped}; clipping would have to {moved} that, and the side does not allow it."]
        case "limit":
            made = f"ΔH {change(expected.change)}, clips {percent(expected.clip_fraction, 2)}"
            return [f"{unclipped}. Not even µ {threshold(expected.mu)} is enough ({made}): its limit."]
    takes = f" does it: ΔH {change(expected.change)}, clips {percent(expected.clip_fraction, 2)}"
    return [f"{unclipped}; ", _strong(f"µ {threshold(expected.mu)}"), takes]


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
