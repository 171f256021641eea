"""What the browser does by itself; the functions are in `assets/isentrope.js`."""

from __future__ import annotations

from dash import ClientsideFunction, Dash, Input, Output, State

from isentrope_dashboard import ids


def _function(name: str) -> ClientsideFunction:
    return ClientsideFunction("isentrope", name)


def register(app: Dash) -> None:
    """Register the clientside callbacks."""
    _register_look(app)
    _register_freshness(app)
    _register_news(app)
    _register_grids(app)


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
        Input(ids.SPLIT_VIEW, "value"),
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
        Input(ids.BEAT, "data"),
        Input(ids.PAGE_READY, "data"),
    )


def _register_news(app: Dash) -> None:
    """A run page asks for news (`pages/live.py`) and shows them."""
    for ask, question in (("askNews", ids.QUESTION), ("askSlowNews", ids.SLOW_QUESTION)):
        app.clientside_callback(
            _function(ask),
            Output(question, "data"),
            Input(ids.TICK, "n_intervals"),
            Input(ids.VIEW, "data"),
            State(ids.SHOWN, "data"),
            State(ids.SLOW_NEWS, "data"),
            State(ids.drawing(ids.ENTROPY_GRAPH), "data"),
            State(ids.drawn(ids.ENTROPY_GRAPH), "data"),
        )
    app.clientside_callback(
        _function("showNews"),
        Output(ids.SHOWN, "data"),
        Input(ids.NEWS, "data"),
        State(ids.SHOWN, "data"),
        prevent_initial_call=True,
    )
    app.clientside_callback(
        _function("showSlowNews"), Output(ids.SLOW_NEWS, "storage_type"), Input(ids.SLOW_NEWS, "data")
    )


def _register_grids(app: Dash) -> None:
    app.clientside_callback(
        _function("filterMetrics"),
        Output(ids.METRICS_GRID, "dashGridOptions"),
        Input(ids.METRICS_FILTER, "value"),
        State(ids.METRICS_GRID, "dashGridOptions"),
        prevent_initial_call=True,
    )
    app.clientside_callback(
        _function("compareChoice"),
        Output(ids.COMPARE_BUTTON, "children"),
        Output(ids.COMPARE_BUTTON, "disabled"),
        Input(ids.RUNS_GRID, "selectedRows"),
    )
    app.clientside_callback(
        _function("openComparison"),
        Output(ids.NAVIGATED, "href", allow_duplicate=True),
        Input(ids.COMPARE_BUTTON, "n_clicks"),
        State(ids.RUNS_GRID, "selectedRows"),
        prevent_initial_call=True,
    )
    app.clientside_callback(
        _function("nameComparison"),
        Output(ids.COMPARE_RUNS, "name"),
        Input(ids.COMPARE_RUNS, "value"),
    )
    app.clientside_callback(
        _function("exportCsv"),
        Output(ids.HISTORY_GRID, "exportDataAsCsv"),
        Input(ids.HISTORY_EXPORT, "n_clicks"),
        prevent_initial_call=True,
    )
