"""What the law says, in numbers with their intervals, or why it says nothing."""

from __future__ import annotations

from typing import Any

import dash_mantine_components as dmc
from dash import html

from isentrope_dashboard.formatting import MISSING, count, number
from isentrope_dashboard.predictions import Estimate, Forecast, Law

NO_CEILING = "The reward does not rise for certain as entropy falls, so there is no ceiling to speak of."


def law_facts(law: Law) -> list[Any]:
    """Ceiling, coefficients and forecast."""
    if law.fit is None:
        return [_fact("Ceiling", MISSING, law.reason)]
    interval = f"{law.confidence:.0%} interval"
    if law.fit.conclusive:
        ceiling = _fact(
            "Ceiling b − a, reward at H = 0", number(law.fit.ceiling.value), f"{_range(law.fit.ceiling)}, {interval}"
        )
    else:
        ceiling = _fact("Ceiling", MISSING, NO_CEILING)
    coefficients = _fact(
        "Fit",
        f"a {number(law.fit.a.value)}, b {number(law.fit.b.value)}",
        f"a {_range(law.fit.a)}, b {_range(law.fit.b)}; {count(law.steps)} steps",
    )
    return [ceiling, coefficients, _forecast(law)]


def _forecast(law: Law) -> html.Div:
    made = law.forecast
    if made is None:
        return _fact("Forecast of the last reward", MISSING, law.forecast_reason)
    return _fact(
        f"Forecast from step {count(made.through_step)}",
        number(made.reward.value),
        f"{_range(made.reward)}; {_outcome(made)}",
    )


def _outcome(made: Forecast) -> str:
    when = f"last {made.final_steps} steps" + ("" if made.run_over else " so far")
    return f"{when}: {number(made.actual)}, error {number(made.error, signed=True)}"


def _range(estimate: Estimate) -> str:
    return f"{number(estimate.low)} to {number(estimate.high)}"


def _fact(label: str, value: str, note: str) -> html.Div:
    return html.Div(
        [
            dmc.Text(label, size="xs", c="dimmed", fw=500),
            dmc.Text(value, className="kpi-value"),
            dmc.Text(note, size="xs", c="dimmed", className="num"),
        ],
        className="law-fact",
    )
