"""What the browser does alone, without asking the server: all of it lives in `assets/isentrope.js`."""

from __future__ import annotations

from dash import ALL, ClientsideFunction, Dash, Input, Output, State

from isentrope_dashboard import ids


def _function(name: str) -> ClientsideFunction:
    return ClientsideFunction("isentrope", name)


def register(app: Dash) -> None:
    """Register the clientside callbacks."""
    _register_look(app)
    _register_freshness(app)
    _register_form(app)


def _register_look(app: Dash) -> None:
    for graph in ids.FIGURES:
        app.clientside_callback(
            _function("draw"),
            Output(graph, "figure"),
            Output(ids.drawn(graph), "data"),
            Input(ids.drawing(graph), "data"),
            Input(ids.SCHEME, "computedColorScheme"),
            State(ids.TEMPLATES, "data"),
            State(graph, "figure"),
            State(graph, "id"),
        )
    app.clientside_callback(
        _function("view"),
        Output(ids.VIEW, "data"),
        Input(ids.WINDOW, "value"),
    )
    app.clientside_callback(_function("title"), Output(ids.TITLE, "storage_type"), Input(ids.TITLE, "data"))
    app.clientside_callback(
        _function("openRun"),
        Output(ids.NAVIGATED, "href"),
        Input(ids.RUN_SELECT, "value"),
        State(ids.PAGE_READY, "data"),
        prevent_initial_call=True,
    )


def _register_freshness(app: Dash) -> None:
    app.clientside_callback(
        _function("reportAge"),
        Output(ids.REPORT_AGE, "children"),
        Input(ids.TICK, "n_intervals"),
        Input(ids.LAST_REPORT, "data"),
    )
    app.clientside_callback(
        _function("connection"),
        Output(ids.CONNECTION, "className"),
        Input(ids.TICK, "n_intervals"),
        Input(ids.LIVE_BEAT, "data"),
        Input(ids.POLL_BEAT, "data"),
        Input(ids.PAGE_READY, "data"),
    )
    for interval in (ids.RUN_POLL, ids.RUNS_POLL):
        app.clientside_callback(
            _function("somethingIsLive"),
            Output(interval, "disabled"),
            Input(ids.TICK, "n_intervals"),
            Input(ids.LIVE_BEAT, "data"),
        )


def _register_form(app: Dash) -> None:
    fields = [
        (ids.METHOD, "value"),
        (ids.SCOPE, "value"),
        (ids.threshold(ids.MU_LOW, "switch"), "checked"),
        (ids.threshold(ids.MU_LOW, "number"), "value"),
        (ids.threshold(ids.MU_HIGH, "switch"), "checked"),
        (ids.threshold(ids.MU_HIGH, "number"), "value"),
    ]
    for side in (ids.MU_LOW, ids.MU_HIGH):
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
    app.clientside_callback(
        _function("followControl"),
        *[Output(component, name, allow_duplicate=True) for component, name in fields],
        Output(ids.parameter(ALL, ALL), "value"),
        Output(ids.CONTROL_BASE, "data"),
        Input(ids.CONTROL, "data"),
        Input(ids.RESET, "n_clicks"),
        State(ids.CONTROL_BASE, "data"),
        *[State(component, name) for component, name in fields],
        State(ids.METHOD_FORMS, "data"),
        State(ids.parameter(ALL, ALL), "id"),
        State(ids.parameter(ALL, ALL), "value"),
        prevent_initial_call="initial_duplicate",
    )
    app.clientside_callback(
        _function("formState"),
        Output(ids.CONTROL_BADGE, "children"),
        Output(ids.CONTROL_BADGE, "color"),
        Output(ids.PUSH, "disabled"),
        Output(ids.RESET, "disabled"),
        Output(ids.CONTROL_HINT, "children"),
        Output(ids.threshold(ids.MU_LOW, "number"), "error"),
        Output(ids.threshold(ids.MU_HIGH, "number"), "error"),
        *[
            Output(ids.threshold(side, part), "disabled")
            for side in (ids.MU_LOW, ids.MU_HIGH)
            for part in ("switch", "slider", "number")
        ],
        Output(ids.parameter(ALL, ALL), "error"),
        Output(ids.parameters_of(ALL), "style"),
        *[Input(component, name) for component, name in fields],
        Input(ids.CONTROL, "data"),
        Input(ids.parameter(ALL, ALL), "value"),
        State(ids.METHOD, "data"),
        State(ids.METHOD_FORMS, "data"),
        State(ids.parameter(ALL, ALL), "id"),
        State(ids.parameters_of(ALL), "id"),
    )
    app.clientside_callback(
        _function("askWhatIf"),
        Output(ids.WHAT_IF_QUESTION, "storage_type"),
        *[Input(component, name) for component, name in fields],
    )
    app.clientside_callback(
        _function("exportCsv"),
        Output(ids.HISTORY_GRID, "exportDataAsCsv"),
        Input(ids.HISTORY_EXPORT, "n_clicks"),
        prevent_initial_call=True,
    )
