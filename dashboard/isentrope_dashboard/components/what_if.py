"""Under the thresholds: what the newest step would have been with them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import dash_mantine_components as dmc
from dash import dcc, html

from isentrope_dashboard import ids
from isentrope_dashboard.components.panel import chart
from isentrope_dashboard.figures import what_if
from isentrope_dashboard.formatting import change, count, number, percent, threshold
from isentrope_dashboard.hold_preview import HoldPreview, Steering
from isentrope_dashboard.predictions import WhatIf

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


def reading(found: WhatIf, beside: Sequence[str] = ()) -> list[Any]:
    """The answer in words: what would have been clipped, and what the entropy was then predicted to do.

    Args:
        beside: parameters that are set and play no part in the answer.
    """
    clipped = [html.Span(percent(found.clip_fraction, 2), className="strong")]
    if found.clip_fraction_bound:
        clipped.append(f" ± {percent(found.clip_fraction_bound, 2)}")
    unit = "nats" if found.gain is not None else "nats per unit gain"
    changed = [html.Span(change(found.change), className="strong")]
    if found.change_bound:
        changed.append(f" ± {change(found.change_bound).lstrip('+')}")
    said = [
        html.Span([f"Step {count(found.step)} would clip ", *clipped, " of its tokens"]),
        html.Span(["ΔH ", *changed, f" {unit}, {change(found.unclipped_change)} with nothing clipped"]),
    ]
    if beside:
        said.append(html.Span(f"Not counted here: {', '.join(beside)}"))
    return said


def hold_reading(expected: HoldPreview) -> list[Any]:
    """What a controller would have to do to bring the entropy as far towards the target as one step may."""
    by = expected.steering
    distance = by.standing - expected.target
    where = f"{number(abs(distance))} nats {'above' if distance > 0 else 'below'} the target"
    going = [" would come to rest at ", _strong(number(by.standing)), ", "] if by.by_controller else [" stands "]
    stands = html.Span(["H ", _strong(number(expected.entropy)), *going, where])
    wanted = html.Span(["at most ", _strong(f"{change(expected.correction)} nats"), " in one step"])
    return [stands, wanted, html.Span(_outcome(expected)), html.Span(_by_whose_numbers(by))]


def why_nothing_is_foretold(by: Steering) -> str:
    """Where no gain can be steered by."""
    if by.by_controller:
        return "The controller's gain (hold/gain) is not above 0: what holding it would take can't be foretold."
    why = "The gain is not known yet" if by.gain is None else "The gain of the prediction (entropy/gain) is not above 0"
    return f"{why}: what holding it would take can't be foretold."


def _by_whose_numbers(by: Steering) -> str:
    if by.by_controller:
        return f"By the controller's own gain {number(by.gain)} and drift {change(by.drift)} nats a step."
    return f"By entropy/gain {number(by.gain)}, without drift: the controller's own are known once it holds."


def _outcome(expected: HoldPreview) -> list[Any]:
    unclipped = f"Step {count(expected.step)} with nothing clipped: ΔH {change(expected.unclipped_change)}"
    moved = "raise" if expected.correction > expected.unclipped_change else "lower"
    match expected.outcome:
        case "there":
            return [f"{unclipped}. It stands at the target: only what keeps it there would be clipped."]
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
