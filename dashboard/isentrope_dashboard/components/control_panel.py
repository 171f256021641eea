"""The form that pushes a control: its fields with their marks, and the progress of the last push."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import dash_mantine_components as dmc
from dash import dcc, html

from isentrope_dashboard import ids
from isentrope_dashboard.components.load_errors import or_load_error
from isentrope_dashboard.components.panel import icon, panel
from isentrope_dashboard.components.what_if import what_if_block
from isentrope_dashboard.formatting import (
    MISSING,
    count,
    describe,
    method,
    parameter,
    previous_control,
    scope,
    threshold,
)
from isentrope_wire.answers import RunDetail
from isentrope_wire.control import LARGEST_CHANGE, TARGETS, Control, Hold, Scope
from isentrope_wire.control_answers import ControlVersion, RunControl
from isentrope_wire.methods import METHODS, Method, Parameter


def marked(field: Any, name: str, label: str, *, method: str = "", wide: bool = False) -> html.Div:
    """A field with its mark below it, hidden until the field was edited.

    Args:
        field: The input.
        name: Its name in the browser's script: `mu_low`, `hold.mu_min`, or the name of one of `method`'s parameters.
        label: The field's name on the page.
        method: The method whose parameter it is, if it is one.
        wide: Whether it takes the whole row.
    """
    back = dmc.Button(
        "Revert",
        id=ids.revert(method, name),
        variant="subtle",
        size="compact-xs",
        className="revert",
        **{"aria-label": f"Revert {label}"},
    )
    line = html.Div([html.Span("", id=ids.edit_note(method, name)), back], className="mark-line num")
    place = html.Div([field, line], id=ids.edit_mark(method, name), className="marked-field")
    return html.Div(place, className="wide") if wide else place


CAPABILITY = "hold"
_HOLD = Hold(target_entropy=1.0)
"""Its bounds are the defaults."""
SIDES = {"both": "Raise and lower", "raise": "Only raise it", "lower": "Only lower it"}


def hold_fields() -> html.Div:
    """A switch, and the fields that it shows."""
    switch = dmc.Switch(
        id=ids.HOLD_SWITCH, checked=False, size="xs", label="Hold an entropy", className="threshold-switch"
    )
    running = dmc.Text(["running with ", html.Span("–", id=ids.HOLD_RUNNING, className="num")], size="xs", c="dimmed")
    fields = html.Div(
        [
            _number(ids.HOLD_TARGET, "target", "Target entropy", "nats or %", "0.46, or 75% of the early level"),
            _number(
                ids.HOLD_CHANGE,
                "max_change_per_step",
                "Largest change a step",
                "nats",
                f"{LARGEST_CHANGE:.0%} of the distance",
            ),
            _number(ids.HOLD_MU_MIN, "mu_min", "µ min", "σ", f"{_HOLD.mu_min:g}"),
            _number(ids.HOLD_MU_MAX, "mu_max", "µ max", "σ", f"{_HOLD.mu_max:g}"),
            marked(_side(), "hold.side", "Side", wide=True),
            marked(_guard(), "hold.reward_guard", "Reward guard", wide=True),
            dmc.Text(
                "The probe moves both thresholds from step to step. While it can't, the method and thresholds above are "
                "active.",
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


def hold_field_props(run: RunDetail) -> dict[str, dict[str, Any]]:
    """Shown only where the run's probe can hold an entropy."""
    return {ids.HOLD: {"style": {} if CAPABILITY in run.capabilities else {"display": "none"}}}


def hold_running(hold: Hold | None) -> str:
    """The held entropy in a word."""
    return "off" if hold is None else hold.target_in_words


def _guard() -> Any:
    return dmc.Switch(
        id=ids.HOLD_GUARD, checked=True, size="xs", label="End it when the reward falls", className="threshold-switch"
    )


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
    # Not a NumberInput: it would round the active value.
    entry = dmc.TextInput(id=component_id, label=f"{label}, {unit}", placeholder=default, value="", size="xs")
    return marked(entry, f"hold.{name}", label)


HIDDEN = {"display": "none"}


