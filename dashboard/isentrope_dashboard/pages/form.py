"""The form as the browser works it without asking the server: it lives in `assets/form.js` and `assets/form-marks.js`."""

from __future__ import annotations

from dash import ALL, ClientsideFunction, Dash, Input, Output, State

from isentrope_dashboard import ids

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
)
"""Component and property of every field but a method's own parameters, in the order of `NAMES` in `assets/form.js`."""
THRESHOLD_FIELDS = FIELDS[:6]
_PARAMETERS = ids.parameter(ALL, ALL)
_GROUPS = ids.parameters_of(ALL)
_PRESETS = ids.preset(ALL, ALL)
_MARKS, _NOTES, _REVERTS = ids.edit_mark(ALL, ALL), ids.edit_note(ALL, ALL), ids.revert(ALL, ALL)


def _function(name: str) -> ClientsideFunction:
    return ClientsideFunction("isentropeForm", name)


def register(app: Dash) -> None:
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
