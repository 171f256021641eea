"""The step that a tab shows: the bar to choose it, and where a reader who did not choose one is, at the newest."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import dash_mantine_components as dmc
from dash import ClientsideFunction, Dash, Input, Output, State, dcc, html
from dash.development.base_component import Component

from isentrope.client import calls
from isentrope.client.connection import ApiError, AsyncClient
from isentrope_dashboard.components.basics import icon, row, text
from isentrope_dashboard.figures.chart import EMPTY
from isentrope_dashboard.figures.overview import Mark
from isentrope_dashboard.formatting import change, count
from isentrope_dashboard.live import Part, Values
from isentrope_dashboard.pages.overview import marks
from isentrope_dashboard.view import View
from isentrope_wire.answers import RunDetail, Status, StepReport
from isentrope_wire.metrics import ENTROPY_MEAN, ENTROPY_OBSERVED_CHANGE, ENTROPY_PREDICTED_CHANGE, TOKEN_COUNT

PARAM = "step"
"""In the address; without it the newest step is shown."""
NEAR = 500
"""Steps to both sides among which the nearest reported one is looked for."""
NO_STEP = "No step was reported."
LABEL_SHARE = 0.06
"""Of the slider's width: the least distance of two labels."""


async def chosen_step(client: AsyncClient, run: RunDetail, view: View) -> int | None:
    """The step that the address names, or the reported one nearest to it; without one the newest; None before the first."""
    wanted = view.whole_number(PARAM)
    if wanted is None or run.step is None:
        return run.step
    reported = await _reported(client, run, wanted)
    return min(reported, key=lambda step: abs(step - wanted), default=min(wanted, run.step))


async def _reported(client: AsyncClient, run: RunDetail, near: int) -> Sequence[int]:
    answer = await client.ask(calls.series(run.id, ENTROPY_MEAN, from_step=max(0, near - NEAR), to_step=near + NEAR))
    return answer.series.get(ENTROPY_MEAN, EMPTY).step


async def first_step(client: AsyncClient, run_id: str) -> int:
    """The first reported step; 0 of a run without any."""
    answer = await client.ask(calls.series(run_id, ENTROPY_MEAN, points=200))
    columns = answer.series.get(ENTROPY_MEAN, EMPTY)
    if columns.reduced:
        answer = await client.ask(calls.series(run_id, ENTROPY_MEAN, to_step=columns.step[0]))
        columns = answer.series[ENTROPY_MEAN]
    return columns.step[0] if columns.step else 0


async def report_of(client: AsyncClient, run_id: str, step: int | None) -> StepReport | None:
    """The report of a step; None where there is none."""
    if step is None:
        return None
    try:
        return await client.ask(calls.step(run_id, step))
    except ApiError as error:
        if error.status == 404:
            return None
        raise


async def read(client: AsyncClient, view: View) -> Values:
    """What the bar shows."""
    run_id = view.run_id or ""
    run, history, alerts, first = await asyncio.gather(
        client.ask(calls.run(run_id)),
        client.newest(calls.control_history(run_id), 50),
        client.newest(calls.alerts(run_id), 50),
        first_step(client, run_id),
    )
    step = await chosen_step(client, run, view)
    report, near = await asyncio.gather(report_of(client, run_id, step), _reported(client, run, step or 0))
    facts = {
        "first": first,
        "last": max(first, run.step or 0),
        "step": step,
        "previous": max((other for other in near if step is not None and other < step), default=None),
        "next": min((other for other in near if step is not None and other > step), default=None),
        "follows": view.whole_number(PARAM) is None,
        "marks": labelled(marks(history, alerts), first, run.step or 0),
        "live": run.status == Status.RUNNING,
    }
    return {"step-facts": facts, "step-words": _words(report) if run.step is not None else [text(NO_STEP, "dim")]}


def labelled(found: Sequence[Mark], first: int, last: int) -> list[dict[str, Any]]:
    """Marks of the slider: every step once, with a label where there is room. A control goes before an alarm of its step."""
    steps: dict[int, str] = {}
    for mark in found:
        if first <= mark.step <= last and (mark.step not in steps or mark.kind == "control"):
            steps[mark.step] = mark.label.split(" ")[0]
    shown: list[dict[str, Any]] = []
    free_from = float("-inf")
    for step, label in sorted(steps.items()):
        place = (step - first) / max(1, last - first)
        shown.append({"value": step, "label": label if place >= free_from else None})
        free_from = place + LABEL_SHARE if place >= free_from else free_from
    return shown


def _words(report: StepReport | None) -> list[Any]:
    if report is None:
        return [text("No report of this step.", "dim")]
    words: list[Any] = []
    for name, what in ((ENTROPY_PREDICTED_CHANGE, "predicted"), (ENTROPY_OBSERVED_CHANGE, "observed")):
        if name in report.scalars:
            words += [", " if words else "ΔH ", html.B(change(report.scalars[name])), f" {what}"]
    if TOKEN_COUNT in report.scalars:
        words += [" · " if words else "", f"{count(int(report.scalars[TOKEN_COUNT]))} tokens"]
    return words


def layout(values: Values) -> Component:
    """The bar."""
    facts: Mapping[str, Any] = values["step-facts"]
    buttons = [
        dmc.ActionIcon(
            icon(name), id=f"step-{name}", variant="subtle", color="gray", size=28, disabled=facts[name] is None,
            n_clicks=0, **{"aria-label": f"{name.capitalize()} step"},
        )
        for name in ("previous", "next")
    ]  # fmt: skip
    number = dmc.NumberInput(
        id="step-number", value=facts["step"], min=facts["first"], max=facts["last"], w=84, size="xs", debounce=True,
        allowDecimal=False, allowNegative=False, **{"aria-label": "Step"},
    )  # fmt: skip
    slider = dmc.Slider(
        id="step-slider", min=facts["first"], max=facts["last"], value=facts["step"], marks=facts["marks"], size=4,
        thumbSize=14, updatemode="mouseup", thumbLabel="Step", className="step-slider",
    )  # fmt: skip
    follow = dmc.Checkbox(
        id="step-follow", label="Follow live" if facts["live"] else "Newest step", checked=facts["follows"], size="xs"
    )
    return row(
        dcc.Store(id="step-facts", data=facts),
        html.B("Step"),
        buttons[0],
        number,
        buttons[1],
        slider,
        follow,
        html.Span(className="rule wide"),
        html.Div(values["step-words"], id="step-words", className="dim num step-words"),
        name="card step-bar",
    )


PART = Part(name="steps", shows={"step-facts": "data", "step-words": "children"}, read=read, layout=layout)


def register(app: Dash) -> None:
    """Choices in the bar go into the address; the bar follows the run."""
    app.clientside_callback(
        ClientsideFunction("isentrope", "stepFacts"),
        Output("step-slider", "max"),
        Output("step-slider", "marks"),
        Output("step-slider", "value"),
        Output("step-number", "max"),
        Output("step-number", "value"),
        Output("step-follow", "checked"),
        Output("step-previous", "disabled"),
        Output("step-next", "disabled"),
        Input("step-facts", "data"),
        prevent_initial_call=True,
    )
    app.clientside_callback(
        ClientsideFunction("isentrope", "chooseStep"),
        Output("step-words", "id"),
        Input("step-slider", "value"),
        Input("step-number", "value"),
        Input("step-follow", "checked"),
        Input("step-previous", "n_clicks"),
        Input("step-next", "n_clicks"),
        State("step-facts", "data"),
        prevent_initial_call=True,
    )
