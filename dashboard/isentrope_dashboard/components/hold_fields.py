"""The part of the form that asks for an entropy to be held."""

from __future__ import annotations

from typing import Any

import dash_mantine_components as dmc
from dash import html

from isentrope_dashboard import ids
from isentrope_dashboard.components.edit_mark import marked
from isentrope_dashboard.controls import HoldValues
from isentrope_dashboard.formatting import number
from isentrope_dashboard.hold_preview import DEFAULT_MU_MAX, DEFAULT_MU_MIN, DEFAULT_SHARE
from isentrope_dashboard.records import RunSummary

CAPABILITY = "hold"
SIDES = {"both": "Raise and lower", "raise": "Only raise it", "lower": "Only lower it"}


def hold_fields() -> html.Div:
    """A switch, and the fields that it shows."""
    switch = dmc.Switch(
        id=ids.HOLD_SWITCH, checked=False, size="xs", label="Hold an entropy", className="threshold-switch"
    )
    running = dmc.Text(["running with ", html.Span("–", id=ids.HOLD_RUNNING, className="num")], size="xs", c="dimmed")
    fields = html.Div(
        [
            _number(ids.HOLD_TARGET, "target_entropy", "Target entropy", "nats", "needed"),
            _number(
                ids.HOLD_CHANGE,
                "max_change_per_step",
                "Largest change a step",
                "nats",
                f"{DEFAULT_SHARE:.0%} of the target",
            ),
            _number(ids.HOLD_MU_MIN, "mu_min", "µ min", "σ", f"{DEFAULT_MU_MIN:g}"),
            _number(ids.HOLD_MU_MAX, "mu_max", "µ max", "σ", f"{DEFAULT_MU_MAX:g}"),
            marked(_side(), "hold.side", "Side", wide=True),
            dmc.Text(
                "The probe moves both thresholds from step to step; method and thresholds above are in force while it "
                "can't.",
                size="xs",
                c="dimmed",
                className="wide",
            ),
        ],
        id=ids.HOLD_FIELDS,
        className="hold-fields",
        style={"display": "none"},
    )
    head = marked(dmc.Group([switch, running], justify="space-between"), "hold", "Hold an entropy")
    return html.Div([head, fields], id=ids.HOLD, className="hold")


def hold_field_props(run: RunSummary) -> dict[str, dict[str, Any]]:
    """Only a probe that can hold an entropy is asked to."""
    return {ids.HOLD: {"style": {} if CAPABILITY in run.capabilities else {"display": "none"}}}


def hold_running(hold: HoldValues | None) -> str:
    """What is in force, in a word."""
    return "off" if hold is None else f"{number(hold.target_entropy, 4)} nats"


def _side() -> Any:
    return dmc.Select(
        id=ids.HOLD_SIDE,
        label="Side",
        data=[{"value": value, "label": label} for value, label in SIDES.items()],
        value="both",
        size="xs",
        allowDeselect=False,
    )


def _number(component_id: str, name: str, label: str, unit: str, default: str) -> Any:
    # Not a NumberInput: it would round what is in force.
    entry = dmc.TextInput(id=component_id, label=f"{label}, {unit}", placeholder=default, value="", size="xs")
    return marked(entry, f"hold.{name}", label)
