"""The entropy over steps with its levels, alarms and forecasts; and the reward against it, with the
curve fitted to both."""

from __future__ import annotations

import html
from bisect import bisect_left
from textwrap import wrap

from isentrope_dashboard.figures.chart import Chart, hover_line, tick_texts, ticks, value_range
from isentrope_dashboard.figures.panel import (
    Figure,
    Forecast,
    Panel,
    Shown,
    absent,
    add_seeds,
    begin,
    end_label,
)
from isentrope_dashboard.formatting import count, number
from isentrope_wire.control_answers import EntropyForecast
from isentrope_wire.diagnosis.course import ACT_LEFT, AHEAD, WATCH_LEFT
from isentrope_wire.metrics import ENTROPY_MEAN, HOLD_TARGET


def entropy_figure(panel: Panel, shown: Shown) -> Figure | str:
    """Observed entropy from 0, the early level, what of it is lost, alarms, the held target, and
    the forecasts."""
    why = absent(panel, shown)
    if why:
        return why
    promises = _promises(shown)
    is_known = any(line.course is not None for line in shown.forecasts)
    chart = begin(panel, shown, looks_ahead=is_known or bool(promises))
    ink, early = chart.ink, shown.early_level
    entropy, target = shown.columns(ENTROPY_MEAN), shown.columns(HOLD_TARGET)
    seen, whole = [shown.seen(columns) for columns in (entropy, target)], shown.zoom is None
    seen += map(shown.seen, shown.ends_of_seeds(ENTROPY_MEAN))
    ends = []
    if whole:
        ends = [line.course.entropy[-1] for line in shown.forecasts if line.course is not None]
        ends += [max(entropies) for _, _, _, entropies in promises]
    chart.y_axis(
        *value_range(
            seen, from_zero=whole, high=max([*ends, early or 0.0]) or None if whole else None
        )
    )
    add_seeds(chart, panel, shown)
    for left, word, color in (
        (1.0, "early", "muted"),
        (WATCH_LEFT, "Watch", "upper"),
        (ACT_LEFT, "Act", "act"),
    ):
        if early is not None:
            value = early * left
            chart.level(value, ink["faint"], dash="1px,3px")
            chart.end(f"{word} {number(value)}", value, ink[color])
    for line in shown.forecasts:
        if line.course is not None:
            _add_forecast(chart, line, line.course)
    for label, color, steps, entropies in promises:
        chart.stroke(steps, entropies, ink[color], width=1.5, opacity=0.8)
        if steps[-1] >= shown.last - AHEAD:
            words = end_label(label, value_at(entropies[-1], steps[-1]))
            chart.end(words, entropies[-1], ink[color], step=steps[-1])
    if target.step:
        chart.line(
            target, name="held target", color=ink["hold"], width=1.5, dash="2px,2px", written=_nats
        )
        if target.step[-1] >= shown.last:
            chart.end(f"hold {number(target.value[-1])}", target.value[-1], ink["hold"])
    chart.line(entropy, name="entropy", color=ink["iris"], written=_nats)
    for mark in shown.marks:
        # The newest alert may come before its step is among the values.
        if mark.kind != "control" and entropy.step[0] <= mark.step:
            value = entropy.value[min(bisect_left(entropy.step, mark.step), len(entropy.step) - 1)]
            color = ink["act" if mark.kind == "act" else "upper"]
            chart.dot(
                mark.step,
                value,
                color,
                symbol="triangle-up",
                text="<br>".join(map(html.escape, wrap(mark.text, 56))),
            )
    if shown.is_live:
        chart.dot(entropy.step[-1], entropy.value[-1], ink["iris"])
    return chart.figure()


def _promises(shown: Shown) -> list[tuple[str, str, list[int], list[float]]]:
    """Name, colour, steps and entropies of both forecasts of the moment at which the active control
    was pushed; none where it was pushed without a forecast."""
    active = next((item for item in shown.history if item.applied_step is not None), None)
    if active is None or active.predicted is None or active.requested_step is None:
        return []
    predicted, pushed = active.predicted, active.requested_step
    lines = (("promised", "hold", predicted.forecast), ("without it", "act", predicted.unchanged))
    return [
        (label, color, [pushed + ahead for ahead in range(1, len(entropies) + 1)], entropies)
        for label, color, entropies in lines
        if entropies
    ]


def value_at(value: float | None, step: int) -> str:
    """`0.410 at 181`: a forecast, and of which step it is; a long number of steps has its line."""
    if step < 1000:
        return f"{number(value)} at {step}"
    return f"{number(value)}<br>at {count(step)}"


