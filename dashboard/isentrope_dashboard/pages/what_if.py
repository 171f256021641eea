"""What the form's control would do to the newest step, and which of its knobs could not act."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from typing import Any

from dash import Dash, Input, Output, State, no_update

from isentrope.client import calls
from isentrope.client.calls import Call
from isentrope.client.connection import ApiError, AsyncClient
from isentrope_dashboard import ids
from isentrope_dashboard.access import Api
from isentrope_dashboard.components.what_if import (
    HIDDEN,
    SHOWN,
    cap_of,
    dead_before_push,
    expected_action,
    hold_reading,
    measured_step,
    reading,
)
from isentrope_dashboard.figures.lines import EMPTY
from isentrope_dashboard.figures.what_if import what_if_figure, with_gain
from isentrope_dashboard.formatting import method as method_name
from isentrope_dashboard.ids import run_of_path
from isentrope_dashboard.pages.run import drawing
from isentrope_wire.answers import SeriesAnswer, SeriesColumns
from isentrope_wire.control import Control, Scope
from isentrope_wire.control_answers import WhatIfAnswer
from isentrope_wire.errors import ConfigurationError
from isentrope_wire.hold_decision import clipping_method
from isentrope_wire.methods import Method
from isentrope_wire.metrics import ENTROPY_MEAN, HOLD_GAIN, EarlyLevel

Answer = tuple[Any, Any, Any, Any]
"""Words, the chart's drawing, whether the chart is shown, and the knobs that could not act."""
_POINTS = 200
"""Of the past entropy: enough for its maximum, and steps within which a run has reported its first ones."""


def register(app: Dash, api: Api) -> None:
    """Answer whenever the form has changed, or a newer step or another control is there."""

    @app.callback(
        Output(ids.WHAT_IF_READING, "children"),
        Output(ids.drawing(ids.WHAT_IF_GRAPH), "data"),
        Output(ids.WHAT_IF, "style"),
        Output(ids.WOULD_BE_DEAD, "children"),
        Input(ids.WHAT_IF_QUESTION, "data"),
        Input(ids.WHAT_IF_STEP, "data"),
        Input(ids.CONTROL, "data"),
        State(ids.URL, "pathname"),
        prevent_initial_call=True,
    )
    async def answer(
        question: dict[str, Any] | None,
        newest: dict[str, Any] | None,
        control: dict[str, Any] | None,
        path: str | None,
    ) -> Answer:
        run_id = run_of_path(path)
        if question is None or run_id is None:
            return no_update, no_update, no_update, no_update
        if question["error"]:
            return question["error"], no_update, no_update, ""
        if newest is None or newest["step"] is None:
            return "Waiting for the first step.", no_update, HIDDEN, ""
        try:
            wanted = Control.from_document({name: value for name, value in question.items() if name != "error"})
        except ConfigurationError as error:
            return str(error), no_update, HIDDEN, ""
        active = (control or {}).get("active")
        asked = _Question(run_id, wanted, newest, None if active is None else Control.from_document(active))
        try:
            async with api.open() as client:
                return await (asked.hold(client) if wanted.hold else asked.thresholds(client))
        except ApiError as error:
            return str(error), no_update, HIDDEN, asked.warnings(None)


class _Question:
    """What the form asks about one run."""

    def __init__(self, run_id: str, wanted: Control, newest: Mapping[str, Any], active: Control | None) -> None:
        self._run_id = run_id
        self._wanted = wanted
        self._newest = newest
        self._active = active

    async def thresholds(self, client: AsyncClient) -> Answer:
        """What the form's own thresholds would have done."""
        wanted = self._wanted
        if not wanted.method.thresholds:
            return _without_thresholds(wanted.method), no_update, HIDDEN, self.warnings(None)
        found = await self._ask(client, wanted.method, wanted.scope, wanted.mu_low, wanted.mu_high)
        drawn = await asyncio.to_thread(self._drawn, found)
        beside = [name for name in found.not_included if wanted.parameters.get(name) is not None]
        return reading(found, beside), drawn, SHOWN, self.warnings(found)

    async def hold(self, client: AsyncClient) -> Answer:
        """What the probe would decide; the form's own thresholds are active only while it can't act."""
        wanted, scalars, entropy = self._wanted, self._newest["scalars"], self._newest["entropy"]
        if entropy is None:
            return "Waiting for an entropy to be measured.", no_update, HIDDEN, ""
        method, held = clipping_method(wanted), HOLD_GAIN in scalars
        found = await self._ask(client, method, Scope.ALL, None, None, sums=True)
        early, highest = await self._past_entropy(client)
        measured = measured_step(scalars, entropy, found, early, highest)
        action = expected_action(wanted, measured, held=held)
        # Each side's curve, with the other threshold at the same distance.
        found = await self._ask(client, method, action.scope, action.mu, action.mu)
        if measured.entropy.gain is not None:
            found = with_gain(found, measured.entropy.gain)
        drawn = await asyncio.to_thread(self._drawn, found)
        return hold_reading(measured, action, found, held=held), drawn, SHOWN, self.warnings(None)

    async def _past_entropy(self, client: AsyncClient) -> tuple[float | None, float]:
        """The early level and the highest mean entropy of the run, in nats."""
        whole = await self._entropy(client, calls.series(self._run_id, ENTROPY_MEAN, points=_POINTS))
        tops = [value for value in whole.max or whole.value if value is not None and math.isfinite(value)]
        begun = calls.series(self._run_id, ENTROPY_MEAN, to_step=whole.step[0] + _POINTS if whole.step else 0)
        first = await self._entropy(client, begun)
        early = EarlyLevel()
        for value in first.value:
            if value is not None and math.isfinite(value):
                early.add(value)
        return early.level, max(tops, default=math.inf)

    async def _entropy(self, client: AsyncClient, call: Call[SeriesAnswer]) -> SeriesColumns:
        return (await client.ask(call)).series.get(ENTROPY_MEAN, EMPTY)

    async def _ask(
        self,
        client: AsyncClient,
        method: str,
        scope: str,
        mu_low: float | None,
        mu_high: float | None,
        *,
        sums: bool = False,
    ) -> WhatIfAnswer:
        return await client.ask(
            calls.what_if(
                self._run_id,
                method=method,
                scope=scope,
                mu_low=mu_low,
                mu_high=mu_high,
                max_fraction=cap_of(self._wanted),
                denominator=str(self._wanted.value("denominator") or "keep"),
                curve=True,
                sums=sums,
            )
        )

    def warnings(self, found: WhatIfAnswer | None) -> str:
        """Knobs that could not act, in sentences."""
        dead = dead_before_push(self._wanted, self._newest["scalars"], found)
        return "Can't act if pushed: " + " ".join(dead) if dead else ""

    def _drawn(self, found: WhatIfAnswer) -> dict[str, Any]:
        figure = what_if_figure(found, self._active, revision=f"{self._run_id}:{found.method}")
        data: dict[str, Any] = drawing(ids.WHAT_IF_GRAPH, figure)[ids.drawing(ids.WHAT_IF_GRAPH)]["data"]
        return data


def _without_thresholds(method: str) -> str:
    if method == Method.NONE:
        return "Choose Clip_B or Clip_V to see what their thresholds would do to the newest step."
    return f"Only the thresholds of Clip_B and Clip_V have a preview; the effect of {method_name(method)} shows after a push."
