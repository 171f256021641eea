"""What a chart says while there is nothing to draw."""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go


def say(figure: go.Figure, text: str) -> None:
    """Put one quiet sentence into the middle of an empty chart and hide its axes."""
    annotation: dict[str, Any] = {"x": 0.5, "y": 0.5, "xref": "paper", "yref": "paper", "font": {"size": 12}}
    figure.add_annotation(text=text, showarrow=False, **annotation)
    figure.update_xaxes(visible=False)
    figure.update_yaxes(visible=False)
