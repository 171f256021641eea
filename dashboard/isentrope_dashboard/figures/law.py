"""Reward against entropy: the run's steps, the curve fitted to them, its ceiling and the forecast."""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go

from isentrope_dashboard import theme
from isentrope_dashboard.figures.lines import show_note
from isentrope_wire.control_answers import EntropyPerformance, Estimate, FitCurve, Forecast

HEIGHT = 290


def law_figure(law: EntropyPerformance | None, *, revision: str) -> go.Figure:
    """Points coloured by step, the curve R = -a exp(H) + b with its band, the ceiling at H = 0, the forecast.

    Without a fit there are only the points; the ceiling is drawn only where it follows from the fit.
    """
    figure = go.Figure(layout=_layout(revision))
    if law is None or not law.points.step:
        figure.update_layout(showlegend=False)
        show_note(figure, "No step with both entropy and reward yet")
        return figure
    if law.curve is not None:
        _add_curve(figure, law.curve, law.confidence)
    figure.add_scatter(
        x=law.points.entropy,
        y=law.points.reward,
        customdata=law.points.step,
        mode="markers",
        name="steps",
        showlegend=False,
        marker={"size": 5, "color": law.points.step, "coloraxis": "coloraxis", "opacity": 0.9},
        hovertemplate="step %{customdata}<br>H %{x:.3f}<br>reward %{y:.3f}<extra></extra>",
    )
    figure.update_yaxes(title_text=law.reward)
    if law.fit is not None and law.curve is not None and law.fit.ceiling is not None:
        _add_ceiling(figure, law.fit.ceiling, law.curve)
    if law.forecast is not None:
        _add_forecast(figure, law.forecast)
    return figure


def _add_curve(figure: go.Figure, curve: FitCurve, confidence: float) -> None:
    for values, fill in ((curve.high, None), (curve.low, "tonexty")):
        figure.add_scatter(
            x=curve.entropy,
            y=values,
            mode="lines",
            line={"width": 0},
            fill=fill,
            fillcolor="rgba(101,117,236,.18)",
            hoverinfo="skip",
            showlegend=False,
        )
    figure.add_scatter(
        x=curve.entropy,
        y=curve.reward,
        mode="lines",
        name=f"R = −a·exp(H) + b, {confidence:.0%} band",
        line={"width": 2},
        hovertemplate="H %{x:.2f}<br>curve %{y:.3f}<extra></extra>",
        meta={"slot": theme.SLOT_ENTROPY},
    )


def _add_ceiling(figure: go.Figure, ceiling: Estimate, curve: FitCurve) -> None:
    figure.add_scatter(
        x=[0, max(curve.entropy)],
        y=[ceiling.value, ceiling.value],
        mode="lines",
        name="ceiling b − a",
        line={"width": 1.4, "dash": "4px,3px"},
        hovertemplate=f"ceiling {ceiling.value:.3f}<extra></extra>",
        meta={"slot": theme.SLOT_NEGATIVE},
    )


def _add_forecast(figure: go.Figure, forecast: Forecast) -> None:
    reward = forecast.reward
    figure.add_scatter(
        x=[forecast.at_entropy],
        y=[reward.value],
        error_y={
            "type": "data",
            "symmetric": False,
            "array": [reward.high - reward.value],
            "arrayminus": [reward.value - reward.low],
            "thickness": 1.4,
            "width": 5,
        },
        mode="markers",
        name=f"forecast from step {forecast.through_step:,}",
        marker={"size": 10, "symbol": "diamond"},
        hovertemplate=f"forecast from step {forecast.through_step:,}: %{{y:.3f}}<extra></extra>",
        meta={"slots": [theme.SLOT_PREDICTED]},
    )


def _layout(revision: str) -> dict[str, Any]:
    return {
        "template": "none",  # the browser knows the colour scheme and puts its template in
        "uirevision": revision,
        "autosize": True,
        "hovermode": "closest",
        "margin": {"t": 26, "r": 8},
        "xaxis": {"title": {"text": "entropy (nats)"}, "rangemode": "tozero"},
        "yaxis": {"title": {"text": "reward"}},
        "coloraxis": {
            "colorscale": [list(stop) for stop in theme.PROGRESS],
            "colorbar": {"title": {"text": "step", "font": {"size": 11}}, "nticks": 5},
        },
    }