def _nats(value: float | None) -> str:
    return f"{number(value, 4)} nats"


def _add_forecast(chart: Chart, line: Forecast, course: EntropyForecast) -> None:
    """A line with what the mouse reads of it, and its band; where the line is worth nothing, the
    band alone."""
    color, soft = line.tone, f"{line.tone}_soft"
    if line.has_band:
        places = [chart.scale.position(step) for step in course.step]
        chart.area(
            [*places, *reversed(places)], [*course.high, *reversed(course.low)], chart.ink[soft]
        )
    if not line.is_drawn:
        return
    texts = [
        f"{number(value)} ({number(low)} to {number(high)})"
        for value, low, high in zip(course.entropy, course.low, course.high, strict=True)
    ]
    chart.stroke(
        course.step,
        course.entropy,
        chart.ink[color],
        meta=line.name,
        text=texts,
        hovertemplate=hover_line(line.label),
    )
    value = course.entropy[-1]
    chart.end(
        end_label(line.label, value_at(value, course.step[-1])),
        value,
        chart.ink[color],
        step=course.step[-1],
        name=line.name,
    )


def law_figure(_panel: Panel, shown: Shown) -> Figure | str:
    """Reward against entropy: the run's steps, later ones in a stronger colour, the curve R = -a
    exp(H) + b, its ceiling and the forecast. Without a fit the points alone, and the ceiling only
    where it follows."""
    law = shown.law
    if law is None or not law.points.step:
        if law and law.reason:
            return law.reason.message
        return "No step has both entropy and reward."
    chart = Chart(shown.scheme)
    ink, points, curve = chart.ink, law.points, law.curve
    chart.layout |= {"hovermode": "closest", "margin": {"l": 48, "r": 12, "t": 8, "b": 36}}
    ceiling = None
    if law.fit is not None:
        ceiling = law.fit.ceiling
    xs, ys = list(points.entropy), list(points.reward)
    if curve is not None:
        chart.area(
            curve.entropy + curve.entropy[::-1], curve.high + curve.low[::-1], ink["iris_soft"]
        )
        chart.stroke(curve.entropy, curve.reward, ink["iris"], dash="solid")
        xs, ys = xs + curve.entropy, ys + curve.low + curve.high
    if ceiling is not None:
        chart.level(ceiling.value, ink["hold"])
        words = f"ceiling {number(ceiling.value)}"
        chart.label(
            words, at=1, xanchor="right", y=ceiling.value, yanchor="bottom", color=ink["hold"]
        )
        ys.append(ceiling.value)
    hover = "%{text}<extra></extra>"
    chart.scatter(
        points.entropy,
        points.reward,
        mode="markers",
        name="steps",
        hovertemplate=hover,
        marker={
            "size": 6,
            "color": points.step,
            "colorscale": [[0, ink["zero"]], [1, ink["iris"]]],
        },
        text=[
            f"to step {count(step)}<br>H {number(h)} nats, reward {number(reward)}"
            for step, h, reward in zip(points.step, points.entropy, points.reward, strict=True)
        ],
    )
    if law.forecast is not None:
        made = law.forecast
        low, value, high = made.reward.low, made.reward.value, made.reward.high
        chart.scatter(
            [made.at_entropy],
            [value],
            mode="markers",
            name="forecast",
            hovertemplate=hover,
            text=[f"forecast from step {count(made.through_step)}: {number(value)}"],
            marker={"size": 10, "symbol": "diamond", "color": ink["upper"]},
            error_y={
                "type": "data",
                "symmetric": False,
                "array": [high - value],
                "arrayminus": [value - low],
                "thickness": 1.4,
                "width": 5,
                "color": ink["upper"],
            },
        )
        ys += [low, high]
    room_x, room_y = (0.05 * (max(values) - min(values)) or 0.01 for values in (xs, ys))
    left, right = min(xs) - room_x, max(xs) + room_x
    places = ticks(left, right, 7)
    font = {"size": 11, "color": ink["muted"]}
    chart.layout["xaxis"] = {
        "range": [left, right],
        "tickvals": places,
        "ticktext": tick_texts(places),
        "showspikes": False,
        "title": {"text": "entropy, nats", "font": font, "standoff": 4},
    }
    chart.y_axis(
        min(ys) - room_y, max(ys) + room_y, title={"text": html.escape(law.reward), "font": font}
    )
    return chart.figure()
