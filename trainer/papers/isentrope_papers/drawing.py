"""How pictures look: sizes for print, colours that the colour-blind tell apart, and never by colour
alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib.figure
import numpy as np
from matplotlib.axes import Axes
from numpy.typing import ArrayLike

from isentrope_papers.runs import Run, Series

Picture = matplotlib.figure.Figure

WIDTH = 6.7
"""Width of a page's text, in inches."""
PANEL_HEIGHT = 2.3
DOTS_PER_INCH = 160
SMOOTHED_STEPS = 5
STYLE: dict[Any, Any] = {
    "font.size": 8,
    "axes.titlesize": 8.5,
    "axes.labelsize": 8,
    "legend.fontsize": 7,
    "legend.frameon": True,
    "legend.framealpha": 0.8,
    "legend.edgecolor": "none",
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.5,
    "lines.linewidth": 1.4,
    "svg.fonttype": "none",
    # The same picture gives the same file.
    "svg.hashsalt": "isentrope",
}


def style() -> AbstractContextManager[None]:
    """Within it, pictures are drawn and saved in this style."""
    return matplotlib.rc_context(STYLE)


class Look(NamedTuple):
    """How one arm is drawn, distinguished by colour, dash and marker."""

    color: str
    dash: Any
    marker: str


_COLORS = (
    "#000000",
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#56B4E9",
    "#E69F00",
    "#7F7F7F",
)  # Okabe and Ito's
_DASHES: tuple[Any, ...] = (
    "-",
    "--",
    "-.",
    ":",
    (0, (5, 1, 1, 1, 1, 1)),
    (0, (3, 1)),
    (0, (8, 2)),
    (0, (1, 1)),
)
_MARKERS = "osD^vPX*"


def look(index: int) -> Look:
    """Look of the arm at this place; the first is black and solid, for the baseline."""
    return Look(
        _COLORS[index % len(_COLORS)],
        _DASHES[index % len(_DASHES)],
        _MARKERS[index % len(_MARKERS)],
    )


def panels(
    rows: int = 1, columns: int = 1, *, height: float = PANEL_HEIGHT
) -> tuple[Picture, list[Axes]]:
    """An empty picture with its axes, row by row; `height` is that of a panel, in inches."""
    picture = Picture(figsize=(WIDTH, rows * height), layout="constrained")
    return picture, picture.subplots(rows, columns, squeeze=False).flatten().tolist()


def course(
    axes: Axes,
    runs: Sequence[Run],
    metric: str,
    *,
    label: str,
    index: int,
    smooth: int = SMOOTHED_STEPS,
) -> None:
    """A metric of one arm over steps: the mean of the seeds, and all of them as a band; means of
    `smooth` steps."""
    length = min(len(run.steps) for run in runs)
    values = np.array([smoothed(run.series(metric)[:length], smooth) for run in runs])
    steps, as_look = runs[0].steps[:length], look(index)
    axes.plot(
        steps,
        values.mean(axis=0),
        color=as_look.color,
        linestyle=as_look.dash,
        label=label,
        marker=as_look.marker,
        markersize=3.5,
        markevery=(length // 12 * (1 + index % 3) // 3, max(length // 4, 1)),
    )
    if len(runs) > 1:
        axes.fill_between(
            steps,
            values.min(axis=0),
            values.max(axis=0),
            color=as_look.color,
            alpha=0.15,
            linewidth=0,
        )


def courses(
    axes: Axes,
    arms: Mapping[str, Sequence[Run]],
    metric: str,
    unit: str,
    *,
    smooth: int = SMOOTHED_STEPS,
) -> None:
    """Courses of several arms, label -> runs, with the names of the axes."""
    for index, (label, runs) in enumerate(arms.items()):
        course(axes, runs, metric, label=label, index=index, smooth=smooth)
    axes.set(xlabel="step", ylabel=unit)


def points(
    axes: Axes,
    x: ArrayLike,
    y: ArrayLike,
    *,
    index: int,
    label: str = "",
    size: float = 3.5,
    alpha: float = 1.0,
) -> None:
    """Points without a line, in the look of an arm."""
    as_look = look(index)
    axes.plot(x, y, as_look.marker, color=as_look.color, markersize=size, alpha=alpha, label=label)


def draw_over(
    axes: Axes,
    positions: Sequence[float],
    values: Sequence[Sequence[float]],
    *,
    label: str,
    index: int,
) -> None:
    """A number of each arm over the arm's position, such as a threshold: mean and standard
    deviation of values [arms][seeds]."""
    as_look = look(index)
    means = [float(np.mean(of_seeds)) for of_seeds in values]
    spreads = [float(np.std(of_seeds, ddof=1)) if len(of_seeds) > 1 else 0.0 for of_seeds in values]
    axes.errorbar(
        positions,
        means,
        yerr=spreads,
        color=as_look.color,
        linestyle=as_look.dash,
        marker=as_look.marker,
        markersize=4,
        capsize=2,
        label=label,
    )


def bars(
    axes: Axes, labels: Sequence[str], values: Sequence[Sequence[float]], *, unit: str
) -> None:
    """A number of each arm: the mean of values [arms][seeds] as a bar, every seed as a dot."""
    for place, of_seeds in enumerate(values):
        axes.barh(place, float(np.mean(of_seeds)), color="#c8d7e6", edgecolor="#0072B2", height=0.7)
        axes.plot(of_seeds, [place] * len(of_seeds), "k|", markersize=7)
    axes.set_yticks(range(len(labels)), labels)
    axes.invert_yaxis()
    axes.set_xlabel(unit)


def averaged(values: Series) -> Series:
    """Exponential averages, corrected for their beginning as Adam does; the decay is AdamW's
    beta_1."""
    decay, average, averages = 0.9, 0.0, []
    for step, value in enumerate(np.nan_to_num(values), start=1):
        average = decay * average + (1 - decay) * value
        averages.append(average / (1 - decay**step))
    return np.array(averages)


def smoothed(values: np.ndarray, steps: int) -> np.ndarray:
    """Mean over this many neighbours, fewer at both ends; what was not measured is not counted."""
    reach = steps // 2
    padded = np.pad(values.astype(float), reach, constant_values=np.nan)
    windows = np.lib.stride_tricks.sliding_window_view(padded, 2 * reach + 1)
    counts = (~np.isnan(windows)).sum(axis=1)
    return np.where(counts > 0, np.nansum(windows, axis=1) / np.maximum(counts, 1), np.nan)


def save(picture: Picture, stem: Path) -> None:
    """Write `stem`.png and `stem`.svg."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    picture.savefig(stem.with_suffix(".png"), dpi=DOTS_PER_INCH, metadata={"Software": None})
    picture.savefig(stem.with_suffix(".svg"), metadata={"Date": None})
