"""The form that pushes a control: its fields read and checked, the push, and its conflicts.

What the form does without asking the server is in `assets/form.js` and `assets/form-marks.js`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dash import ALL, ClientsideFunction, Dash, Input, Output, State, no_update, set_props

from isentrope.client import calls
from isentrope.client.connection import ApiError, AsyncClient, ControlConflict
from isentrope_dashboard import ids
from isentrope_dashboard.access import Api
from isentrope_dashboard.formatting import describe
from isentrope_dashboard.ids import run_of_path
from isentrope_dashboard.pages.routing import notification
from isentrope_dashboard.pages.run import control_and_history_props
from isentrope_wire.control import Control
from isentrope_wire.control_answers import RunControl
from isentrope_wire.errors import ConfigurationError, IsentropeError
from isentrope_wire.methods import threshold_methods

FIELDS = (
    (ids.METHOD, "value"),
    (ids.SCOPE, "value"),
    (ids.threshold(ids.MU_LOW, "switch"), "checked"),
    (ids.threshold(ids.MU_LOW, "number"), "value"),
    (ids.threshold(ids.MU_HIGH, "switch"), "checked"),
    (ids.threshold(ids.MU_HIGH, "number"), "value"),
    (ids.HOLD_SWITCH, "checked"),
    (ids.HOLD_TARGET, "value"),
    (ids.HOLD_CHANGE, "value"),
    (ids.HOLD_MU_MIN, "value"),
    (ids.HOLD_MU_MAX, "value"),
    (ids.HOLD_SIDE, "value"),
    (ids.HOLD_GUARD, "checked"),
)
"""Component and property of every field but a method's own parameters, in the order of `NAMES` in `assets/form.js`."""
THRESHOLD_FIELDS = FIELDS[:6]
_PARAMETERS = ids.parameter(ALL, ALL)
_GROUPS = ids.parameters_of(ALL)
_PRESETS = ids.preset(ALL, ALL)
_MARKS, _NOTES, _REVERTS = ids.edit_mark(ALL, ALL), ids.edit_note(ALL, ALL), ids.revert(ALL, ALL)


def _function(name: str) -> ClientsideFunction:
    return ClientsideFunction("isentropeForm", name)


def register_form(app: Dash) -> None:
    """Register the clientside callbacks."""
    for side in (ids.MU_LOW, ids.MU_HIGH):
        _join_slider_and_number(app, side)
    _follow_control(app)
    _fill_in(app)
    _judge(app)
    _mark_edits(app)
    app.clientside_callback(
        _function("askWhatIf"),
        Output(ids.WHAT_IF_QUESTION, "storage_type"),
        *[Input(component, name) for component, name in FIELDS],
        Input(_PARAMETERS, "value"),
        State(ids.METHOD_FORMS, "data"),
        State(_PARAMETERS, "id"),
    )


def _join_slider_and_number(app: Dash, side: str) -> None:
    slider, number = ids.threshold(side, "slider"), ids.threshold(side, "number")
    app.clientside_callback(
        _function("joinSliderAndNumber"),
        Output(slider, "value"),
        Output(number, "value"),
        Input(slider, "value"),
        Input(number, "value"),
        State(slider, "max"),
        prevent_initial_call=True,
    )


def _follow_control(app: Dash) -> None:
    """Each field goes with the control until a person edits it."""
    app.clientside_callback(
        _function("followControl"),
        *[Output(component, name, allow_duplicate=True) for component, name in FIELDS],
        Output(_PARAMETERS, "value", allow_duplicate=True),
        Output(ids.CONTROL_BASE, "data"),
        Input(ids.CONTROL, "data"),
        Input(ids.RESET, "n_clicks"),
        State(ids.CONTROL_BASE, "data"),
        State(ids.METHOD_FORMS, "data"),
        State(_PARAMETERS, "id"),
        State(_PARAMETERS, "value"),
        *[State(component, name) for component, name in FIELDS],
        prevent_initial_call="initial_duplicate",
    )


def _fill_in(app: Dash) -> None:
    app.clientside_callback(
        _function("fillPreset"),
        *[Output(component, name, allow_duplicate=True) for component, name in THRESHOLD_FIELDS],
        Output(_PARAMETERS, "value", allow_duplicate=True),
        Input(_PRESETS, "n_clicks"),
        State(ids.METHOD_PRESETS, "data"),
        State(ids.METHOD_FORMS, "data"),
        State(_PARAMETERS, "id"),
        State(_PARAMETERS, "value"),
        State(ids.threshold(ids.MU_LOW, "number"), "value"),
        State(ids.threshold(ids.MU_HIGH, "number"), "value"),
        prevent_initial_call=True,
    )
    app.clientside_callback(
        _function("beginHold"),
        Output(ids.HOLD_FIELDS, "style"),
        Output(ids.HOLD_TARGET, "value"),
        Input(ids.HOLD_SWITCH, "checked"),
        State(ids.HOLD_TARGET, "value"),
        State(ids.WHAT_IF_STEP, "data"),
    )


