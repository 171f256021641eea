"""The overview of a run: the health line with a button that tries the cure, four numbers and four
charts; beside them the control card (`pages.control`). The numbers are medians of the last five
steps against the early level, as in the diagnosis: a single step can't mislead them."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, TypeAlias

from dash import html

from isentrope.client import calls
from isentrope.client.connection import AsyncClient
from isentrope_dashboard.components import control_card as card
from isentrope_dashboard.components.basics import icon, row, sparkline, text, with_symbols
from isentrope_dashboard.components.header import LEVELS, STATUS
from isentrope_dashboard.figures.chart import EMPTY, smoothed
from isentrope_dashboard.figures.panel import Forecast
from isentrope_dashboard.figures.panels import OVERVIEW
from isentrope_dashboard.formatting import change, number, percent, significant
from isentrope_dashboard.live import Part, Values
from isentrope_dashboard.pages import charts, compare, control
from isentrope_dashboard.view import View
from isentrope_wire import metrics
from isentrope_wire.answers import RunDetail, SeriesColumns, Status
from isentrope_wire.control import Control
from isentrope_wire.diagnosis.health import Diagnosis
from isentrope_wire.diagnosis.outlook import Outlook

FIRST_STEPS = 10
LAST_STEPS = 20


async def read(client: AsyncClient, view: View) -> Values:
    run_id = view.run_id or ""
    run = await client.ask(calls.run(run_id))
    wanted = control.wanted_of(view, run)
    asked = wanted if isinstance(wanted, Control) else None
    has_curves = asked is not None and asked.hold is None
    outlook, me, history, alerts = await asyncio.gather(
        client.ask(calls.outlook(run_id, asked, curves=has_curves)),
        client.ask(calls.me()),
        client.newest(calls.control_history(run_id), charts.MARKS),
        client.newest(calls.alerts(run_id), charts.MARKS),
    )
    diagnosis = outlook.diagnosis
    run = replace(run, step=diagnosis.step)  # all that is shown is of this step
    begins = (diagnosis.step or 0) - (diagnosis.lost_in_steps or 0)
    is_live = run.status == Status.RUNNING
    names = [kpi.metric for kpi in KPIS]
    shown, early, newest = await asyncio.gather(
        charts.read_shown(
            client,
            view,
            run,
            OVERVIEW,
            known=(history, alerts),
            is_live=is_live,
            early_level=diagnosis.early_level,
        ),
        client.ask(calls.series(run_id, names, to_step=begins + FIRST_STEPS)),
        client.ask(
            calls.series(
                run_id,
                names,
                from_step=max(0, (run.step or 0) - LAST_STEPS + 1),
                to_step=run.step,
            )
        ),
    )
    shown = await compare.with_seeds(client, view, run, shown, charts.CHART_POINTS)
    if is_live:
        shown = replace(shown, forecasts=forecasts(outlook))
    nothing = "None was reported" if run.status.is_over else ""
    return {
        "health": health_line(diagnosis, run),
        "kpis": [
            kpi_card(
                kpi,
                *(
                    series.get(kpi.metric, EMPTY)
                    for series in (early.series, shown.series, newest.series)
                ),
            )
            for kpi in KPIS
        ],
        **{f"chart-{panel.name}": charts.figure(panel, shown, nothing) for panel in OVERVIEW},
        **control.card_values(run, me, history, alerts[: card.ALERTS_SHOWN]),
        **control.form_values(view, run, wanted, outlook, shown.scale),
    }


def forecasts(outlook: Outlook) -> list[Forecast]:
    """Where the entropy goes: unchanged, and under the suggested control."""
    diagnosis = outlook.diagnosis
    pace = None if diagnosis.mean_pace is None else diagnosis.mean_pace.value
    lines = [Forecast(label="unchanged", course=diagnosis.forecast, pace=pace)]
    if diagnosis.suggestion is not None and outlook.suggested is not None:
        suggested = Control.from_document(diagnosis.suggestion.control)
        lines.append(Forecast.of(outlook.suggested, suggested))
    return lines


PLACES = [
    html.Div(id="kpis", className="kpis"),
    html.Div([*map(charts.panel_card, OVERVIEW)], className="charts"),
]
PART = Part(
    name="overview",
    read=read,
    properties=control.PROPERTIES,
    layout=html.Div(
        [
            html.Div(id="health", className="health-place"),
            html.Div(PLACES, className="overview-left"),
        ],
        className="overview",
    ),
)
"""The overview's left column; the control card is mounted beside it."""

TRY = "try"


