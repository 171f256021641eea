"""The top of the overview: the health line with a button that tries the cure, and four numbers.

The numbers are means of the last ten steps against the early level, which a single step can't mislead.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from dash import html

from isentrope_dashboard.components.basics import icon, row, text, with_symbols
from isentrope_dashboard.components.header import STATUS
from isentrope_dashboard.components.run_rows import sparkline
from isentrope_dashboard.figures.chart import smoothed
from isentrope_dashboard.formatting import MISSING, change, number, percent
from isentrope_wire.answers import HealthLevel, RunDetail, SeriesColumns
from isentrope_wire.diagnosis.health import Diagnosis
from isentrope_wire.metrics import CLIP_FRACTION, ENTROPY_MEAN, ENTROPY_PREDICTED_CHANGE, REWARD_MEAN, EarlyLevel

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
    if run.status.is_over:  # how it was doing calls nobody any more
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


@dataclass(frozen=True, slots=True)
class Readings:
    """A metric's first values, its last ones, and its course."""

    first: SeriesColumns
    """Of the run's first steps."""
    course: SeriesColumns
    """Of the steps that the charts show, perhaps reduced."""
    last: SeriesColumns
    """Of the last steps, not reduced."""

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


METRICS: Sequence[str] = (ENTROPY_MEAN, REWARD_MEAN, ENTROPY_PREDICTED_CHANGE, CLIP_FRACTION)
"""In the order of `kpi_cards`."""
