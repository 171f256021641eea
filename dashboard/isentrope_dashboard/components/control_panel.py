"""The form that pushes a control, and what became of the last push."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import dash_mantine_components as dmc
from dash import dcc, html

from isentrope_dashboard import ids
from isentrope_dashboard.components.edit_mark import marked
from isentrope_dashboard.components.hold_fields import hold_field_props, hold_fields, hold_running
from isentrope_dashboard.components.panel import icon, panel
from isentrope_dashboard.components.parameter_fields import parameter_fields
from isentrope_dashboard.components.unread import or_unread
from isentrope_dashboard.components.what_if import what_if_block
from isentrope_dashboard.control_changes import describe, previous_in_force
from isentrope_dashboard.controls import ControlItem, ControlState, ControlValues
from isentrope_dashboard.formatting import MISSING, count, method, method_label, scope, threshold
from isentrope_dashboard.method_forms import MethodForm
from isentrope_dashboard.records import RunSummary
from isentrope_wire.control import Scope
from isentrope_wire.methods import METHODS

SLIDER_MAXIMUM = 5.0
DEFAULT_THRESHOLD = 1.0
_STAGES = ("pending", "delivered", "applied")
_REACHED = {"PENDING": 0, "DELIVERED": 1}
_ENDINGS = {
    "APPLIED": ("applied", "teal"),
    "PARTIAL": ("partial", "orange"),
    "REJECTED": ("rejected", "red"),
    "EXPIRED": ("expired", "gray"),
    "SUPERSEDED": ("superseded", "gray"),
}


def control_panel(forms: Sequence[MethodForm]) -> dmc.Card:
    """The panel without values.

    Args:
        forms: the methods that can be chosen, for the fields of their parameters.
    """
    body = dmc.Stack(
        [
            dcc.Store(id=ids.CONTROL),
            dcc.Store(id=ids.CONTROL_BASE),
            marked(_choice(ids.METHOD, "Method", ids.METHOD_RUNNING), "method", "Method"),
            marked(_threshold_row(ids.MU_LOW, "Lower threshold µ₋", "below"), "mu_low", "Lower threshold µ₋"),
            marked(_threshold_row(ids.MU_HIGH, "Upper threshold µ₊", "above"), "mu_high", "Upper threshold µ₊"),
            marked(_choice(ids.SCOPE, "Scope", ids.SCOPE_RUNNING, _scopes()), "scope", "Scope"),
            or_unread(ids.METHOD_FORMS, parameter_fields(forms)),
            hold_fields(),
            what_if_block(),
            dmc.Text("", id=ids.FORESEEN, size="xs", c="orange", className="control-hint"),
            dmc.TextInput(id=ids.REASON, label="Reason", placeholder="Why, for the history", size="sm"),
            dmc.Text("", id=ids.CONTROL_HINT, size="xs", c="dimmed", className="control-hint"),
            dmc.Group(
                [
                    dmc.Button(
                        "Push to trainer", id=ids.PUSH, leftSection=icon("send", 14), disabled=True, style={"flex": 1}
                    ),
                    dmc.Button("Reset", id=ids.RESET, variant="default", disabled=True),
                ],
                gap="xs",
            ),
            or_unread(ids.CONTROL_PROGRESS, html.Div([], id=ids.CONTROL_PROGRESS, **{"aria-live": "polite"})),
            or_unread(ids.DEAD_KNOBS, dmc.Text("", id=ids.DEAD_KNOBS, size="xs", c="orange", className="control-hint")),
        ],
        gap="sm",
    )
    badge = dmc.Badge("–", id=ids.CONTROL_BADGE, variant="light", color="gray", size="sm", radius="sm", tt="none")
    return panel("Controls", "Applied by the trainer at the next step boundary", body, aside=badge)


def _scopes() -> list[dict[str, str]]:
    return [{"value": str(scope), "label": scope.label} for scope in Scope]


def method_props(run: RunSummary) -> dict[str, dict[str, Any]]:
    """Only what the run's probe can carry out can be chosen."""
    known = [name for name in METHODS if name in run.methods]
    unknown = [name for name in run.methods if name not in METHODS]
    choices = [{"value": name, "label": method_label(name)} for name in known + unknown]
    return {ids.METHOD: {"data": choices}, **hold_field_props(run)}


def control_props(state: ControlState | None, history: list[ControlItem]) -> dict[str, dict[str, Any]]:
    """Component id -> properties that follow the control; the form itself follows in the browser, where edits live."""
    if state is None:
        return {ids.CONTROL: {"data": None}, ids.CONTROL_PROGRESS: {"children": []}}
    return {
        ids.CONTROL: {
            "data": {
                "etag": state.etag,
                "version": state.desired.version,
                "author": state.desired.author,
                "pending": not state.desired.terminal,
                "reference": state.reference.to_json(),
                "in_force": None if state.in_force is None else state.in_force.to_json(),
            }
        },
        **_running_props(state.in_force),
        ids.CONTROL_PROGRESS: {
            "children": control_progress(state.desired, before=previous_in_force(state.desired, history))
        },
    }


