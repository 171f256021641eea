"""How scores, entropies and probabilities are distributed, where the pull comes from, how far
policy and samples are apart."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from dash import html
from dash.development.base_component import Component

from isentrope.client import calls
from isentrope.client.connection import AsyncClient
from isentrope_dashboard.components.basics import card
from isentrope_dashboard.figures.panels import DISTRIBUTIONS
from isentrope_dashboard.formatting import count, number
from isentrope_dashboard.live import Part, Values
from isentrope_dashboard.pages import charts
from isentrope_dashboard.pages.steps import NO_STEP, chosen_step, report_of
from isentrope_dashboard.view import View
from isentrope_wire.control_answers import EntropyPerformance, Estimate
from isentrope_wire.reports import LIKELY_CAUSE

CHART_POINTS, LAW_POINTS = 300, 200


async def read(client: AsyncClient, view: View) -> Values:
    run_id = view.run_id or ""
    run, law = await asyncio.gather(
        client.ask(calls.run(run_id)), client.ask(calls.law(run_id, points=LAW_POINTS))
    )
    step = await chosen_step(client, run, view)
    report = await report_of(client, run_id, step)
    shown = await charts.read_shown(
        client,
        view,
        run,
        DISTRIBUTIONS,
        points=CHART_POINTS,
        is_live=False,
        law=law,
        chosen=step,
        report=report,
    )
    drawn = {panel.name: charts.draw(panel, shown) for panel in DISTRIBUTIONS}
    absent = {panel.title: NO_STEP if run.step is None else why
              for panel in DISTRIBUTIONS if isinstance(why := drawn[panel.name], str)}  # fmt: skip
    if report is None:
        cause = ""
    else:
        cause = report.labels.get(LIKELY_CAUSE, "")
    return {
        **{
            f"chart-{name}": figure for name, figure in drawn.items() if not isinstance(figure, str)
        },
        **{f"place-{name}": isinstance(figure, str) for name, figure in drawn.items()},
        "law-words": law_words(law),
        "likely-cause": (
            [
                html.B(
                    f"Step {count(step)}, tokens and logits may not belong together. Likely {cause}"
                )
            ]
            if cause
            else []
        ),
        "not-shown": _not_shown(absent),
    }


def _not_shown(absent: Mapping[str, str]) -> list[Any]:
    titles: dict[str, list[str]] = {}
    for title, why in absent.items():
        titles.setdefault(why, []).append(title)
    lines = [
        part for why, names in titles.items() for part in (html.Dt(", ".join(names)), html.Dd(why))
    ]
    if lines:
        return [card(html.Dl(lines), title="Nothing to show", name="not-shown")]
    return []


def law_words(law: EntropyPerformance) -> list[Any]:
    """What follows from the fit of reward against entropy, or why nothing does."""
    if law.fit is None:
        return [html.Div([html.B("No fit. "), law.reason.message if law.reason else ""])]
    fit, words = law.fit, []
    if fit.ceiling is not None:
        ceiling = html.B(f"Ceiling {number(fit.ceiling.value)}")
        words.append(html.Div([ceiling, f" at H = 0 ({_range(fit.ceiling)})."]))
    failed = [check.message for check in fit.checks if not check.passed]
    verdict = "Not conclusive. "
    if fit.conclusive:
        verdict = "The run follows the curve. "
    words.append(html.Div([html.B(verdict), " ".join(failed)]))
    if law.forecast is not None:
        made = law.forecast
        when = f"the last {made.final_steps} steps{'' if made.run_over else ' so far'}"
        said = html.B(f"Forecast from step {count(made.through_step)}: {number(made.reward.value)}")
        words.append(html.Div([said, f" ({_range(made.reward)}); {when}: {number(made.actual)}."]))
    elif law.forecast_reason is not None:
        words.append(html.Div([html.B("No forecast. "), law.forecast_reason.message]))
    return words


def _range(estimate: Estimate) -> str:
    return f"{number(estimate.low)} to {number(estimate.high)}"


async def layout(_client: AsyncClient, _view: View) -> Component:
    cards: dict[str, Component] = {panel.name: charts.panel_card(panel) for panel in DISTRIBUTIONS}
    words = html.Div(id="law-words", className="law-words dim num")
    cards["law"] = html.Div([cards["law"], words], className="card law")
    places = [
        html.Div(inside, id=f"place-{name}", className="panel") for name, inside in cards.items()
    ]
    return html.Div(
        [
            html.Div(id="likely-cause", className="likely-cause", role="status"),
            html.Div(places, className="panels"),
            html.Div(id="not-shown"),
        ],
        className="distributions",
    )


PART = Part(name="distributions", read=read, layout=layout, is_slow=True)
