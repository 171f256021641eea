"""How a held entropy stands: in words above the entropy chart."""

from __future__ import annotations

from typing import Any

import dash_mantine_components as dmc
from dash import html

from isentrope_dashboard import ids
from isentrope_dashboard.formatting import number, percent, threshold
from isentrope_dashboard.holding import WORDS, Holding

_COLORS = {"holding": "teal", "slewing": "iris", "resting": "gray"}
"""By state; the others keep it from holding and are orange."""


def hold_facts() -> html.Div:
    """The place for them, empty while no entropy is held."""
    return html.Div([], id=ids.HOLD_FACTS, className="hold-facts num", **{"aria-live": "off"})


def hold_props(held: Holding | None) -> dict[str, dict[str, Any]]:
    """Component id -> properties."""
    return {ids.HOLD_FACTS: {"children": [] if held is None else _facts(held)}}


def _facts(held: Holding) -> list[Any]:
    word, meaning = WORDS.get(
        held.state, (held.state or "Held", "" if held.state else "No report says yet how it goes.")
    )
    badge = dmc.Badge(
        word,
        variant="light",
        color=_COLORS.get(held.state, "orange") if held.state else "gray",
        size="sm",
        radius="sm",
        tt="none",
        className="unshrinking",
    )
    reach = held.hold.max_change_per_step
    target = ["target ", _strong(f"{number(held.hold.target_entropy, 4)} nats")]
    facts = [html.Span([*target, "" if reach is None else f", at most ±{number(reach, 4)} a step"])]
    if held.state != "fallback":
        chosen = ["nothing clipped"] if held.mu is None else ["µ ", _strong(threshold(held.mu))]
        facts.append(html.Span(chosen))
    if held.distance is not None:
        steps = f"{held.distance_steps} step{'s' * (held.distance_steps > 1)}"
        facts.append(html.Span(["mean distance ", _strong(percent(held.distance)), f" of the target, last {steps}"]))
    return [html.Div([badge, *facts], className="quality"), html.Div(held.why or meaning)]


def _strong(text: str) -> html.Span:
    return html.Span(text, className="strong")
