"""The overview of a run: the health line with a button that tries the cure, four numbers and four charts; beside them the
control card (`pages.control`). The numbers are means of the last ten steps against the early level, which a single step can't
mislead."""

from __future__ import annotations

import asyncio
import json
import math
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from dash import html
from dash.development.base_component import Component

from isentrope.client import calls
from isentrope.client.connection import AsyncClient
from isentrope_dashboard.components.basics import icon, row, sparkline, text, with_symbols
from isentrope_dashboard.components.header import STATUS
from isentrope_dashboard.figures.chart import EMPTY, smoothed
from isentrope_dashboard.figures.panel import Forecast
from isentrope_dashboard.figures.panels import OVERVIEW
from isentrope_dashboard.formatting import MISSING, change, number, percent, short_label
from isentrope_dashboard.live import Part, Values
from isentrope_dashboard.pages import charts
from isentrope_dashboard.view import View
from isentrope_wire.answers import HealthLevel, RunDetail, SeriesColumns, Status
from isentrope_wire.control import Control
from isentrope_wire.diagnosis.health import Diagnosis
from isentrope_wire.metrics import CLIP_FRACTION, ENTROPY_MEAN, ENTROPY_PREDICTED_CHANGE, REWARD_MEAN, EarlyLevel

FIRST_STEPS = 10
LAST_STEPS = 20


async def read(client: AsyncClient, view: View) -> Values:
    run_id = view.run_id or ""
    run, diagnosis = await asyncio.gather(client.ask(calls.run(run_id)), client.ask(calls.diagnosis(run_id)))
    begins = (diagnosis.step or 0) - (diagnosis.lost_in_steps or 0)
    is_live = run.status == Status.RUNNING
    shown, early, newest = await asyncio.gather(
        charts.read_shown(client, view, run, OVERVIEW, is_live=is_live, early_level=diagnosis.early_level),
        client.ask(calls.series(run_id, KPIS, to_step=begins + FIRST_STEPS)),
        client.ask(calls.series(run_id, KPIS, from_step=max(0, (run.step or 0) - LAST_STEPS + 1))),
    )
    readings = [
        Readings(early.series.get(name, EMPTY), shown.columns(name), newest.series.get(name, EMPTY)) for name in KPIS
    ]
    if is_live:
        shown = replace(shown, forecasts=await forecasts(client, run, diagnosis))
    figures, absent = charts.draw(OVERVIEW, shown)
    nothing = "None was reported" if run.status.is_over else ""
    return {
        "health": health_line(diagnosis, run),
        "kpis": kpi_cards(*readings),
        **{f"chart-{panel.name}": charts.note(nothing or absent[panel.title], view)
           for panel in OVERVIEW if panel.title in absent},
        **figures,
    }  # fmt: skip


async def forecasts(client: AsyncClient, run: RunDetail, diagnosis: Diagnosis) -> list[Forecast]:
    """Where the entropy goes: unchanged, and under the suggested control."""
    pace = None if diagnosis.pace is None else diagnosis.pace.value
    lines = [Forecast(label="unchanged", course=diagnosis.forecast, pace=pace)]
    if diagnosis.suggestion is None:
        return lines
    control = Control.from_document(diagnosis.suggestion.control)
    found = await client.ask(calls.preview(run.id, control))
    unchanged = pace if found.unchanged is None else found.unchanged.value
    return [
        replace(lines[0], pace=unchanged),
        Forecast(
            label=f"with {short_label(control, None)}",
            course=found.forecast,
            pace=None if found.pace is None else found.pace.value,
            clip_fraction=found.clip_fraction,
            helps=True,
            name="suggested",
        ),
    ]


async def layout(_client: AsyncClient, _view: View) -> Component:
    """The overview's left column; the control card is mounted beside it."""
    places = [html.Div(id="kpis", className="kpis"), html.Div([*map(charts.panel_card, OVERVIEW)], className="charts")]
    return html.Div(
        [html.Div(id="health", className="health-place"), html.Div(places, className="overview-left")],
        className="overview",
    )


TRY = "try"

_FLAGS = {
    HealthLevel.NO_DATA: ("No data", "clock"),
    HealthLevel.HEALTHY: ("Healthy", "check"),
    HealthLevel.WATCH: ("Watch", "eye"),
    HealthLevel.ACT: ("Act", "alert"),
    HealthLevel.HOLDING: ("Holding", "check"),
}


