"""Design tokens: the Mantine theme and the Plotly templates. The only Python file that knows colours."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, Literal

import plotly.graph_objects as go

Scheme = Literal["light", "dark"]

FONT: Final = "Inter, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"

IRIS: Final = (
    "#eef1ff", "#dfe4fe", "#bfc8fb", "#9aa8f6", "#7a8af1", "#6575ec", "#5567e3", "#4456c8", "#3a4bb0", "#2e3d97",
)  # fmt: skip
NIGHT: Final = (
    "#d3d7e0", "#a9b0bf", "#868e9f", "#5d6575", "#3a414f", "#2a303c", "#20252f", "#171b23", "#11141b", "#0b0d12",
)  # fmt: skip

# Slots of the colourway that mean something; a trace names its slot in `meta` so that the browser can recolour it.
SLOT_ENTROPY, SLOT_OBSERVED, SLOT_PREDICTED, SLOT_NEGATIVE = 0, 1, 2, 3
SLOT_HELD, SLOT_NEUTRAL = 4, 5
SLOT_POSITIVE: Final = SLOT_OBSERVED

_INK: Final[Mapping[Scheme, Mapping[str, str]]] = {
    "light": {
        "text": "#1b2130",
        "muted": "#5b6475",
        "grid": "#eceff4",
        "zero": "#cfd5df",
        "hover": "#ffffff",
        "hover_border": "#d6dbe5",
    },
    "dark": {
        "text": "#e4e7ee",
        "muted": "#949db0",
        "grid": "#232935",
        "zero": "#3a414f",
        "hover": "#20252f",
        "hover_border": "#3a414f",
    },
}
_COLORWAY: Final[Mapping[Scheme, tuple[str, ...]]] = {
    "light": ("#4456c8", "#0e9f8e", "#d96c1c", "#c9375f", "#7b5bd6", "#64748b"),
    "dark": ("#8b9af8", "#2fc9b5", "#f2a35e", "#f0718f", "#b29af5", "#8793a8"),
}
_SEQUENTIAL: Final[Mapping[Scheme, tuple[tuple[float, str], ...]]] = {
    "light": (
        (0, "#ffffff"),
        (0.08, "#e7eafd"),
        (0.25, "#bfc8fb"),
        (0.5, "#7a8af1"),
        (0.75, "#4456c8"),
        (1, "#232d6e"),
    ),
    "dark": ((0, "#171b23"), (0.08, "#1f2740"), (0.25, "#323f7d"), (0.5, "#5567e3"), (0.75, "#9aa8f6"), (1, "#f1f3ff")),
}

# From the first to the last step of a run: each colour is visible on both schemes' cards.
PROGRESS: Final = ((0, "#e09a3e"), (0.5, "#cf5f8d"), (1, "#5567e3"))

MANTINE_THEME: Final[dict[str, Any]] = {
    "fontFamily": FONT,
    "primaryColor": "iris",
    "primaryShade": 6,
    "colors": {"iris": list(IRIS), "dark": list(NIGHT)},
    "defaultRadius": "md",
    "headings": {"fontFamily": FONT, "fontWeight": "600"},
    "components": {
        "Card": {"defaultProps": {"withBorder": True, "radius": "lg", "padding": "md", "shadow": "none"}},
        "Select": {"defaultProps": {"size": "sm", "allowDeselect": False, "checkIconPosition": "right"}},
        "NumberInput": {"defaultProps": {"size": "sm"}},
    },
}


def colorway(scheme: Scheme) -> tuple[str, ...]:
    """The line and bar colours, addressed by the SLOT_ constants."""
    return _COLORWAY[scheme]


def _axis(ink: Mapping[str, str]) -> dict[str, Any]:
    return {
        "gridcolor": ink["grid"],
        "zerolinecolor": ink["zero"],
        "zeroline": False,
        "linecolor": ink["grid"],
        "ticks": "",
        "tickfont": {"size": 11, "color": ink["muted"]},
        "title": {"font": {"size": 11, "color": ink["muted"]}, "standoff": 8},
        "automargin": True,
        "spikecolor": ink["muted"],
        "spikethickness": 1,
        "spikedash": "dot",
        "spikemode": "across",
    }


def _template(scheme: Scheme) -> dict[str, Any]:
    ink = _INK[scheme]
    layout = go.Layout(
        font={"family": FONT, "size": 12, "color": ink["text"]},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        colorway=_COLORWAY[scheme],
        xaxis=_axis(ink),
        yaxis=_axis(ink),
        hovermode="x unified",
        hoverlabel={
            "bgcolor": ink["hover"],
            "bordercolor": ink["hover_border"],
            "font": {"family": FONT, "size": 12, "color": ink["text"]},
        },
        legend={
            "traceorder": "normal",
            "orientation": "h",
            "x": 0,
            "y": 1.02,
            "xanchor": "left",
            "yanchor": "bottom",
            "font": {"size": 11, "color": ink["muted"]},
            "itemwidth": 30,
        },
        margin={"l": 44, "r": 16, "t": 8, "b": 34},
        coloraxis={
            "colorscale": [list(stop) for stop in _SEQUENTIAL[scheme]],
            "colorbar": {
                "thickness": 8,
                "outlinewidth": 0,
                "tickfont": {"size": 10, "color": ink["muted"]},
                "len": 1,
                "y": 0.5,
            },
        },
        annotationdefaults={"font": {"size": 10.5, "color": ink["muted"]}, "showarrow": False},
        shapedefaults={"line": {"color": ink["muted"], "width": 1}},
    )
    plain: dict[str, Any] = go.layout.Template(layout=layout).to_plotly_json()
    return plain


TEMPLATES: Final[Mapping[str, dict[str, Any]]] = MappingProxyType(
    {"light": _template("light"), "dark": _template("dark")}
)