def parameter_fields(forms: Sequence[Method]) -> html.Div:
    """One hidden group of fields a method, and their bounds and presets for the browser."""
    known = {method: {name: _bounds(field) for name, field in method.parameters.items()} for method in forms}
    presets = {method: {name: _preset(method, name) for name in method.presets} for method in forms}
    groups = [_group(method) for method in forms if method.parameters or method.presets]
    stores = [dcc.Store(id=ids.METHOD_FORMS, data=known), dcc.Store(id=ids.METHOD_PRESETS, data=presets)]
    return html.Div([*stores, *groups])


def _bounds(field: Parameter) -> dict[str, Any]:
    """The same for the form in the browser."""
    return {
        "kind": field.kind,
        "default": field.default,
        "range": field.range_in_words,
        "minimum": field.minimum,
        "minimumExcluded": field.minimum_excluded,
        "maximum": field.maximum,
    }


def _preset(method: Method, name: str) -> dict[str, object]:
    """The whole control that a preset sets."""
    return Control(method=method, parameters={"preset": name}).to_document()


def _group(method: Method) -> html.Div:
    return html.Div(
        [*_presets(method), *(_field(method, field) for field in method.parameters.values())],
        id=ids.parameters_of(method),
        className="parameters",
        style=HIDDEN,
    )


def _presets(method: Method) -> list[Any]:
    if not method.presets:
        return []
    buttons = [
        dmc.Button(
            name.capitalize(),
            id=ids.preset(method, name),
            variant="default",
            size="compact-xs",
            **{"aria-label": f"Fill in the preset {name}"},
        )
        for name in method.presets
    ]
    return [dmc.Group([dmc.Text("Fill in a preset", size="xs", c="dimmed"), *buttons], gap="xs")]


def _field(method: str, field: Parameter) -> Any:
    label = field.name.replace("_", " ")
    known: dict[str, Any] = {
        "id": ids.parameter(method, field.name),
        "label": label,
        "description": _description(field),
        "size": "xs",
        "value": parameter(field.default),
    }
    if field.choices:
        choice = dmc.Select(**known, data=list(field.choices), allowDeselect=False)
        return marked(choice, field.name, label, method=method)
    # Not a NumberInput: it can't show 1e-4 as it was typed.
    entry = dmc.TextInput(**known, placeholder="off" if field.default is None else parameter(field.default))
    return marked(entry, field.name, label, method=method)


def _description(field: Parameter) -> str:
    sense = field.sense[:1].upper() + field.sense[1:]
    bounds = "" if field.choices else f" Takes {field.range_in_words}."
    default = "Off when empty." if field.default is None else f"Default {parameter(field.default)}."
    return f"{sense}. {default}{bounds}"


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


def control_panel(forms: Sequence[Method]) -> dmc.Card:
    """The panel without values.

    Args:
        forms: The methods that can be chosen, for the fields of their parameters.
    """
    body = dmc.Stack(
        [
            dcc.Store(id=ids.CONTROL),
            dcc.Store(id=ids.CONTROL_BASE),
            marked(_choice(ids.METHOD, "Method", ids.METHOD_RUNNING), "method", "Method"),
            marked(_threshold_row(ids.MU_LOW, "Lower threshold µ₋", "below"), "mu_low", "Lower threshold µ₋"),
            marked(_threshold_row(ids.MU_HIGH, "Upper threshold µ₊", "above"), "mu_high", "Upper threshold µ₊"),
            marked(_choice(ids.SCOPE, "Scope", ids.SCOPE_RUNNING, _scopes()), "scope", "Scope"),
            parameter_fields(forms),
            hold_fields(),
            what_if_block(),
            dmc.Text("", id=ids.WOULD_BE_DEAD, size="xs", c="orange", className="control-hint"),
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
            html.Div([], id=ids.CONTROL_PROGRESS, **{"aria-live": "polite"}),
            or_load_error(
                ids.DEAD_KNOBS, dmc.Text("", id=ids.DEAD_KNOBS, size="xs", c="orange", className="control-hint")
            ),
        ],
        gap="sm",
    )
    badge = dmc.Badge("–", id=ids.CONTROL_BADGE, variant="light", color="gray", size="sm", radius="sm", tt="none")
    return panel("Controls", "Applied by the trainer at the next step boundary", body, aside=badge)


