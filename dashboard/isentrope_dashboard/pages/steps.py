"""The step that a tab shows: the bar to choose it, and where a reader who did not choose one is, at
the newest."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

from dash import html

from isentrope.client import calls
from isentrope.client.connection import ApiError, AsyncClient
from isentrope_dashboard.components.basics import icon, native, text
from isentrope_dashboard.figures.chart import EMPTY
from isentrope_dashboard.figures.panel import Mark
from isentrope_dashboard.formatting import change, count
from isentrope_dashboard.live import Part, Values
from isentrope_dashboard.pages.charts import marks
from isentrope_dashboard.view import View
from isentrope_wire import metrics
from isentrope_wire.answers import RunDetail, Status, StepReport

PARAM = "step"
"""In the address; without it the newest step is shown."""
NEAR = 500
"""Steps to both sides among which the nearest reported one is looked for."""
NO_STEP = "No step was reported."
LABEL_SHARE = 0.06
"""Least distance of two labels, as a share of the slider's width."""


async def chosen_step(client: AsyncClient, run: RunDetail, view: View) -> int | None:
    """The step that the address names, or the reported one nearest to it; without one the newest;
    None before the first."""
    wanted = view.whole_number(PARAM)
    if wanted is None or run.step is None:
        return run.step
    reported = await _reported(client, run, wanted)
    return min(reported, key=lambda step: abs(step - wanted), default=min(wanted, run.step))


async def _reported(client: AsyncClient, run: RunDetail, near: int) -> Sequence[int]:
    answer = await client.ask(
        calls.series(
            run.id, metrics.ENTROPY_MEAN, from_step=max(0, near - NEAR), to_step=near + NEAR
        )
    )
    return answer.series.get(metrics.ENTROPY_MEAN, EMPTY).step


async def first_step(client: AsyncClient, run_id: str) -> int:
    """The first reported step; 0 of a run without any."""
    answer = await client.ask(calls.series(run_id, metrics.ENTROPY_MEAN, points=200))
    columns = answer.series.get(metrics.ENTROPY_MEAN, EMPTY)
    if columns.reduced:
        answer = await client.ask(
            calls.series(run_id, metrics.ENTROPY_MEAN, to_step=columns.step[0])
        )
        columns = answer.series[metrics.ENTROPY_MEAN]
    if columns.step:
        return columns.step[0]
    return 0


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
    run_id = view.run_id or ""
    run, history, alerts, first = await asyncio.gather(
        client.ask(calls.run(run_id)),
        client.newest(calls.control_history(run_id), 50),
        client.newest(calls.alerts(run_id), 50),
        first_step(client, run_id),
    )
    step = await chosen_step(client, run, view)
    report, near = await asyncio.gather(
        report_of(client, run_id, step), _reported(client, run, step or 0)
    )
    last, follows = max(first, run.step or 0), view.whole_number(PARAM) is None
    slider = [
        html.Span(label, className="mark", style={"--place": (mark - first) / max(1, last - first)})
        for mark, label in labelled(marks(history, alerts), first, last).items()
    ]
    is_live = run.status == Status.RUNNING
    return {
        "step-bar": [
            html.B("Step"),
            _step_button(
                "previous",
                max((other for other in near if step is not None and other < step), default=None),
            ),
            _input("number", first, last, step),
            _step_button(
                "next",
                min((other for other in near if step is not None and other > step), default=None),
            ),
            html.Div([_input("range", first, last, step), *slider], className="step-slider"),
            html.Button(
                "Follow live" if is_live else "Newest step",
                type="button",
                className="button",
                disabled=step is None,
                **{
                    "aria-pressed": str(follows).lower(),
                    "data-show": json.dumps({PARAM: step if follows else None}),
                },
            ),
            html.Span(className="rule wide"),
            html.Div(
                _words(report) if run.step is not None else text(NO_STEP, "dim"),
                className="dim num step-words",
            ),
        ]
    }


def _step_button(which: str, step: int | None) -> html.Button:
    return html.Button(
        icon(which),
        type="button",
        className="icon-button",
        disabled=step is None,
        **{"aria-label": f"{which.capitalize()} step", "data-show": json.dumps({PARAM: step})},
    )


def _input(kind: str, first: int, last: int, step: int | None) -> dict[str, Any]:
    """An input whose value the browser sets, unless somebody holds it or types in it, and writes
    into the address."""
    return native(
        "input",
        type=kind,
        min=first,
        max=last,
        disabled=step is None,
        **{"aria-label": "Step", "data-param": PARAM, "data-value": step},
    )


def labelled(found: Sequence[Mark], first: int, last: int) -> dict[int, str]:
    """Marks of the slider: every step once, with a label where there is room. A control goes before
    an alarm of its step."""
    steps: dict[int, str] = {}
    for mark in found:
        if first <= mark.step <= last and (mark.step not in steps or mark.kind == "control"):
            steps[mark.step] = mark.label.split(" ")[0]
    free_from = float("-inf")
    for step, label in sorted(steps.items()):
        place = (step - first) / max(1, last - first)
        steps[step] = label if place >= free_from else ""
        if place >= free_from:
            free_from = place + LABEL_SHARE
    return steps


def _words(report: StepReport | None) -> list[Any]:
    if report is None:
        return [text("No report of this step.", "dim")]
    words: list[Any] = []
    changes = (
        (metrics.ENTROPY_UNSEEN_CHANGE, "observed on unseen tokens"),
        (metrics.ENTROPY_OBSERVED_CHANGE, "observed on its own"),
        (metrics.ENTROPY_PREDICTED_CHANGE, "predicted"),
    )
    for name, what in changes:
        if name in report.scalars:
            words += [", " if words else "ΔH ", html.B(change(report.scalars[name])), f" {what}"]
    if metrics.TOKEN_COUNT in report.scalars:
        words += [
            " · " if words else "",
            f"{count(int(report.scalars[metrics.TOKEN_COUNT]))} tokens",
        ]
    return words


PART = Part(name="steps", read=read, layout=html.Div(id="step-bar", className="row card step-bar"))