def health_line(diagnosis: Diagnosis, run: RunDetail) -> html.Div:
    """The line of a run; of one that is over, how it ended and what became of its entropy."""
    word, _, drawing = LEVELS[diagnosis.level]
    look, message = str(diagnosis.level), diagnosis.message
    if (
        run.status.is_over or run.status == Status.SILENT
    ):  # as its badge and the list say; its health asks for no action
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
        words = f"Forecasts of {score.horizon} steps were off by {off} nats on average; that nothing changes, by {nothing}."
        cure.append(html.Div(words, className="dim small"))
    buttons: list[Any] = []
    if diagnosis.cause is not None:
        buttons.append(
            html.A("See the tokens", href="?tab=tokens", className="dim", **{"data-tab": "tokens"})
        )
    if diagnosis.suggestion is not None:
        document = diagnosis.suggestion.control
        fill = json.dumps({"document": document, "reason": document.get("reason") or ""})
        label = ["Try it", icon("arrow", 14)]
        buttons.append(
            html.Button(
                label, id=TRY, type="button", className="button main", **{"data-fill": fill}
            )
        )
    return html.Div(
        [
            html.Div([icon(drawing, 18), word], className="flag"),
            html.Div(
                [html.Div(why, className="why num"), html.Div(cure, className="cure num")],
                className="spacer",
            ),
            *buttons,
        ],
        className=f"health {look}".strip(),
        role="status",
    )


def _sentence(words: str) -> str:
    return words[:1].upper() + words[1:] + ("" if words.endswith(".") else ".")


SPARK_POINTS = 60

Against: TypeAlias = tuple[str, str, str]
"""A difference in words, its tone, and what it is counted from."""


@dataclass(frozen=True, slots=True)
class Kpi:
    """A number above the charts, and how it stands against the early level."""

    title: str
    unit: str
    metric: metrics.Metric
    written: Callable[[float | None], str]
    against: Callable[[float | None, float | None], Against]
    """Of the early level and the newest one."""


def sized(value: float | None) -> str:
    """Three decimals; of a size that these can't tell, four digits."""
    is_usual = value is None or value == 0 or 0.01 <= abs(value) < 1e6
    return number(value) if is_usual else significant(value)


def _in_percent(early: float | None, now: float | None) -> Against:
    if early is None or now is None or not math.isfinite(now):
        return "", "", "" if early is None else f"early {sized(early)}"
    if early == 0:
        return "", "", "early 0"
    share = (now - early) / abs(early)
    tone = "" if abs(share) < 0.05 else ("act" if share <= -0.25 else "ok" if share > 0 else "")
    return (
        f"{number(100 * share, 0, signed=True)}\N{NO-BREAK SPACE}%",
        tone,
        f"vs early {sized(early)}",
    )


def _as_a_share(early: float | None, now: float | None) -> Against:
    if early is None or now is None:
        return "", "", "not calibrated"
    if early == 0 or not math.isfinite(now) or now / early < 0:
        return "", "", f"early {change(early)}"
    return percent(now / early, 0), "", f"of early pace {change(early)}"


def _in_points(early: float | None, now: float | None) -> Against:
    if early is None or now is None:
        return "", "", "" if early is None else f"early {percent(early)}"
    points = number(100 * (now - early), 1, signed=True)
    return "" if points == "0.0" else f"{points} pt", "", f"early {percent(early)}"


KPIS = (
    Kpi("Entropy", "nats", metrics.ENTROPY_MEAN, number, _in_percent),
    Kpi("Reward", "mean", metrics.REWARD_MEAN, sized, _in_percent),
    Kpi("Predicted ΔH", "nats a step", metrics.ENTROPY_PREDICTED_CHANGE, change, _as_a_share),
    Kpi("Clipped", "of tokens", metrics.CLIP_FRACTION, percent, _in_points),
)


def kpi_card(
    kpi: Kpi, first: SeriesColumns, course: SeriesColumns, last: SeriesColumns
) -> html.Section:
    """The card of a number: `first` and `last` are the values of the run's first and last steps,
    not reduced; `course` those that the charts show."""
    level = metrics.EarlyLevel()  # as the alerts define it
    for value in filter(math.isfinite, first.value):
        level.add(value)
    newest = last.value[-metrics.NEWEST_STEPS :]
    known = [value for value in newest if math.isfinite(value)]
    now = median(known) if known else (math.nan if newest else None)
    difference, tone, early = kpi.against(level.level, now)
    words = html.Div(
        [
            html.Div(
                [html.H2(kpi.title, className="kpi-title"), text(kpi.unit, "dim")], className="row"
            ),
            html.Div(kpi.written(now), className="kpi-value"),
            row(
                html.Span(difference, className=f"difference {tone}".strip()),
                html.Span(early, className="small dim num"),
            ),
        ],
        className="kpi-words",
    )
    stride = math.ceil(len(course.step) / SPARK_POINTS) or 1
    drawing = sparkline(smoothed(course, 3)[::-stride][::-1])
    line = html.I(className="spark iris", style={"--drawing": drawing})
    return html.Section([words, line], className="card kpi")
