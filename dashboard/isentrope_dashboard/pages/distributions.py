"""How scores, entropies and probabilities are distributed, where the pull comes from, how far policy and samples are apart."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from dash import html
from dash.development.base_component import Component

from isentrope.client import calls
from isentrope.client.connection import AsyncClient
from isentrope_dashboard.components.basics import card, chart_card
from isentrope_dashboard.figures import distributions, pull
from isentrope_dashboard.figures.distributions import QUANTITIES, OneStep, Quantity
from isentrope_dashboard.figures.law import law_figure
from isentrope_dashboard.figures.overview import Shown
from isentrope_dashboard.figures.pull import PANELS, Panel
from isentrope_dashboard.formatting import count, number
from isentrope_dashboard.live import Part, Values
from isentrope_dashboard.pages.overview import NOT_IMPORTED, marks, read_scale, window
from isentrope_dashboard.pages.steps import NO_STEP, chosen_step, report_of
from isentrope_dashboard.view import View
from isentrope_wire.answers import HistogramColumns, Status, StepReport
from isentrope_wire.control_answers import EntropyPerformance, Estimate
from isentrope_wire.reports import LIKELY_CAUSE

HISTOGRAM_POINTS, CHART_POINTS, LAW_POINTS = 120, 300, 200
HEAT_HEIGHT, LAW_HEIGHT = 236, 220
ORDER = (
    "vocab-centered", "discriminator", "quadrants", "mechanisms", "token-entropy", "probability", "covariance",
    "difficulty", "ratios", "kl", "samples", "law",
)  # fmt: skip
"""The panels, the most useful first. One that has nothing to show is a line at the end."""
NO_HISTOGRAM = "The reports have no such histogram: the probe dropped it to save space."

_HEATS: Mapping[str, Quantity] = {quantity.name: quantity for quantity in QUANTITIES}


async def read(client: AsyncClient, view: View) -> Values:
    """What the tab shows."""
    run_id = view.run_id or ""
    run, history, alerts, scale, law = await asyncio.gather(
        client.ask(calls.run(run_id)),
        client.newest(calls.control_history(run_id), 50),
        client.newest(calls.alerts(run_id), 50),
        read_scale(client, run_id, view),
        client.ask(calls.law(run_id, points=LAW_POINTS)),
    )
    first, last = window(run, view, history)
    if view.zoom is not None:
        ends = [scale.step_at(place) for place in view.zoom]
        first, last = max(0, int(ends[0]) - 1), int(ends[1]) + 1
    step = await chosen_step(client, run, view)
    names = [*pull.METRICS, *distributions.THRESHOLD_METRICS]
    found: asyncio.Future[list[HistogramColumns]] = asyncio.gather(
        *(
            client.ask(
                calls.histograms(run_id, quantity.histogram, from_step=first, to_step=last, points=HISTOGRAM_POINTS)
            )
            for quantity in QUANTITIES
        )
    )
    answer, report, histograms = await asyncio.gather(
        client.ask(calls.series(run_id, names, from_step=first, to_step=last, points=CHART_POINTS)),
        report_of(client, run_id, step),
        found,
    )
    series = answer.series
    steps = [*(columns.step for columns in series.values()), *(known.step for known in histograms)]
    shown = Shown(
        scheme=view.scheme, scale=scale, first=min((each[0] for each in steps if each), default=first or 0), last=run.step or 0, zoom=view.zoom,
        smooth=view.smooth, is_live=False, marks=marks(history, alerts),
    )  # fmt: skip
    figures: dict[str, Any] = {}
    absent: dict[str, str] = {}
    for quantity, known in zip(QUANTITIES, histograms, strict=True):
        if known.step:
            active = distributions.thresholds(quantity, series, history)
            one = _one_step(quantity, report, step or 0)
            figures[quantity.name] = distributions.heat_figure(quantity, known, one, active, shown)
        else:
            absent[quantity.name] = NO_HISTOGRAM
    for name, panel in PANELS.items():
        why = pull.absent(panel, series)
        if why:
            absent[name] = why
        else:
            figures[name] = pull.panel_figure(panel, series, shown, step)
    if run.status == Status.IMPORTED or run.step is None:
        absent = dict.fromkeys(absent, NOT_IMPORTED if run.status == Status.IMPORTED else NO_STEP)
    if law.points.step:
        figures["law"] = law_figure(law, view.scheme)
    else:
        absent["law"] = law.reason.message if law.reason else "No step has both entropy and reward."
    return {
        **{f"chart-{name}": figure for name, figure in figures.items()},
        **{f"place-{name}": name not in figures for name in ORDER},
        "law-words": law_words(law),
        "likely-cause": _likely_cause(report),
        "not-shown": _not_shown(absent),
    }


def _one_step(quantity: Quantity, report: StepReport | None, step: int) -> OneStep:
    if report is None:
        return OneStep(step=step, histogram=None)
    return OneStep(
        step=step,
        histogram=next((known for known in report.histograms if known.name == quantity.histogram), None),
        mean=(report.scalars.get(quantity.mean) if quantity.mean else 0.0) if quantity.std else None,
        std=report.scalars.get(quantity.std) if quantity.std else None,
    )


def _likely_cause(report: StepReport | None) -> list[Any]:
    cause = "" if report is None else report.labels.get(LIKELY_CAUSE, "")
    if report is None or not cause:
        return []
    return [html.B(f"Step {count(report.step)}, tokens and logits may not belong together. Likely {cause}")]


def _not_shown(absent: Mapping[str, str]) -> list[Any]:
    """One line for every reason."""
    titles: dict[str, list[str]] = {}
    for name in ORDER:
        if name in absent:
            titles.setdefault(absent[name], []).append(_title(name))
    if not titles:
        return []
    lines = [[html.Dt(", ".join(names)), html.Dd(why)] for why, names in titles.items()]
    return [card(html.Dl([part for line in lines for part in line]), title="Nothing to show", name="not-shown")]


def _title(name: str) -> str:
    if name == "law":
        return "Reward against entropy"
    return _HEATS[name].title if name in _HEATS else PANELS[name].title


def law_words(law: EntropyPerformance) -> list[Any]:
    """What follows from the fit of reward against entropy, or why nothing does."""
    if law.fit is None:
        return [html.Div([html.B("No fit. "), law.reason.message if law.reason else ""])]
    fit, words = law.fit, []
    if fit.ceiling is not None:
        words.append(
            html.Div(
                [html.B(f"Ceiling {number(fit.ceiling.value)}"), f" at H = 0 ({_range(fit.ceiling)})."]
            )
        )  # fmt: skip
    failed = [check.message for check in fit.checks if not check.passed]
    verdict = "The run follows the curve. " if fit.conclusive else "Not conclusive. "
    words.append(html.Div([html.B(verdict), " ".join(failed)]))
    if law.forecast is not None:
        made = law.forecast
        when = f"the last {made.final_steps} steps{'' if made.run_over else ' so far'}"
        words.append(
            html.Div(
                [html.B(f"Forecast from step {count(made.through_step)}: {number(made.reward.value)}"),
                 f" ({_range(made.reward)}); {when}: {number(made.actual)}."]
            )
        )  # fmt: skip
    elif law.forecast_reason is not None:
        words.append(html.Div([html.B("No forecast. "), law.forecast_reason.message]))
    return words


def _range(estimate: Estimate) -> str:
    return f"{number(estimate.low)} to {number(estimate.high)}"


async def layout(_client: AsyncClient, _view: View) -> Component:
    """Two columns of charts."""
    places = [html.Div(_card(name), id=f"place-{name}", className="panel") for name in ORDER]
    return html.Div(
        [
            html.Div(id="likely-cause", className="likely-cause", role="status"),
            html.Div(places, className="panels"),
            html.Div(id="not-shown"),
        ],
        className="distributions",
    )


def _card(name: str) -> Component:
    if name in _HEATS:
        quantity = _HEATS[name]
        says = f"{quantity.title}: share of the tokens by value over steps, and the bars of one step"
        unit = [*_symbol(quantity), f", {quantity.unit}" if quantity.unit else ""]
        keys = [("median", "line", "text"), ("1 and 99 %", "dash", "text")]
        if quantity.method is not None:
            keys.append(("threshold", "line", "upper"))
        return chart_card(f"chart-{name}", title=quantity.title, unit=unit, height=HEAT_HEIGHT, says=says, shown=keys)
    if name == "law":
        law = chart_card(
            "chart-law", title=_title(name), unit="means of neighbouring steps", height=LAW_HEIGHT,
            says="Reward against entropy, with the fitted curve and its ceiling", zooms=False,
        )  # fmt: skip
        words = html.Div(id="law-words", className="law-words dim num")
        return html.Div([law, words], className="card law")
    panel: Panel = PANELS[name]
    return chart_card(f"chart-{name}", title=panel.title, unit=panel.unit, height=pull.HEIGHT, says=panel.says)


def _symbol(quantity: Quantity) -> Sequence[Any]:
    letter, _, below = quantity.symbol.partition("<sub>")
    return [html.I(letter), html.Sub(below.removesuffix("</sub>"))] if below else [html.I(letter)]


PART = Part(name="distributions", read=read, layout=layout, is_slow=True)
