"""Reward against entropy: the run's steps, the curve R = -a exp(H) + b fitted to them, its ceiling and the forecast."""

from __future__ import annotations

import html
from typing import Any

from isentrope_dashboard.figures.chart import Chart, tick_texts, ticks
from isentrope_dashboard.formatting import count, number
from isentrope_dashboard.theme import Scheme
from isentrope_wire.control_answers import EntropyPerformance


def law_figure(law: EntropyPerformance, scheme: Scheme) -> dict[str, Any]:
    """Later steps in a stronger colour; without a fit the points alone, and the ceiling only where it follows."""
    chart = Chart(scheme)
    ink = chart.ink
    points = law.points
    chart.layout |= {"hovermode": "closest", "margin": {"l": 48, "r": 12, "t": 8, "b": 36}}
    curve, ceiling = law.curve, law.fit.ceiling if law.fit is not None else None
    xs, ys = list(points.entropy), list(points.reward)
    if curve is not None:
        chart.area(curve.entropy + curve.entropy[::-1], curve.high + curve.low[::-1], ink["iris_soft"])
        chart.stroke(curve.entropy, curve.reward, ink["iris"], dash="solid")
        xs, ys = xs + curve.entropy, ys + curve.low + curve.high
    if ceiling is not None:
        chart.level(ceiling.value, ink["hold"])
        chart.label(f"ceiling {number(ceiling.value)}", at=1, xanchor="right", y=ceiling.value, yanchor="bottom",
                    color=ink["hold"])  # fmt: skip
        ys.append(ceiling.value)
    chart.data.append(
        {
            "type": "scatter", "mode": "markers", "name": "steps", "x": points.entropy, "y": points.reward,
            "marker": {"size": 6, "color": points.step, "colorscale": [[0, ink["zero"]], [1, ink["iris"]]]},
            "text": [f"to step {count(step)}<br>H {number(h)} nats, reward {number(reward)}"
                     for step, h, reward in zip(points.step, points.entropy, points.reward, strict=True)],
            "hovertemplate": "%{text}<extra></extra>",
        }
    )  # fmt: skip
    if law.forecast is not None:
        made = law.forecast
        words = f"forecast from step {count(made.through_step)}: {number(made.reward.value)}"
        chart.data.append(
            {
                "type": "scatter", "mode": "markers", "name": "forecast", "x": [made.at_entropy], "y": [made.reward.value],
                "error_y": {"type": "data", "symmetric": False, "array": [made.reward.high - made.reward.value],
                            "arrayminus": [made.reward.value - made.reward.low], "thickness": 1.4, "width": 5,
                            "color": ink["upper"]},
                "marker": {"size": 10, "symbol": "diamond", "color": ink["upper"]},
                "text": [words], "hovertemplate": "%{text}<extra></extra>",
            }
        )  # fmt: skip
        ys += [made.reward.low, made.reward.high]
    room_x, room_y = (0.05 * (max(values) - min(values)) or 0.01 for values in (xs, ys))
    left, right = min(xs) - room_x, max(xs) + room_x
    places = ticks(left, right, 7)
    title = {"text": "entropy, nats", "font": {"size": 11, "color": ink["muted"]}, "standoff": 4}
    chart.layout["xaxis"] = {
        "range": [left, right], "tickvals": places, "ticktext": tick_texts(places), "showspikes": False, "title": title,
    }  # fmt: skip
    chart.y_axis(min(ys) - room_y, max(ys) + room_y, title={"text": html.escape(law.reward), "font": title["font"]})
    return chart.figure()
