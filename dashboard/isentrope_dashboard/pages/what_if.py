"""Asks what the thresholds in the form would have done to the newest step, and draws the answer."""

from __future__ import annotations

import asyncio
from typing import Any

from dash import Dash, Input, Output, State, no_update

from isentrope_dashboard import ids
from isentrope_dashboard.api_client import ApiSource
from isentrope_dashboard.components.what_if import HIDDEN, SHOWN, reading
from isentrope_dashboard.credentials import current_credentials
from isentrope_dashboard.errors import ApiError, ApiUnreachableError
from isentrope_dashboard.figures.what_if import what_if_figure
from isentrope_dashboard.formatting import method as method_name
from isentrope_dashboard.pages.push import THRESHOLD_METHODS
from isentrope_dashboard.pages.routing import run_of_path
from isentrope_dashboard.pages.run_content import drawing
from isentrope_dashboard.predictions import Thresholds, WhatIf

Answer = tuple[Any, Any, Any]
"""Words, the chart's drawing, and whether the chart is shown."""


def register(app: Dash, source: ApiSource) -> None:
    """Answer whenever the form has changed, or a newer step or another control is there."""

    @app.callback(
        Output(ids.WHAT_IF_READING, "children"),
        Output(ids.drawing(ids.WHAT_IF_GRAPH), "data"),
        Output(ids.WHAT_IF, "style"),
        Input(ids.WHAT_IF_QUESTION, "data"),
        Input(ids.WHAT_IF_STEP, "data"),
        Input(ids.CONTROL, "data"),
        State(ids.URL, "pathname"),
        prevent_initial_call=True,
    )
    async def answer(
        question: dict[str, Any] | None, step: int | None, control: dict[str, Any] | None, path: str | None
    ) -> Answer:
        run_id = run_of_path(path)
        if question is None or run_id is None:
            return no_update, no_update, no_update
        unanswerable = _unanswerable(question, step)
        if unanswerable is not None:
            return unanswerable
        try:
            async with source.open(current_credentials()) as api:
                found = await api.what_if(run_id, _thresholds(question))
        except ApiError as error:
            return str(error), no_update, HIDDEN
        except ApiUnreachableError:
            return no_update, no_update, no_update  # the page says that the connection is lost
        return await asyncio.to_thread(_shown, run_id, found, (control or {}).get("in_force"))


def _unanswerable(question: dict[str, Any], step: int | None) -> Answer | None:
    """What to say where there is nothing to ask; None where there is."""
    if question["error"]:
        return question["error"], no_update, no_update
    if step is None:
        return "Waiting for the first step.", no_update, HIDDEN
    if question["method"] in THRESHOLD_METHODS:
        return None
    if question["method"] == "none":
        return "Choose Clip_B or Clip_V to see what their thresholds would do to the newest step.", no_update, HIDDEN
    method = method_name(question["method"])
    why = f"Only the thresholds of Clip_B and Clip_V can be foretold; {method} shows what it does once it is pushed."
    return why, no_update, HIDDEN


def _shown(run_id: str, found: WhatIf, in_force: dict[str, Any] | None) -> Answer:
    running = None if in_force is None else _thresholds(in_force)
    figure = what_if_figure(found, running, revision=f"{run_id}:{found.asked.method}")
    return reading(found), drawing(ids.WHAT_IF_GRAPH, figure)[ids.drawing(ids.WHAT_IF_GRAPH)]["data"], SHOWN


def _thresholds(values: dict[str, Any]) -> Thresholds:
    return Thresholds(
        method=values["method"], scope=values["scope"], mu_low=values["mu_low"], mu_high=values["mu_high"]
    )