def dead_knobs_props(reasons: str) -> dict[str, dict[str, Any]]:
    """Below the push: what of the running control does nothing, and why."""
    return {ids.DEAD_KNOBS: {"children": f"Can't act: {reasons}" if reasons else ""}}


def _running_props(running: ControlValues | None) -> dict[str, dict[str, Any]]:
    shown = {
        ids.METHOD_RUNNING: running and method(running.method),
        ids.SCOPE_RUNNING: running and scope(running.scope),
        ids.threshold(ids.MU_LOW, "running"): running and threshold(running.mu_low),
        ids.threshold(ids.MU_HIGH, "running"): running and threshold(running.mu_high),
        ids.HOLD_RUNNING: running and hold_running(running.hold),
    }
    return {component_id: {"children": text or MISSING} for component_id, text in shown.items()}


def control_progress(item: ControlItem, before: ControlValues | None) -> html.Div:
    """pending → delivered → applied at step s, or how else it ended."""
    ending, color = _ENDINGS.get(item.state, ("applied", "iris"))
    reached = _REACHED.get(item.state, 2)
    segments, labels = [], []
    for index, stage in enumerate((*_STAGES[:2], ending)):
        state = ("on" if index <= reached else "") + (" run" if index == reached and not item.terminal else "")
        segments.append(
            html.Div(className=f"segment {state}", style={"--segment": f"var(--mantine-color-{color}-filled)"})
        )
        labels.append(html.Span(stage, className="on" if index <= reached else ""))
    what = describe(item.values, before)
    head = dmc.Group(
        [
            dmc.Group([html.Span(f"v{item.version}", className="mono"), dmc.Text(what, size="xs")], gap=8),
            dmc.Text(outcome_text(item), size="xs", c="dimmed", className="num"),
        ],
        justify="space-between",
    )
    return html.Div(
        [head, html.Div(segments, className="segments"), html.Div(labels, className="segment-labels")],
        className="control-progress",
        **{"data-state": item.state, "data-version": str(item.version)},
    )


def outcome_text(item: ControlItem) -> str:
    """One phrase that says where a control version is."""
    if item.version == 0:
        return "in force since the start"
    why = ": ".join(part for part in (item.code, item.message) if part)
    match item.state:
        case "APPLIED":
            return f"applied at step {count(item.applied_step)}"
        case "PARTIAL":
            return f"applied by some ranks at step {count(item.applied_step)}"
        case "REJECTED":
            return f"rejected ({why})" if why else "rejected"
        case "EXPIRED":
            return f"expired ({why})" if why else "expired before the trainer read it"
        case "SUPERSEDED":
            return "superseded by a later version"
        case "DELIVERED":
            return "delivered, waiting for the next step"
    return "pending, waiting for the probe"


def _running(component_id: str) -> dmc.Text:
    return dmc.Text(["running with ", html.Span("–", id=component_id, className="num")], size="xs", c="dimmed")


def _choice(component_id: str, label: str, running_id: str, data: list[dict[str, str]] | None = None) -> html.Div:
    head = dmc.Group([dmc.Text(label, size="sm", fw=500), _running(running_id)], justify="space-between")
    return html.Div([head, dmc.Select(id=component_id, data=data or [], mt=4, **{"aria-label": label})])


def _threshold_row(side: str, label: str, beyond: str) -> html.Div:
    switch = dmc.Switch(
        id=ids.threshold(side, "switch"), checked=False, size="xs", label=label, className="threshold-switch"
    )
    slider = dmc.Slider(
        id=ids.threshold(side, "slider"),
        value=DEFAULT_THRESHOLD,
        min=0,
        max=SLIDER_MAXIMUM,
        step=0.05,
        size="sm",
        thumbSize=16,
        label=None,
        updatemode="drag",
        disabled=True,
        style={"flex": 1},
        thumbLabel=f"{label} slider",
    )
    number_input = dmc.NumberInput(
        id=ids.threshold(side, "number"),
        value=DEFAULT_THRESHOLD,
        clampBehavior="none",  # no minimum: a number below 0 is shown as an error, not turned into 0 unasked
        step=0.05,
        decimalScale=2,
        fixedDecimalScale=True,
        w=84,
        size="xs",
        disabled=True,
        **{"aria-label": f"{label} value, in standard deviations"},
    )
    return html.Div(
        [
            dmc.Group([switch, _running(ids.threshold(side, "running"))], justify="space-between"),
            dmc.Group([slider, number_input], gap="md", wrap="nowrap", mt=6),
            dmc.Text(f"Clips tokens whose score lies µ·σ {beyond} the centre or beyond", size="xs", c="dimmed", mt=2),
        ]
    )
