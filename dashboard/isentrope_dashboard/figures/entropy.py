"""The entropy over steps with its levels, alarms and forecasts; and the reward against it, with the curve fitted to both."""

from __future__ import annotations

import html
from bisect import bisect_left
from collections.abc import Mapping
from typing import Any

from isentrope_dashboard.figures.chart import Chart, tick_texts, ticks, value_range
from isentrope_dashboard.figures.panel import Figure, Panel, Shown, absent, begin
from isentrope_dashboard.formatting import count, number, percent
from isentrope_wire.answers import SeriesColumns
from isentrope_wire.diagnosis.course import ACT_LEFT, WATCH_LEFT
from isentrope_wire.metrics import ENTROPY_MEAN, HOLD_TARGET

LEVEL_LABELS_SHARE = 0.22
"""Share of the width that the labels of the levels take."""
LABEL_HEIGHT_SHARE = 0.06
"""Share of the entropy chart's height that a line of words takes."""


def entropy_figure(panel: Panel, shown: Shown) -> Figure | str:
    """Observed entropy from 0, the early level, what of it is lost, alarms, the held target, and the forecasts."""
    why = absent(panel, shown)
    if why:
        return why
    chart = begin(panel, shown)
    ink, early = chart.ink, shown.early_level
    entropy, target = shown.columns(ENTROPY_MEAN), shown.columns(HOLD_TARGET)
    ends = [line.course.entropy[-1] for line in shown.forecasts if line.course is not None]
    low, high = value_range([entropy, target], from_zero=True, high=max([*ends, early or 0.0]) or None)
    chart.y_axis(low, high)
    if early is not None:
        for left, words, color in (
            (1.0, f"early level {number(early)}", "muted"),
            (WATCH_LEFT, f"{percent(1 - WATCH_LEFT, 0)} lost · Watch", "muted"),
            (ACT_LEFT, f"{percent(1 - ACT_LEFT, 0)} lost · Act", "act"),
        ):
            value = early * left
            chart.level(value, ink["act" if color == "act" else "faint"], dash="1px,3px" if left == 1 else "4px,4px")
            side: Mapping[str, Any] = {"at": 1, "xanchor": "right"}
            if left != 1:
                free = _free_place(entropy, shown, value, value + LABEL_HEIGHT_SHARE * (high - low))
                side = {"at": free, "xanchor": "left", "xshift": 4}
            chart.label(words, y=value, yanchor="bottom", color=ink[color], **side)
    _add_forecasts(chart, shown, high - low)
    if target.step:
        chart.line(target, name="held target", color=ink["hold"], width=1.5, dash="2px,2px", written=_nats)
    chart.line(entropy, name="entropy", color=ink["iris"], written=_nats)
    values = {
        mark.step: entropy.value[min(bisect_left(entropy.step, mark.step), len(entropy.step) - 1)]
        for mark in shown.marks
    }
    for mark in shown.marks:
        if mark.kind != "control" and entropy.step[0] <= mark.step <= entropy.step[-1]:
            color = ink["act" if mark.kind == "act" else "upper"]
            chart.dot(mark.step, values[mark.step], color, symbol="triangle-up", text=html.escape(mark.text))
            if shown.share(chart.scale.at(mark.step)) > LEVEL_LABELS_SHARE:
                chart.label(mark.label, x=mark.step, y=values[mark.step], yshift=13, xanchor="left", color=color)
    if shown.is_live:
        chart.dot(entropy.step[-1], entropy.value[-1], ink["iris"])
    return chart.figure()


def _free_place(columns: SeriesColumns, shown: Shown, low: float, high: float) -> float:
    """Where a label between two values keeps clear of a line and its marks: a share of the width; 0 where none does."""
    points = [
        (shown.share(shown.scale.at(step)), value) for step, value in zip(columns.step, columns.value, strict=True)
    ]
    values = dict(zip(columns.step, columns.value, strict=True))
    beneath = low - 2 * (high - low)
    alarms = [
        shown.share(shown.scale.at(mark.step)) for mark in shown.marks if beneath <= values.get(mark.step, -1.0) <= high
    ]
    for begin_at in (0.0, 0.2, 0.4, 0.6, 0.76):
        end = begin_at + LEVEL_LABELS_SHARE
        near = [value for at, value in points if begin_at - 0.02 <= at <= end]
        # The label of an alarm is at its right; at the left edge it has none.
        is_marked = begin_at > 0 and any(begin_at - 0.08 <= at <= end for at in alarms)
        is_ahead = shown.is_live and end > points[-1][0]
        if not is_ahead and not is_marked and (not near or max(near) < low or min(near) > high):
            return begin_at
    return 0.0


