"""Colours, the Mantine theme and the charts' template. With `assets/00-base.css` the only file that
knows colours."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, Literal

Scheme = Literal["light", "dark"]

FONT: Final = "Inter, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"

_IRIS = [
    "#eef1ff",
    "#dfe4fe",
    "#bfc8fb",
    "#9aa8f6",
    "#7a8af1",
    "#6575ec",
    "#5567e3",
    "#4456c8",
    "#3a4bb0",
    "#2e3d97",
]
_NIGHT = [
    "#d3d7e0",
    "#a9b0bf",
    "#868e9f",
    "#5d6575",
    "#3a414f",
    "#2c3340",
    "#1b2029",
    "#161a21",
    "#11151b",
    "#0b0d12",
]

MANTINE: Final[dict[str, Any]] = {
    "fontFamily": FONT,
    "primaryColor": "iris",
    "primaryShade": {"light": 7, "dark": 6},
    "colors": {"iris": _IRIS, "dark": _NIGHT},
    "defaultRadius": 6,
    "fontSizes": {"xs": "12px", "sm": "13px", "md": "14px"},
    "components": {
        "Select": {"defaultProps": {"allowDeselect": False, "checkIconPosition": "right"}}
    },
}

COLOURS: Final[Mapping[Scheme, Mapping[str, str]]] = {
    "dark": {
        "text": "#e6e9ef",
        "muted": "#98a1b2",
        "faint": "#5d6675",
        "grid": "#20262f",
        "zero": "#3a4250",
        "card": "#161a21",
        "future": "rgba(152,161,178,.045)",
        "iris": "#8b9af8",
        "iris_soft": "rgba(139,154,248,.16)",
        "act": "#f0925a",
        "act_soft": "rgba(240,146,90,.10)",
        "hold": "#3cc7b0",
        "hold_soft": "rgba(60,199,176,.12)",
        "upper": "#d9b44a",
        "upper_soft": "rgba(217,180,74,.16)",
        "observed": "#aeb6c4",
        "up": "#5aa7f0",
        "pill": "#5567e3",
        "pill_text": "#ffffff",
    },
    "light": {
        "text": "#1b2130",
        "muted": "#5b6475",
        "faint": "#98a1b2",
        "grid": "#eef0f4",
        "zero": "#c6ccd8",
        "card": "#ffffff",
        "future": "rgba(27,33,48,.028)",
        "iris": "#4456c8",
        "iris_soft": "rgba(68,86,200,.13)",
        "act": "#c2510c",
        "act_soft": "rgba(194,81,12,.08)",
        "hold": "#0a8572",
        "hold_soft": "rgba(10,133,114,.10)",
        "upper": "#8f6b00",
        "upper_soft": "rgba(143,107,0,.13)",
        "observed": "#667085",
        "up": "#1f6fc4",
        "pill": "#4456c8",
        "pill_text": "#ffffff",
    },
}
"""Iris is the only accent; `act` marks loss, `hold` what stops it, `upper` the upper threshold's
side (and Watch)."""

LINES: Final[Mapping[Scheme, tuple[str, ...]]] = {
    "dark": (
        "#8b9af8",
        "#3cc7b0",
        "#f0925a",
        "#d9b44a",
        "#5aa7f0",
        "#f0718f",
        "#b29af5",
        "#8793a8",
    ),
    "light": (
        "#4456c8",
        "#0a8572",
        "#c2510c",
        "#8f6b00",
        "#1f6fc4",
        "#c9375f",
        "#7b5bd6",
        "#64748b",
    ),
}
"""Colours of several lines in one chart; a second line of one colour has its other shade, and later
ones are dashed (`DASHES`)."""


def _shade(color: str, ink: str) -> str:
    """Halfway to the colour of texts, so that it stands out of the ground."""
    mixed = ((int(color[at : at + 2], 16) + int(ink[at : at + 2], 16)) // 2 for at in (1, 3, 5))
    return "#" + "".join(f"{part:02x}" for part in mixed)


SHADES: Final[Mapping[Scheme, tuple[str, ...]]] = {
    scheme: tuple(_shade(color, COLOURS[scheme]["text"]) for color in colors)
    for scheme, colors in LINES.items()
}

DASHES: Final = (
    "solid",
    "7px,3px",
    "2px,2px",
    "9px,3px,2px,3px",
    "4px,4px",
    "12px,4px",
    "1px,4px",
    "6px,2px,1px,2px",
)


def looks_of(names: Sequence[str]) -> list[int]:
    """The number of a look for the line of each name: its colour is the same wherever it is drawn;
    its shade, too, unless an earlier one has both here."""
    taken: list[int] = []
    for name in names:
        look = zlib.crc32(name.encode()) % len(DASHES)
        while look in taken:
            look += len(DASHES)
        taken.append(look)
    return taken


def look_of(scheme: Scheme, look: int) -> tuple[str, str]:
    """Colour and dash of one of the looks, no two of which are alike."""
    hue, repeat = look % len(DASHES), look // len(DASHES)
    if repeat == 1:
        return SHADES[scheme][hue], "solid"
    return LINES[scheme][hue], DASHES[max(0, repeat - 1) % len(DASHES)]


def color_of(name: str) -> str:
    """The colour of a name's lines, as the style sheet knows it in both schemes."""
    return f"var(--line-{looks_of([name])[0]})"


HEAT: Final[Mapping[Scheme, list[list[Any]]]] = {
    "light": [
        [0, "#ffffff"],
        [0.08, "#e7eafd"],
        [0.25, "#bfc8fb"],
        [0.5, "#7a8af1"],
        [0.75, "#4456c8"],
        [1, "#232d6e"],
    ],
    "dark": [
        [0, "#161a21"],
        [0.08, "#1f2740"],
        [0.25, "#323f7d"],
        [0.5, "#5567e3"],
        [0.75, "#9aa8f6"],
        [1, "#f1f3ff"],
    ],
}


@lru_cache(maxsize=2)
def template(scheme: Scheme) -> dict[str, Any]:
    """`layout.template` of every chart."""
    ink = COLOURS[scheme]
    axis = {
        "gridcolor": ink["grid"],
        "zeroline": False,
        "zerolinecolor": ink["zero"],
        "linecolor": ink["grid"],
        "ticks": "",
        "ticklabeloverflow": "allow",  # plotly would measure every label at every update
        "tickfont": {"size": 11, "color": ink["muted"]},
        "exponentformat": "none",
        "spikecolor": ink["muted"],
        "spikethickness": 1,
        "spikedash": "dot",
        "spikemode": "across",
        "spikesnap": "data",
    }
    return {
        "layout": {
            "font": {"family": FONT, "size": 11, "color": ink["text"]},
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "showlegend": False,
            "xaxis": {**axis, "showgrid": False, "showspikes": True},
            "yaxis": axis,
            "hovermode": "x unified",
            "margin": {"l": 44, "r": 12, "t": 8, "b": 24},
            "hoverlabel": {
                "bgcolor": ink["card"],
                "bordercolor": ink["zero"],
                "font": {"family": FONT, "size": 12, "color": ink["text"]},
            },
            "annotationdefaults": {"font": {"size": 11, "color": ink["muted"]}, "showarrow": False},
        }
    }
