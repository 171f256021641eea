"""Asks what the form would do to the newest step, draws the answer, and names knobs that could not act."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from dash import Dash, Input, Output, State, no_update

from isentrope_dashboard import ids
from isentrope_dashboard.access import current_credentials
from isentrope_dashboard.api_client import ApiClient, ApiSource
from isentrope_dashboard.components.what_if import HIDDEN, SHOWN, hold_reading, reading, why_nothing_is_foretold
from isentrope_dashboard.controls import ControlValues
from isentrope_dashboard.errors import ApiError, ApiUnreachableError
from isentrope_dashboard.figures.what_if import what_if_figure
from isentrope_dashboard.foreseen import foreseen
from isentrope_dashboard.formatting import method as method_name
from isentrope_dashboard.hold_preview import preview, scope_in_the_way, steering, unclipped_change
from isentrope_dashboard.ids import run_of_path
from isentrope_dashboard.pages.run import drawing
from isentrope_dashboard.predictions import Thresholds, WhatIf
from isentrope_wire.methods import threshold_methods

Answer = tuple[Any, Any, Any, Any]
"""Words, the chart's drawing, whether the chart is shown, and what could not act."""


def register(app: Dash, source: ApiSource) -> None:
    """Answer whenever the form has changed, or a newer step or another control is there."""

    @app.callback(
        Output(ids.WHAT_IF_READING, "children"),
        Output(ids.drawing(ids.WHAT_IF_GRAPH), "data"),
        Output(ids.WHAT_IF, "style"),
        Output(ids.FORESEEN, "children"),
        Input(ids.WHAT_IF_QUESTION, "data"),
        Input(ids.WHAT_IF_STEP, "data"),
        Input(ids.CONTROL, "data"),
        State(ids.METHOD_FORMS, "data"),
        State(ids.URL, "pathname"),
        prevent_initial_call=True,
    )
    async def answer(
        question: dict[str, Any] | None,
        newest: dict[str, Any] | None,
        control: dict[str, Any] | None,
        forms: dict[str, dict[str, dict[str, Any]]] | None,
        path: str | None,
    ) -> Answer:
        run_id = run_of_path(path)
        if question is None or run_id is None:
            return no_update, no_update, no_update, no_update
        if question["error"]:
            return question["error"], no_update, no_update, ""
        if newest is None or newest["step"] is None:
            return "Waiting for the first step.", no_update, HIDDEN, ""
        asking = _Asking(run_id, question, newest, (control or {}).get("in_force"), forms or {})
        try:
            async with source.open(current_credentials()) as api:
                return await (asking.hold(api) if question["hold"] else asking.thresholds(api))
        except ApiError as error:
            return str(error), no_update, HIDDEN, asking.warnings(None)
        except ApiUnreachableError:
            return no_update, no_update, no_update, no_update  # the page says that the connection is lost


class _Asking:
    """One question of the form's about one run."""

    def __init__(
        self,
        run_id: str,
        question: dict[str, Any],
        newest: dict[str, Any],
        in_force: dict[str, Any] | None,
        forms: dict[str, dict[str, dict[str, Any]]],
    ) -> None:
        self._run_id = run_id
        self._wanted = ControlValues.from_json(question)
        self._newest = newest
        self._in_force = in_force
        self._forms = forms

    async def thresholds(self, api: ApiClient) -> Answer:
        """What the form's own thresholds would have done."""
        method = self._wanted.method
        if method not in threshold_methods():
            return _without_thresholds(method), no_update, HIDDEN, self.warnings(None)
        found = await api.what_if(self._run_id, _thresholds(self._wanted))
        drawn = await asyncio.to_thread(self._drawn, found)
        beside = [name for name in found.not_included if self._wanted.parameters.get(name) is not None]
        return reading(found, beside), drawn, SHOWN, self.warnings(found)

    async def hold(self, api: ApiClient) -> Answer:
        """What the controller would have to do; the thresholds of the form count only while it can't."""
        hold, entropy = self._wanted.hold, self._newest["entropy"]
        if hold is None or entropy is None:
            return "Waiting for an entropy to be measured.", no_update, HIDDEN, ""
        method = "clip_v" if self._wanted.method == "none" else self._wanted.method
        asked = replace(_thresholds(self._wanted), method=method, mu_low=None, mu_high=None)
        asked = replace(asked, scope=scope_in_the_way(hold, entropy))
        found = await api.what_if(self._run_id, asked)
        by = steering(self._newest["scalars"], entropy, found)
        needed = scope_in_the_way(hold, by.standing, unclipped_change(by, found) or 0.0)
        if needed != asked.scope:  # it goes the right way, but too fast
            asked = replace(asked, scope=needed)
            found = await api.what_if(self._run_id, asked)
        expected = preview(hold, entropy, found, by)
        if expected is None:
            return why_nothing_is_foretold(by), no_update, HIDDEN, self.warnings(None)
        if expected.mu is not None:  # the curve of each side with the other one where it would stand
            found = await api.what_if(self._run_id, replace(asked, mu_low=expected.mu, mu_high=expected.mu))
        if by.known_gain is not None:
            found = found.calibrated_by(by.known_gain)
        drawn = await asyncio.to_thread(self._drawn, found)
        return hold_reading(expected), drawn, SHOWN, self.warnings(None)

    def warnings(self, found: WhatIf | None) -> str:
        """Knobs that could not act, in sentences."""
        defaults = {name: form["default"] for name, form in self._forms.get(self._wanted.method, {}).items()}
        told = foreseen(self._wanted, defaults, self._newest["scalars"], found)
        return "Can't act if pushed: " + " ".join(told) if told else ""

    def _drawn(self, found: WhatIf) -> dict[str, Any]:
        running = None if self._in_force is None else _thresholds(ControlValues.from_json(self._in_force))
        figure = what_if_figure(found, running, revision=f"{self._run_id}:{found.asked.method}")
        data: dict[str, Any] = drawing(ids.WHAT_IF_GRAPH, figure)[ids.drawing(ids.WHAT_IF_GRAPH)]["data"]
        return data


def _without_thresholds(method: str) -> str:
    if method == "none":
        return "Choose Clip_B or Clip_V to see what their thresholds would do to the newest step."
    name = method_name(method)
    return f"Only the thresholds of Clip_B and Clip_V can be foretold; {name} shows what it does once it is pushed."


def _thresholds(values: ControlValues) -> Thresholds:
    cap = values.parameters.get("max_fraction")
    return Thresholds(
        method=values.method,
        scope=values.scope,
        mu_low=values.mu_low,
        mu_high=values.mu_high,
        max_fraction=cap if isinstance(cap, int | float) and cap > 0 else None,
        denominator=str(values.parameters.get("denominator") or "keep"),
    )