def health_line(diagnosis: Diagnosis, run: RunDetail) -> html.Div:
    """The line of a run; of one that is over, how it ended and what became of its entropy."""
    word, drawing = _FLAGS[diagnosis.level]
    look, message = str(diagnosis.level), diagnosis.message
    if run.status.is_over:  # its health asks for no action any more
        word, tone, _ = STATUS[run.status]
        drawing, look = "alert" if tone == "act" else "clock", tone
        message = _sentence(message.removeprefix(f"{word}: "))
    why: list[Any] = [message]
    if diagnosis.cause is not None:
        why += [" ", *with_symbols(_sentence(diagnosis.cause.message))]
    cure: list[Any] = []
    if diagnosis.suggestion is not None:
        head, colon, rest = diagnosis.suggestion.message.partition(":")
        cure = [html.B(head + colon), rest]
    elif diagnosis.verdict is not None:
        cure = [html.B(f"v{diagnosis.verdict.version}: "), diagnosis.verdict.message]
    score = diagnosis.forecast_score
    if score is not None and diagnosis.forecast is not None:
        off, nothing = number(score.mean_error), number(score.unchanged_error)
        words = (
            f"Forecasts of {score.horizon} steps were off by {off} nats on average; that nothing changes, by {nothing}."
        )
        cure.append(html.Div(words, className="dim small"))
    buttons: list[Any] = []
    if diagnosis.cause is not None:
        buttons.append(html.A("See the tokens", href="?tab=tokens", className="dim", **{"data-tab": "tokens"}))
    if diagnosis.suggestion is not None:
        control = diagnosis.suggestion.control
        fill = json.dumps({"document": control, "reason": control.get("reason") or ""})
        label = ["Try it", icon("arrow", 14)]
        buttons.append(html.Button(label, id=TRY, type="button", className="button main", **{"data-fill": fill}))
    return html.Div(
        [
            html.Div([icon(drawing, 18), word], className="flag"),
            html.Div([html.Div(why, className="why num"), html.Div(cure, className="cure num")], className="spacer"),
            *buttons,
        ],
        className=f"health {look}".strip(),
        role="status",
    )


def _sentence(words: str) -> str:
    return words[:1].upper() + words[1:] + ("" if words.endswith(".") else ".")


NEWEST_STEPS = 10
SPARK_POINTS = 60
KPIS = (ENTROPY_MEAN, REWARD_MEAN, ENTROPY_PREDICTED_CHANGE, CLIP_FRACTION)
"""Metrics of the numbers, in the order of `kpi_cards`."""


@dataclass(frozen=True, slots=True)
class Readings:
    """A metric's first values, its last ones, and its course."""

    first: SeriesColumns
    """Series of the run's first steps."""
    course: SeriesColumns
    """Series of the steps that the charts show, perhaps reduced."""
    last: SeriesColumns
    """Series of the last steps, not reduced."""

    @property
    def early(self) -> float | None:
        """The early level as the alerts define it."""
        level = EarlyLevel()
        for value in self.first.value:
            if math.isfinite(value):
                level.add(value)
        return level.level

    @property
    def now(self) -> float | None:
        """The mean of the last ten steps; NaN where all of them are not finite."""
        newest = self.last.value[-NEWEST_STEPS:]
        known = [value for value in newest if math.isfinite(value)]
        return fmean(known) if known else (math.nan if newest else None)


def kpi_cards(entropy: Readings, reward: Readings, predicted: Readings, clipped: Readings) -> list[html.Section]:
    """The cards of the overview."""
    early, now = clipped.early, clipped.now
    points = None if early is None or now is None else 100 * (now - early)
    pace = predicted.early
    return [
        _card("Entropy", "nats", number(entropy.now), *_against(entropy, loss_is_bad=True), entropy),
        _card("Reward", "mean", number(reward.now), *_against(reward, loss_is_bad=True), reward),
        _card(
            "Predicted ΔH", "nats a step", change(predicted.now),
            *(("", "", "not calibrated") if pace is None or predicted.now is None
              else (_share(predicted.now, pace), "", f"of early pace {change(pace)}")),
            predicted,
        ),
        _card(
            "Clipped", "of tokens", percent(now),
            "" if points is None else f"{number(points, 1, signed=True)} pt", "",
            "" if early is None else f"early {percent(early)}", clipped,
        ),
    ]  # fmt: skip


def _share(now: float, early: float) -> str:
    return MISSING if early == 0 or not math.isfinite(now) else percent(now / early, 0)


def _against(readings: Readings, *, loss_is_bad: bool) -> tuple[str, str, str]:
    """The difference in percent, its tone, and what it is compared with."""
    early, now = readings.early, readings.now
    if early is None or now is None or not math.isfinite(now):
        return "", "", "" if early is None else f"early {number(early)}"
    if early == 0:
        return "", "", "early 0"
    share = (now - early) / abs(early)
    tone = "" if abs(share) < 0.05 or not loss_is_bad else ("act" if share <= -0.25 else "ok" if share > 0 else "")
    return f"{number(100 * share, 0, signed=True)}\N{NO-BREAK SPACE}%", tone, f"vs early {number(early)}"


def _card(
    title: str, unit: str, value: str, difference: str, tone: str, early: str, readings: Readings
) -> html.Section:
    words = html.Div(
        [
            html.Div([html.H2(title, className="kpi-title"), text(unit, "dim")], className="row"),
            html.Div(value, className="kpi-value"),
            row(
                html.Span(difference, className=f"difference {tone}".strip()),
                html.Span(early, className="small dim num"),
            ),
        ],
        className="kpi-words",
    )
    stride = math.ceil(len(readings.course.step) / SPARK_POINTS) or 1
    drawing = sparkline(smoothed(readings.course, 3)[::-stride][::-1])
    line = html.I(className="spark iris", style={"--drawing": drawing})
    return html.Section([words, line], className="card kpi")


PART = Part(name="overview", read=read, layout=layout)