def _scopes() -> list[dict[str, str]]:
    return [{"value": str(scope), "label": scope.label} for scope in Scope]


def method_props(run: RunDetail) -> dict[str, dict[str, Any]]:
    """Only what the run's probe can carry out can be chosen."""
    choices = [{"value": name, "label": method.label} for name, method in METHODS.items() if name in run.methods]
    return {ids.METHOD: {"data": choices}, **hold_field_props(run)}


def control_props(state: RunControl | None, history: list[ControlVersion]) -> dict[str, dict[str, Any]]:
    """Component id -> properties that follow the control; the form itself follows in the browser, where edits live."""
    if state is None:
        return {ids.CONTROL: {"data": None}, ids.CONTROL_PROGRESS: {"children": []}}
    return {
        ids.CONTROL: {
            "data": {
                "version": state.version,
                "author": state.author,
                "pending": not state.state.is_final,
                "reference": form_document(reference(state)),
                "active": None if state.active is None else state.active.control.to_document(),
            }
        },
        **_running_props(None if state.active is None else state.active.control),
        ids.CONTROL_PROGRESS: {"children": control_progress(state, before=previous_control(state, history))},
    }


def form_document(control: Control) -> dict[str, object]:
    """The control's document as the form's fields take it: the target of a hold is one text."""
    document, hold = control.to_document(), control.held
    if hold is not None:
        given = {name: value for name, value in hold.to_document().items() if name not in TARGETS}
        document["hold"] = {"target": hold.target, **given}
    return document


def reference(state: RunControl) -> Control:
    """What the form compares itself with: the newest version while it is open, then the active one."""
    return state.active.control if state.state.is_final and state.active is not None else state.control


def dead_knobs_props(reasons: str) -> dict[str, dict[str, Any]]:
    """Below the push: the knobs of the active control that do nothing, and why."""
    return {ids.DEAD_KNOBS: {"children": f"Can't act: {reasons}" if reasons else ""}}


def _running_props(running: Control | None) -> dict[str, dict[str, Any]]:
    shown = {
        ids.METHOD_RUNNING: running and method(running.method),
        ids.SCOPE_RUNNING: running and scope(running.scope),
        ids.threshold(ids.MU_LOW, "running"): running and threshold(running.mu_low),
        ids.threshold(ids.MU_HIGH, "running"): running and threshold(running.mu_high),
        ids.HOLD_RUNNING: running and hold_running(running.held),
    }
    return {component_id: {"children": text or MISSING} for component_id, text in shown.items()}


def control_progress(item: ControlVersion, before: Control | None) -> html.Div:
    """pending → delivered → applied at step s, or how else it ended."""
    ending, color = _ENDINGS.get(item.state, ("applied", "iris"))
    reached = _REACHED.get(item.state, 2)
    segments, labels = [], []
    for index, stage in enumerate((*_STAGES[:2], ending)):
        state = ("on" if index <= reached else "") + (" run" if index == reached and not item.state.is_final else "")
        segments.append(
            html.Div(className=f"segment {state}", style={"--segment": f"var(--mantine-color-{color}-filled)"})
        )
        labels.append(html.Span(stage, className="on" if index <= reached else ""))
    what = describe(item.control, before)
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


def outcome_text(item: ControlVersion) -> str:
    """State of a control version in one phrase."""
    if item.version == 0:
        return "active since the start"
    why = ": ".join(part for part in (item.code, item.message) if part)
    match item.state:
        case "APPLIED":
            return f"applied at step {count(item.applied_step)}"
        case "PARTIAL":
            return f"applied by some ranks at step {count(item.applied_step)}"
        case "REJECTED":
            return f"rejected ({why})" if why else "rejected"
        case "EXPIRED":
            return f"expired ({why})" if why else "expired before a step boundary"
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
