"""The four charts of the overview, on one x axis: entropy, its change, reward, clipped tokens; and the next 50 steps."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from isentrope_dashboard.figures.chart import EMPTY, Chart, Scale, percent_texts, value_range
from isentrope_dashboard.formatting import change, number, percent
from isentrope_dashboard.theme import Scheme
from isentrope_wire.answers import SeriesColumns
from isentrope_wire.diagnosis.course import ACT_LEFT, FLOOR, WATCH_LEFT
from isentrope_wire.metrics import (
    CLIP_FRACTION,
    CONTROL_MU_HIGH,
    CONTROL_MU_LOW,
    ENTROPY_MEAN,
    ENTROPY_OBSERVED_CHANGE,
    ENTROPY_PREDICTED_CHANGE,
    ENTROPY_PREDICTED_CHANGE_HIGH,
    ENTROPY_PREDICTED_CHANGE_LOW,
    HOLD_TARGET,
    REWARD_MEAN,
)
from isentrope_wire.numbers import decimals_of, fixed

METRICS = (
    ENTROPY_MEAN,
    REWARD_MEAN,
    ENTROPY_PREDICTED_CHANGE,
    ENTROPY_PREDICTED_CHANGE_LOW,
    ENTROPY_PREDICTED_CHANGE_HIGH,
    ENTROPY_OBSERVED_CHANGE,
    CLIP_FRACTION,
    HOLD_TARGET,
    CONTROL_MU_LOW,
    CONTROL_MU_HIGH,
)
NEXT_STEPS = 50
"""How far the forecast goes."""


LEVEL_LABELS_SHARE = 0.22
"""Of the width: what the labels of the levels take."""
LABEL_HEIGHT_SHARE = 0.06
"""Of the height of the entropy chart: a line of words."""
CHARACTER_SHARE = 0.011
"""Of the width: one character of a label."""
PLOT_PIXELS = 270
"""Height of the entropy chart without its axis."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Something that happened at a step."""

    step: int
    label: str
    """In a few characters."""
    kind: str = "control"
    """`control`, `watch` or `act`."""
    text: str = ""
    """In a sentence, shown on hover."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """A straight line from the newest entropy, or from the step at which a control was applied."""

    label: str
    start: int
    entropy: float
    """At the start, in nats."""
    slope: float
    """In nats a step."""
    slope_low: float | None = None
    slope_high: float | None = None
    helps: bool = False
    """Whether it is the line with the control; else the one without."""
    is_suggested: bool = False
    """Of a control that nobody pushed."""
    clip_fraction: float | None = None

    @property
    def name(self) -> str:
        """Of its trace and its label: the browser hides what is suggested while it draws what the form has."""
        return "suggested" if self.is_suggested else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What all four charts share."""

    scheme: Scheme
    scale: Scale
    first: int
    """Of the window."""
    last: int
    """The newest step; the zone of the next steps begins there."""
    zoom: tuple[float, float] | None = None
    """In units of the scale."""
    smooth: bool = True
    is_live: bool = True
    marks: Sequence[Mark] = ()
    forecasts: Sequence[Forecast] = field(default_factory=list)
    early_level: float | None = None
    absent: str = ""
    """Of a run that is over: in the place of a chart of which nothing was reported."""

    @property
    def ends(self) -> tuple[float, float]:
        if self.zoom is not None:
            return self.zoom
        beyond = NEXT_STEPS + max(2, (self.last - self.first) // 20) if self.is_live else 0
        return self.scale.at(self.first), self.scale.at(max(self.last + beyond, self.first + 1))


Series = Mapping[str, SeriesColumns]


def _chart(shown: Shown) -> Chart:
    chart = Chart(shown.scheme, shown.scale)
    first, last = shown.ends
    chart.x_axis(first, last)
    if shown.is_live:
        end = last if shown.zoom is None else chart.scale.step_at(last)
        if shown.zoom is None:
            end = shown.last + NEXT_STEPS * 2
        chart.zone(shown.last, end, chart.ink["future"])
        chart.mark(shown.last, chart.ink["zero"], dash="solid")
    return chart


def _add_marks(chart: Chart, shown: Shown, *, labelled: bool) -> None:
    controls = [mark for mark in shown.marks if mark.kind == "control"]
    first, last = shown.ends
    free_from = float("inf")
    for mark in reversed(controls):
        place = chart.scale.at(mark.step)
        if not first <= place <= last:
            continue
        chart.mark(mark.step, chart.ink["faint"])
        share = (place - first) / ((last - first) or 1)
        width = CHARACTER_SHARE * len(mark.label) + 0.02
        if labelled and mark.label and share + width < free_from:
            free_from = share
            left = share + width > 1
            chart.label(
                html.escape(mark.label), x=mark.step, y=1, yref="paper", yanchor="top",
                xanchor="right" if left else "left", xshift=-4 if left else 4,
            )  # fmt: skip


def _columns(series: Series, name: str) -> SeriesColumns:
    return series.get(name, EMPTY)


def entropy_figure(series: Series, shown: Shown) -> dict[str, Any]:
    """Observed entropy from 0, the early level, what of it is lost, alarms, the held target, and the forecasts."""
    chart = _chart(shown)
    ink = chart.ink
    entropy = _columns(series, ENTROPY_MEAN)
    if not entropy.step:
        chart.note(shown.absent or "No entropy was reported so far")
        return chart.figure()
    early = shown.early_level
    low, high = value_range([entropy, _columns(series, HOLD_TARGET)], from_zero=True, high=early)
    chart.y_axis(low, high)
    if early is not None:
        for left, words, color in (
            (1.0, f"early level {number(early)}", "muted"),
            (WATCH_LEFT, f"{percent(1 - WATCH_LEFT, 0)} lost · Watch", "muted"),
            (ACT_LEFT, f"{percent(1 - ACT_LEFT, 0)} lost · Act", "act"),
            (FLOOR, f"{percent(1 - FLOOR, 0)} lost", "muted"),
        ):
            value = early * left
            chart.level(value, ink["act" if color == "act" else "faint"], dash="1px,3px" if left == 1 else "4px,4px")
            side: Mapping[str, Any] = {"at": 1, "xanchor": "right"}
            if left != 1:
                free = _free_place(entropy, shown, value, value + LABEL_HEIGHT_SHARE * (high - low))
                side = {"at": free, "xanchor": "left", "xshift": 4}
            chart.label(words, y=value, yanchor="bottom", color=ink[color], **side)
    _add_forecasts(chart, shown, high - low)
    target = _columns(series, HOLD_TARGET)
    if target.step:
        chart.line(target, name="held target", color=ink["hold"], width=1.5, dash="2px,2px", written=_nats)
    chart.line(entropy, name="entropy", color=ink["iris"], written=_nats)
    values = dict(zip(entropy.step, entropy.value, strict=True))
    for mark in shown.marks:
        if mark.kind != "control" and mark.step in values:
            color = ink["act" if mark.kind == "act" else "upper"]
            chart.dot(mark.step, values[mark.step], color, symbol="triangle-up", text=html.escape(mark.text))
            share = (chart.scale.at(mark.step) - shown.ends[0]) / ((shown.ends[1] - shown.ends[0]) or 1)
            if share > LEVEL_LABELS_SHARE:
                chart.label(mark.label, x=mark.step, y=values[mark.step], yshift=13, xanchor="left", color=color)
    _add_marks(chart, shown, labelled=True)
    if shown.is_live:
        chart.dot(entropy.step[-1], entropy.value[-1], ink["iris"])
    return chart.figure()


def _free_place(columns: SeriesColumns, shown: Shown, low: float, high: float) -> float:
    """Where a label between two values keeps clear of a line and its marks: a share of the width; 0 where none does."""
    first, last = shown.ends

    def place(step: int) -> float:
        return (shown.scale.at(step) - first) / ((last - first) or 1)

    points = [(place(step), value) for step, value in zip(columns.step, columns.value, strict=True)]
    values = dict(zip(columns.step, columns.value, strict=True))
    beneath = low - 2 * (high - low)
    alarms = [place(mark.step) for mark in shown.marks if beneath <= values.get(mark.step, -1.0) <= high]
    for begin in (0.0, 0.2, 0.4, 0.6, 0.76):
        end = begin + LEVEL_LABELS_SHARE
        near = [value for at, value in points if begin - 0.02 <= at <= end]
        # The label of an alarm is at its right; at the left edge it has none.
        is_marked = begin > 0 and any(begin - 0.08 <= at <= end for at in alarms)
        is_ahead = shown.is_live and end > points[-1][0]
        if not is_ahead and not is_marked and (not near or max(near) < low or min(near) > high):
            return begin
    return 0.0


def _nats(value: float | None) -> str:
    return f"{number(value, 4)} nats"


def _add_forecasts(chart: Chart, shown: Shown, height: float) -> None:
    for line in shown.forecasts:
        color, soft = ("hold", "hold_soft") if line.helps else ("act", "act_soft")
        end = max(line.start, shown.last) + NEXT_STEPS
        ahead = end - line.start
        steps = [line.start, end]
        if line.slope_low is not None and line.slope_high is not None:
            low, high = (line.entropy + slope * ahead for slope in (line.slope_low, line.slope_high))
            places = [chart.scale.at(step) for step in (line.start, end, end)]
            chart.area(places, [line.entropy, max(0.0, high), max(0.0, low)], chart.ink[soft])
        value = max(0.0, line.entropy + line.slope * ahead)
        places_ahead = chart.scale.at(end) - chart.scale.at(line.start)
        chart.stroke(steps, [line.entropy, value], chart.ink[color])
        # Beneath a line that falls, above one that rises; under the axis there is no room. It ends where the line does: above
        # a line that falls, and beneath one that rises, it keeps clear of where the line is at its first character.
        falls = value < line.entropy
        above = line.helps or not falls or value < 0.1 * height
        words = f"{line.label}  {number(value)}"
        first, last = shown.ends
        covered = min(1.0, len(words) * CHARACTER_SHARE * ((last - first) or 1) / (places_ahead or 1))
        clear = covered * abs(line.entropy - value) / height * PLOT_PIXELS if falls == above else 0.0
        chart.data[-1]["meta"] = line.name
        chart.label(
            f"<b>{html.escape(line.label)}</b>  {number(value)}", x=end, y=value, xanchor="right", name=line.name,
            yanchor="bottom" if above else "top", yshift=8 + clear if above else -6 - clear, color=chart.ink[color],
        )  # fmt: skip


def reward_figure(series: Series, shown: Shown) -> dict[str, Any]:
    """Reward, smoothed over the raw line."""
    chart = _chart(shown)
    reward = _columns(series, REWARD_MEAN)
    if not reward.step:
        chart.note(shown.absent or "No reward was reported: pass rewards, or log it")
        return chart.figure()
    chart.y_axis(*value_range([reward], from_zero=True))
    chart.line(reward, name="reward", color=chart.ink["iris"], smooth=shown.smooth, written=number)
    _add_marks(chart, shown, labelled=False)
    return chart.figure()


def change_figure(series: Series, shown: Shown) -> dict[str, Any]:
    """Predicted entropy change with its 90 % band, and the observed change."""
    chart = _chart(shown)
    ink = chart.ink
    predicted, observed = _columns(series, ENTROPY_PREDICTED_CHANGE), _columns(series, ENTROPY_OBSERVED_CHANGE)
    if not predicted.step and not observed.step:
        chart.note(shown.absent or "A calibrated prediction needs several steps")
        return chart.figure()
    chart.y_axis(*value_range([predicted, observed], low=0.0), zeroline=True)
    low, high = _columns(series, ENTROPY_PREDICTED_CHANGE_LOW), _columns(series, ENTROPY_PREDICTED_CHANGE_HIGH)
    chart.band(low, high, ink["iris_soft"])
    chart.line(observed, name="observed", color=ink["observed"], width=1.2, written=change)
    chart.line(predicted, name="predicted", color=ink["iris"], written=change)
    decimals = min(8, max(4, *(decimals_of(line.slope, 1) for line in shown.forecasts if not line.helps), 0))
    for line in shown.forecasts:
        end = max(line.start, shown.last) + NEXT_STEPS
        color = ink["hold" if line.helps else "act"]
        chart.stroke([shown.last, end], [line.slope, line.slope], color)
        chart.data[-1]["meta"] = line.name
        chart.label(
            f"{html.escape(line.label)}  {fixed(line.slope, decimals)}", x=end, y=line.slope, xanchor="right",
            name=line.name, yanchor="bottom" if line.helps else "top", color=color,
        )  # fmt: skip
    _add_marks(chart, shown, labelled=False)
    return chart.figure()


def clip_figure(series: Series, shown: Shown) -> dict[str, Any]:
    """Share of the tokens that the active method clips."""
    chart = _chart(shown)
    ink = chart.ink
    clipped = _columns(series, CLIP_FRACTION)
    if not clipped.step:
        chart.note(shown.absent or "No clip fraction was reported so far")
        return chart.figure()
    predicted = max((line.clip_fraction or 0.0 for line in shown.forecasts), default=0.0)
    chart.y_axis(*value_range([clipped], from_zero=True, high=max(0.05, predicted)), written=percent_texts)
    chart.line(clipped, name="clipped", color=ink["iris"], written=percent)
    for line in shown.forecasts:
        if line.clip_fraction is not None:
            end = max(line.start, shown.last) + NEXT_STEPS
            chart.stroke([shown.last, end], [line.clip_fraction] * 2, ink["hold"])
            chart.data[-1]["meta"] = line.name
            chart.label(
                f"{html.escape(line.label)}  {percent(line.clip_fraction)}", x=end, y=line.clip_fraction,
                xanchor="right", name=line.name, yanchor="bottom", color=ink["hold"],
            )  # fmt: skip
    _add_marks(chart, shown, labelled=True)
    return chart.figure()