def _nats(value: float | None) -> str:
    return f"{number(value, 4)} nats"


def _add_forecasts(chart: Chart, shown: Shown, height: float) -> None:
    """Each forecast as a line, the one without a control with its band. Labels keep apart: the higher line's lies above it."""
    lines = [(line, line.course) for line in shown.forecasts if line.course is not None]
    highest = max((course.entropy[-1] for _, course in lines), default=0.0)
    for line, course in lines:
        color, soft = ("hold", "hold_soft") if line.helps else ("act", "act_soft")
        if not line.helps:
            places = [chart.scale.at(step) for step in course.step]
            chart.area([*places, *reversed(places)], [*course.high, *reversed(course.low)], chart.ink[soft])
        chart.stroke(course.step, course.entropy, chart.ink[color], meta=line.name)
        value = course.entropy[-1]
        above = value >= highest or value < LABEL_HEIGHT_SHARE * height
        words = f"<b>{html.escape(line.label)}</b>  {number(value)}"
        if not line.helps:
            words += f" ({number(course.low[-1])} to {number(course.high[-1])})"
        chart.label(
            words, x=course.step[-1], y=value, xanchor="right", name=line.name,
            yanchor="bottom" if above else "top", yshift=5 if above else -5, color=chart.ink[color],
        )  # fmt: skip


def law_figure(_panel: Panel, shown: Shown) -> Figure | str:
    """Reward against entropy: the run's steps, later ones in a stronger colour, the curve R = -a exp(H) + b, its ceiling and
    the forecast. Without a fit the points alone, and the ceiling only where it follows."""
    law = shown.law
    if law is None or not law.points.step:
        return law.reason.message if law and law.reason else "No step has both entropy and reward."
    chart = Chart(shown.scheme)
    ink, points, curve = chart.ink, law.points, law.curve
    chart.layout |= {"hovermode": "closest", "margin": {"l": 48, "r": 12, "t": 8, "b": 36}}
    ceiling = law.fit.ceiling if law.fit is not None else None
    xs, ys = list(points.entropy), list(points.reward)
    if curve is not None:
        chart.area(curve.entropy + curve.entropy[::-1], curve.high + curve.low[::-1], ink["iris_soft"])
        chart.stroke(curve.entropy, curve.reward, ink["iris"], dash="solid")
        xs, ys = xs + curve.entropy, ys + curve.low + curve.high
    if ceiling is not None:
        chart.level(ceiling.value, ink["hold"])
        words = f"ceiling {number(ceiling.value)}"
        chart.label(words, at=1, xanchor="right", y=ceiling.value, yanchor="bottom", color=ink["hold"])
        ys.append(ceiling.value)
    hover = "%{text}<extra></extra>"
    chart.scatter(
        points.entropy, points.reward, mode="markers", name="steps", hovertemplate=hover,
        marker={"size": 6, "color": points.step, "colorscale": [[0, ink["zero"]], [1, ink["iris"]]]},
        text=[f"to step {count(step)}<br>H {number(h)} nats, reward {number(reward)}"
              for step, h, reward in zip(points.step, points.entropy, points.reward, strict=True)],
    )  # fmt: skip
    if law.forecast is not None:
        made = law.forecast
        low, value, high = made.reward.low, made.reward.value, made.reward.high
        chart.scatter(
            [made.at_entropy], [value], mode="markers", name="forecast", hovertemplate=hover,
            text=[f"forecast from step {count(made.through_step)}: {number(value)}"],
            marker={"size": 10, "symbol": "diamond", "color": ink["upper"]},
            error_y={"type": "data", "symmetric": False, "array": [high - value], "arrayminus": [value - low],
                     "thickness": 1.4, "width": 5, "color": ink["upper"]},
        )  # fmt: skip
        ys += [low, high]
    room_x, room_y = (0.05 * (max(values) - min(values)) or 0.01 for values in (xs, ys))
    left, right = min(xs) - room_x, max(xs) + room_x
    places = ticks(left, right, 7)
    font = {"size": 11, "color": ink["muted"]}
    chart.layout["xaxis"] = {
        "range": [left, right], "tickvals": places, "ticktext": tick_texts(places), "showspikes": False,
        "title": {"text": "entropy, nats", "font": font, "standoff": 4},
    }  # fmt: skip
    chart.y_axis(min(ys) - room_y, max(ys) + room_y, title={"text": html.escape(law.reward), "font": font})
    return chart.figure()