def _judge(app: Dash) -> None:
    """How many changes, what is wrong, and what can be touched."""
    app.clientside_callback(
        _function("formState"),
        Output(ids.CONTROL_BADGE, "children"),
        Output(ids.CONTROL_BADGE, "color"),
        Output(ids.PUSH, "disabled"),
        Output(ids.RESET, "disabled"),
        Output(ids.CONTROL_HINT, "children"),
        Output(ids.CONTROL_HINT, "c"),
        Output(ids.threshold(ids.MU_LOW, "number"), "error"),
        Output(ids.threshold(ids.MU_HIGH, "number"), "error"),
        *[
            Output(ids.threshold(side, part), "disabled")
            for side in (ids.MU_LOW, ids.MU_HIGH)
            for part in ("switch", "slider", "number")
        ],
        *[Output(field, "error") for field in (ids.HOLD_TARGET, ids.HOLD_CHANGE, ids.HOLD_MU_MIN, ids.HOLD_MU_MAX)],
        Output(_PARAMETERS, "error"),
        Output(_GROUPS, "style"),
        *[Input(component, name) for component, name in FIELDS],
        Input(ids.CONTROL, "data"),
        Input(ids.CONTROL_BASE, "data"),
        Input(_PARAMETERS, "value"),
        State(ids.METHOD, "data"),
        State(ids.METHOD_FORMS, "data"),
        State(_PARAMETERS, "id"),
        State(_GROUPS, "id"),
    )


def _mark_edits(app: Dash) -> None:
    """Which fields were edited, which somebody else set meanwhile, and the way back for one of them."""
    app.clientside_callback(
        ClientsideFunction("isentropeMarks", "mark"),
        Output(_MARKS, "className"),
        Output(_NOTES, "children"),
        *[Input(component, name) for component, name in FIELDS],
        Input(ids.CONTROL_BASE, "data"),
        Input(_PARAMETERS, "value"),
        State(ids.METHOD, "data"),
        State(ids.METHOD_FORMS, "data"),
        State(_PARAMETERS, "id"),
        State(_MARKS, "id"),
    )
    app.clientside_callback(
        ClientsideFunction("isentropeMarks", "revert"),
        *[Output(component, name, allow_duplicate=True) for component, name in FIELDS],
        Output(_PARAMETERS, "value", allow_duplicate=True),
        Input(_REVERTS, "n_clicks"),
        State(ids.CONTROL_BASE, "data"),
        State(ids.METHOD_FORMS, "data"),
        State(_PARAMETERS, "id"),
        State(_PARAMETERS, "value"),
        *[State(component, name) for component, name in FIELDS],
        prevent_initial_call=True,
    )


class FormError(IsentropeError, ValueError):
    """A field has a value that can't be pushed; the message names what to enter."""


@dataclass(frozen=True, slots=True)
class Form:
    """The values of the fields, in their order: numbers, or the text of one that is half typed."""

    method: str
    scope: str
    low_on: bool = False
    low: object = None
    high_on: bool = False
    high: object = None
    hold_on: bool = False
    hold_target: object = None
    hold_change: object = None
    hold_mu_min: object = None
    hold_mu_max: object = None
    hold_side: str | None = None
    hold_guard: bool = True


def form_values(
    form: Form,
    reference: Mapping[str, Any],
    texts: Mapping[str, object] | None = None,
    parameter_forms: Mapping[str, Mapping[str, Any]] | None = None,
    reason: str = "",
) -> Control:
    """The control to push; thresholds only with a method that has them.

    Args:
        form: The values of the fields.
        reference: The control that the form started from: values without a field are taken from it.
        texts: The fields of the method's parameters, by name.
        parameter_forms: What each of them takes; None for a method without fields.
        reason: Kept in the history.

    Raises:
        FormError: A field that needs a number has none.
        ConfigurationError: No control can have these values.
    """
    if parameter_forms is None:
        parameters = unseen_parameters(form.method, reference)
    else:
        parameters = form_parameters(parameter_forms, texts or {})
    clips = form.method in threshold_methods()
    return Control.from_document(
        {
            "method": form.method,
            "mu_low": _threshold("lower", form.low) if clips and form.low_on else None,
            "mu_high": _threshold("upper", form.high) if clips and form.high_on else None,
            "scope": form.scope,
            "parameters": parameters,
            "hold": _hold(form) if form.hold_on else None,
            "reason": reason,
        }
    )


def form_parameters(forms: Mapping[str, Mapping[str, Any]], entered: Mapping[str, object]) -> dict[str, Any]:
    """The parameters in the fields of one method, by name; those at their default are not given.

    Args:
        forms: What each parameter takes, by its name.
        entered: The value of each field.

    Raises:
        FormError: A field that needs a number has none. The server checks its bounds.
    """
    values = {name: _parameter(name, forms[name], value) for name, value in entered.items() if name in forms}
    return {name: value for name, value in values.items() if value != forms[name]["default"]}


