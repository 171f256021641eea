"""Reward against entropy: the run's steps, the law fitted to them, and where it ends."""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go

from isentrope_dashboard import theme
from isentrope_dashboard.figures.lines import say
from isentrope_dashboard.predictions import Forecast, Law, LawFit

HEIGHT = 290


def law_figure(law: Law, *, revision: str) -> go.Figure:
    """Points coloured by step, the curve R = -a exp(H) + b with its band, the ceiling at H = 0, the forecast.

    Without a fit the points stand alone; a fit that is not conclusive has no ceiling.
    """
    figure = go.Figure(layout=_layout(revision))
    if not law.point_steps:
        figure.update_layout(showlegend=False)
        say(figure, "No step with both entropy and reward yet")
        return figure
    if law.fit is not None:
        _add_curve(figure, law.fit, law.confidence)
    figure.add_scatter(
        x=list(law.point_entropies),
        y=list(law.point_rewards),
        customdata=list(law.point_steps),
        mode="markers",
        name="steps",
        showlegend=False,
        marker={"size": 5, "color": list(law.point_steps), "coloraxis": "coloraxis", "opacity": 0.9},
        hovertemplate="step %{customdata}<br>H %{x:.3f}<br>reward %{y:.3f}<extra></extra>",
    )
    if law.fit is not None and law.fit.conclusive:
        _add_ceiling(figure, law.fit)
    if law.forecast is not None:
        _add_forecast(figure, law.forecast)
    return figure


def _add_curve(figure: go.Figure, fit: LawFit, confidence: float) -> None:
    for values, fill in ((fit.high, None), (fit.low, "tonexty")):
        figure.add_scatter(
            x=list(fit.entropy),
            y=list(values),
            mode="lines",
            line={"width": 0},
            fill=fill,
            fillcolor="rgba(101,117,236,.18)",
            hoverinfo="skip",
            showlegend=False,
        )
    figure.add_scatter(
        x=list(fit.entropy),
        y=list(fit.reward),
        mode="lines",
        name=f"R = −a·exp(H) + b, {confidence:.0%} band",
        line={"width": 2},
        hovertemplate="H %{x:.2f}<br>curve %{y:.3f}<extra></extra>",
        meta={"slot": theme.SLOT_ENTROPY},
    )


def _add_ceiling(figure: go.Figure, fit: LawFit) -> None:
    ceiling = fit.ceiling.value
    figure.add_scatter(
        x=[0, max(fit.entropy)],
        y=[ceiling, ceiling],
        mode="lines",
        name="ceiling b − a",
        line={"width": 1.4, "dash": "4px,3px"},
        hovertemplate=f"ceiling {ceiling:.3f}<extra></extra>",
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