def unseen_parameters(method: str, reference: Mapping[str, Any]) -> dict[str, Any]:
    """Of a method the form has no fields for, those it started from: a push must not drop them."""
    return dict(reference.get("parameters") or {}) if reference.get("method") == method else {}


def _hold(form: Form) -> dict[str, object]:
    """The `hold` of a control document; a bound that is not entered has its default."""
    if form.hold_target is None or not str(form.hold_target).strip():
        raise FormError("The hold needs its target: nats such as 0.46, or a share of the early level such as 75%.")
    return {
        "target": form.hold_target,
        "max_change_per_step": _bound("The largest change per step", form.hold_change),
        "mu_min": _bound("µ min", form.hold_mu_min),
        "mu_max": _bound("µ max", form.hold_mu_max),
        "side": form.hold_side or "both",
        "reward_guard": form.hold_guard,
    }


def _bound(label: str, value: object) -> float | None:
    if value is None or not str(value).strip():
        return None
    number = _finite(value)
    if number is None:
        raise FormError(f"{label} must be a number, got {value!r:.40}.")
    return number


def _parameter(name: str, form: Mapping[str, Any], value: object) -> float | int | str | None:
    text = "" if value is None else str(value).strip()
    if form["kind"] == "choice":
        return text
    if not text and form["default"] is None:
        return None
    number = _finite(text)
    if number is None:
        raise FormError(f"{name} must be {form['range']}, got {text!r:.40}.")
    return int(number) if form["kind"] == "whole" and number == int(number) else number


def _threshold(side: str, value: object) -> float:
    number = _finite(value)
    if number is None or number < 0:
        raise FormError(
            f"The {side} threshold counts standard deviations and must be a number of at least 0, got {value!r:.40}. "
            f"Enter a number, or switch the threshold off."
        )
    return number


def _finite(value: object) -> float | None:
    try:
        number = float(value) if isinstance(value, int | float | str) else math.nan
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def register_push(app: Dash, api: Api) -> None:
    """Push the form's control when the button is pressed."""

    @app.callback(
        output=(
            Output(ids.NOTIFICATIONS, "sendNotifications", allow_duplicate=True),
            Output(ids.REASON, "value"),
        ),
        inputs={
            "clicks": Input(ids.PUSH, "n_clicks"),
            "path": State(ids.URL, "pathname"),
            # What the fields started from, not the newest: a control the form has not followed yet must be refused.
            "base": State(ids.CONTROL_BASE, "data"),
            "entered": [State(component, name) for component, name in FIELDS],
            "parameters": State(ids.parameter(ALL, ALL), "value"),
            "parameter_ids": State(ids.parameter(ALL, ALL), "id"),
            "forms": State(ids.METHOD_FORMS, "data"),
            "reason": State(ids.REASON, "value"),
        },
        prevent_initial_call=True,
        running=[(Output(ids.PUSH, "loading"), True, False)],
    )
    async def push(
        clicks: int | None,
        path: str | None,
        base: dict[str, Any] | None,
        entered: list[Any],
        parameters: list[object],
        parameter_ids: list[dict[str, str]],
        forms: dict[str, dict[str, dict[str, Any]]] | None,
        reason: str | None,
    ) -> tuple[Any, Any]:
        run_id = run_of_path(path)
        if not clicks or run_id is None or base is None:
            return no_update, no_update
        try:
            form = Form(*entered)
            texts = {f["name"]: v for f, v in zip(parameter_ids, parameters, strict=True) if f["method"] == form.method}
            wanted = form_values(form, base["reference"], texts, (forms or {}).get(form.method), reason or "")
            async with api.open() as client:
                return await _push(client, run_id, wanted, base)
        except (ApiError, ConfigurationError, FormError) as error:
            return [notification("Not pushed", str(error), "red", key="push-failed", seconds=15)], no_update


async def _push(client: AsyncClient, run_id: str, wanted: Control, base: dict[str, Any]) -> tuple[Any, Any]:
    try:
        await client.ask(calls.set_control(run_id, wanted, if_version=base["version"]))
    except ControlConflict:
        state = await _show_control(client, run_id)
        return [_conflict(state, Control.from_document(base["reference"]))], no_update
    await _show_control(client, run_id)
    return no_update, ""


async def _show_control(client: AsyncClient, run_id: str) -> RunControl:
    state = await client.ask(calls.control(run_id))
    history = await client.newest(calls.control_history(run_id), 100)
    for component_id, properties in control_and_history_props(state, history).items():
        set_props(component_id, dict(properties))
    return state


def _conflict(newest: RunControl, before: Control) -> dict[str, Any]:
    who = f" by {newest.author}" if newest.author else ""
    message = (
        f"The control was changed{who} while you edited: version {newest.version} has "
        f"{describe(newest.control, before)}. The form now follows it and keeps what you edited; check it and push again."
    )
    title = "Not pushed: the control changed meanwhile"
    return notification(title, message, "orange", key="push-conflict", seconds=20)
