"""A chart as plain plotly JSON: lines, bands, levels and marks over steps, with ticks written by
our own rules.

Plotly writes small numbers with SI prefixes, which beside a threshold called µ misleads; so every
axis gets its ticks in words from here (`ticks`).
"""

from __future__ import annotations

import json
import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from itertools import groupby, pairwise
from statistics import median
from textwrap import wrap
from typing import Any, Final

from isentrope_dashboard import theme
from isentrope_dashboard.formatting import MINUS, count, significant
from isentrope_dashboard.theme import Scheme
from isentrope_dashboard.view import Axis
from isentrope_wire.answers import SeriesColumns

EMPTY = SeriesColumns(step=[], value=[], min=None, max=None)
"""Columns of a metric that was never reported."""

DASH = "5px,4px"
"""Dash of predicted lines."""

GUTTER = 76
"""Pixels at the right of the plot, for labels of what lies at its end; the browser spreads them
(`assets/20-charts.js`)."""
ALONE_SIZE = 5
"""Pixels of the dot of a line's value without neighbours."""
ALONE_REACH = 0.4
"""Steps to both sides of a band's value that has no neighbour: between two gaps it would have no
width."""
LEAST_POWER, LARGEST_POWER = -323.0, 308.0
"""Of ten, that floating-point numbers have."""
LEAST_SPAN, LARGEST = 1e-300, 1e307
"""What the browser can divide by: spans of axes lie between these, values of logarithmic ones
below."""
TOP_RIGHT: Final = {"yref": "paper", "xanchor": "right", "yanchor": "top"}
INSIDE = 1e-9
CORNER = 0.02
"""Of an axis, in which numbers of both axes would touch."""
MARK_ROOM = 0.03
"""Of the axis, below the marks at its lower end."""
SKIPPED: Final = {"hoverinfo": "skip"}


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round numbers within [low, high], at most `most`."""
    span = high - low
    if not (math.isfinite(span) and span > 64 * math.ulp(max(abs(low), abs(high)))):
        if math.isfinite(low):
            return [low]
        return []
    raw = span / max(1, most - 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]


def three_ticks(low: float, high: float) -> list[float]:
    """Round numbers, three where that can be, of which the outer ones may lie a little outside of
    [low, high]."""
    slack = 0.25 * (high - low)
    power = math.floor(math.log10(high - low))
    places: list[float] = []
    for step in (
        factor * 10.0**exponent for exponent in (power, power - 1) for factor in (5, 2.5, 2, 1)
    ):
        places = [
            number * step
            for number in range(
                math.ceil((low - slack) / step), math.floor((high + slack) / step) + 1
            )
        ]
        if len(places) >= 3:
            break
    while len(places) > 3 and not low <= places[0] <= places[-1] <= high:
        if low - places[0] > places[-1] - high:
            places = places[1:]
        else:
            places = places[:-1]
    return places


def tick_texts(places: Sequence[float]) -> list[str]:
    """Ticks with as many decimals as tell them apart; very small and very large ones as powers of
    ten."""
    distance = min((b - a for a, b in pairwise(places)), default=abs(places[0]) if places else 0)
    largest = max(map(abs, places), default=0)
    if largest and (largest < 1e-4 or distance >= 1e7):
        digits = max(1, math.ceil(math.log10(largest / distance)) + 1)
        return [
            "0" if place == 0 else f"{place:.{digits}e}".replace("-", MINUS) for place in places
        ]
    if distance == 0:
        decimals = 0
    else:
        decimals = max(0, -math.floor(math.log10(distance) + 1e-9))
    if round(distance, decimals) != round(distance, decimals + 1):
        decimals += 1  # steps of 2.5
    return [
        "0" if place == 0 else f"{place:,.{decimals}f}".replace(",", " ").replace("-", MINUS)
        for place in places
    ]


def percent_texts(places: Sequence[float]) -> list[str]:
    """Ticks of shares, in per cent."""
    return [f"{text} %" for text in tick_texts([100 * place for place in places])]


def duration_unit(largest: float) -> tuple[int, str]:
    """Seconds, minutes or hours: their length in seconds and their name."""
    if largest < 180:
        return 1, "s"
    if largest < 10800:
        return (60, "min")
    return (3600, "h")


def duration_texts(places: Sequence[float]) -> list[str]:
    """Seconds as seconds, minutes or hours."""
    unit, name = duration_unit(max(map(abs, places), default=0))
    return [
        text if text == "0" else f"{text} {name}"
        for text in tick_texts([place / unit for place in places])
    ]


@dataclass(frozen=True, slots=True)
class Scale:
    """From a step to its place on the x axis: the step itself, or the seconds or tokens of training
    until then."""

    axis: Axis = "step"
    steps: Sequence[int] = ()
    places: Sequence[float] = ()
    pace: float = 1.0
    """Units of the scale that a step takes on the average."""

    @classmethod
    def measure(cls, axis: Axis, amounts: SeriesColumns) -> Scale:
        """The scale of an axis, from what each step took: seconds, or tokens. Steps that were not
        measured count as the mean of the others."""
        measured = amounts.measured
        if axis == "step" or not any(measured):
            return cls()
        parts = zip(amounts.means, measured, strict=True)
        sums = [mean * number if number else 0.0 for mean, number in parts]
        mean = sum(sums) / sum(measured)
        apart = _steps_apart(amounts)
        places, total, before = [], 0.0, amounts.step[0] - apart * _counts(amounts)[0]
        for step, amount, number in zip(amounts.step, sums, measured, strict=True):
            total += amount + mean * max(0.0, (step - before) / apart - number)
            before = step
            places.append(total)
        return cls(axis, amounts.step, places, mean / apart)

    def position(self, step: float) -> float:
        """The place of a step; before and after the known ones, in proportion."""
        return _interpolate(step, self.steps, self.places, self.pace)

    def step_at(self, place: float) -> float:
        """The step at a place: the inverse."""
        return _interpolate(place, self.places, self.steps, 1 / (self.pace or 1.0))

    def ticks(self, first: float, last: float, most: int) -> list[float]:
        """Round places between two, of times round in their unit."""
        unit = 1
        if self.axis == "time":
            unit = duration_unit(last)[0]
        places = [unit * place for place in ticks(first / unit, last / unit, most)]
        if self.axis == "time":
            return places
        return [place for place in places if place == int(place)]

    def texts(self, places: Sequence[float]) -> list[str]:
        if self.axis == "time":
            return duration_texts(places)
        return [count(round(place)) for place in places]


def _counts(columns: SeriesColumns) -> Sequence[int]:
    """Values that each point stands for."""
    return columns.count or [1] * len(columns.step)


def _steps_apart(columns: SeriesColumns) -> int:
    """Steps from one value to the next: usually 1, 10 where a run reports every tenth step."""
    if len(columns.step) < 2:
        return 1
    distances = [
        (later - earlier) / count
        for (earlier, later), count in zip(
            pairwise(columns.step), _counts(columns)[1:], strict=True
        )
    ]
    return max(1, round(median(distances)))


def _interpolate(x: float, xs: Sequence[float], ys: Sequence[float], slope: float) -> float:
    """The line through the points (xs, ys), with a slope outside of them; x itself without
    points."""
    if not xs:
        return x
    if x <= xs[0]:
        return ys[0] + (x - xs[0]) * slope
    if x >= xs[-1]:
        return ys[-1] + (x - xs[-1]) * slope
    right = bisect_left(xs, x)
    share = (x - xs[right - 1]) / (xs[right] - xs[right - 1])
    return ys[right - 1] + share * (ys[right] - ys[right - 1])


def missing_steps(steps: Sequence[int], *, reduced: bool = False) -> list[tuple[int, int]]:
    """First and last step of each gap in rising steps: where the next one is farther than it
    usually is. A run may report every tenth step only, so what is usual is the median distance;
    fewer than three steps have none. The widths of buckets, which `reduced` steps are, differ by
    one."""
    if len(steps) < 3:
        return []
    pairs = list(pairwise(steps))
    least = 2 * median(later - earlier for earlier, later in pairs) + (2 if reduced else 0)
    return [(earlier + 1, later - 1) for earlier, later in pairs if later - earlier >= least > 0]


def gap_ends(columns: SeriesColumns) -> set[int]:
    """The first step behind each gap."""
    return {last + 1 for _, last in missing_steps(columns.step, reduced=columns.reduced)}


def smoothing_steps(columns: SeriesColumns, wanted: int) -> int:
    """Steps that each point of the smoothed line is a mean of; 0: the line is not smoothed. A
    bucket can't be divided: of a reduced series it is a bucket's steps at least."""
    if wanted and columns.count is not None:
        return max(wanted, round(_steps_apart(columns) * median(columns.count)))
    if not columns.step or columns.step[-1] - columns.step[0] < wanted:
        return 0
    return wanted * (_steps_apart(columns) <= wanted // 2)


def smoothed(columns: SeriesColumns, steps: int) -> list[float | None]:
    """The mean of the values within so many steps around each one, with weights that fall to both
    sides; of a reduced series of all values of the buckets. A gap, and what is not finite, ends
    it: nothing beyond counts."""
    half = steps // 2
    values, measured = columns.means, columns.measured
    behind_gaps = gap_ends(columns)

    def weights_beside(at: int, by: int) -> Iterator[tuple[int, int]]:
        """Neighbours on one side, each with its weight."""
        near = at + by
        while 0 <= near < len(values):
            distance = abs(columns.step[near] - columns.step[at])
            is_apart = columns.step[max(near, near - by)] in behind_gaps
            if distance > half or is_apart or math.isnan(values[near]):
                return
            yield near, (half + 1 - distance) * measured[near]
            near += by

    means: list[float | None] = []
    for at, value in enumerate(values):
        if math.isnan(value):
            means.append(None)
            continue
        weights = {at: (half + 1) * measured[at]}
        weights |= {**dict(weights_beside(at, -1)), **dict(weights_beside(at, 1))}
        # By the differences: the mean of equal values is exactly this value.
        moved = sum(weight * (values[near] - value) for near, weight in weights.items())
        means.append(value + moved / sum(weights.values()))
    return means


def hover_line(name: str) -> str:
    """A line of the box in which a chart shows all of its values at a step: a name, which is
    markup, and the point's text."""
    return name.replace("%{", "&#37;{") + "  <b>%{text}</b><extra></extra>"


@dataclass(slots=True)
class Chart:
    """One chart while it is built."""

    scheme: Scheme
    scale: Scale = field(default_factory=Scale)
    data: list[dict[str, Any]] = field(default_factory=list)
    layout: dict[str, Any] = field(default_factory=dict)
    ends: list[dict[str, Any]] = field(default_factory=list)
    """Labels of the gutter."""
    pills: list[dict[str, Any]] = field(default_factory=list)
    """Labels on the x axis; where two would touch, the later one is shown."""

    @property
    def ink(self) -> Mapping[str, str]:
        return theme.COLOURS[self.scheme]

    def line(
        self,
        columns: SeriesColumns,
        *,
        name: str,
        color: str,
        width: float = 2,
        dash: str = "solid",
        smooth: int = 0,
        written: Callable[[float | None], str] | None = None,
        key: str = "",
        has_band: bool = False,
    ) -> None:
        """One metric over steps, with a gap where steps are missing, and marks where the axis,
        which must be set before, can't show a value. Smoothed over so many steps, the raw line
        stays behind it; where its band says more it is there for saved numbers alone. `key` is
        what the browser calls the line."""
        averaged = smoothing_steps(columns, smooth)
        raw = [value if self._shows(value) else None for value in columns.value]
        look = {"color": color, "width": width, "dash": dash}
        if not averaged:
            if written is None:
                words = []
            else:
                words = [written(value) for value in raw]
            self._row(columns, raw, words, name=name, said=name, line=look, meta=key)
            self._mark_unshown(columns, name)
            return
        thin = {**look, "width": 1}
        self._row(columns, raw, name=name, said=name, line=thin, opacity=0.35, visible=not has_band)
        means = [
            mean if mean is not None and self._shows(mean) else None
            for mean in smoothed(columns, averaged)
        ]
        said = f"mean of {averaged} steps"
        if averaged > smooth and not self.layout.get("annotations"):
            self.label(said, at=1, y=1, color=self.ink["muted"], **TOP_RIGHT)
        words = [] if written is None else [
            f"{written(value)}</b>, {said} <b>{written(mean)}"
            for value, mean in zip(columns.value, means, strict=True)
        ]  # fmt: skip
        self._row(columns, means, words, name=f"{name}, {said}", said=name, line=look, meta=key,
                  customdata=None)  # fmt: skip
        self._mark_unshown(columns, name)

    def _row(
        self,
        columns: SeriesColumns,
        values: Sequence[float | None],
        words: Sequence[str] = (),
        *,
        said: str,
        **more: Any,
    ) -> None:
        """A line through one value a step; where the mouse is, `said` and the step's words. A value
        without neighbours is a dot. Where a value was logged and is not shown, `customdata` has
        what was logged, for saved numbers."""
        behind_gaps = gap_ends(columns)
        xs: list[float] = []
        ys: list[float | None] = []
        texts: list[str] = []
        logged: list[float | None] = []
        for at, (step, value) in enumerate(zip(columns.step, values, strict=True)):
            if step in behind_gaps:
                xs.append(self.scale.position(step - 1))
                ys.append(None)
                texts.append("")
                logged.append(None)
            xs.append(self.scale.position(step))
            ys.append(value)
            texts += words[at : at + 1]
            logged.append(columns.value[at])
        beside = [None, *ys, None]
        alone = [
            value is not None and beside[at] is None and beside[at + 2] is None
            for at, value in enumerate(ys)
        ]
        if words:
            more |= {"text": texts, "hovertemplate": hover_line(said)}
        else:
            more |= SKIPPED
        if any(alone):
            sizes = [ALONE_SIZE * is_alone for is_alone in alone]
            more |= {
                "mode": "lines+markers",
                "cliponaxis": False,
                "marker": {"size": sizes, "color": more["line"]["color"]},
            }
        if logged != ys:
            # JSON has no NaN and no infinity.
            words_too = json.loads(json.dumps(logged), parse_constant=str)
            more.setdefault("customdata", words_too)
        self.scatter(xs, ys, **more)

    @property
    def _is_log(self) -> bool:
        return bool(self.layout.get("yaxis", {}).get("type") == "log")

    def _shows(self, value: float) -> bool:
        """Whether the y axis has a place for a value."""
        return math.isfinite(value) and (value > 0 or not self._is_log)

    def _mark_unshown(self, columns: SeriesColumns, name: str) -> None:
        """At the axis' end a cross for NaN, a triangle that points to infinities and to what a
        logarithm does not have; without a name, as it is no line."""
        ends = self.layout.get("yaxis", {}).get("range")
        if ends is None:
            return
        low, high = ends
        if self._is_log:  # a little inside, as plotly draws no mark that rounding moves out
            low, high = 10.0 ** (low + INSIDE), 10.0 ** (high - INSIDE)
        else:  # above the numbers of the x axis
            low += MARK_ROOM * (high - low)
        marks = [
            (step, *mark)
            for at, step in enumerate(columns.step)
            if (mark := self._unshown(columns, at)) is not None
        ]
        if marks:
            symbols = [symbol for _, symbol, _ in marks]
            self.scatter(
                [self.scale.position(step) for step, *_ in marks],
                [high if symbol == "triangle-up" else low for symbol in symbols],
                mode="markers",
                cliponaxis=False,
                text=[words for *_, words in marks],
                hovertemplate=hover_line(name),
                marker={"size": 7, "color": self.ink["act"], "symbol": symbols},
            )

    def _unshown(self, columns: SeriesColumns, at: int) -> tuple[str, str] | None:
        """Symbol and words of a point's mark; None where the axis shows all that it stands for."""
        value = columns.value[at]
        if math.isnan(value):
            return "x", "NaN"
        if not self._shows(value):
            return "triangle-up" if value > 0 else "triangle-down", significant(value)
        if columns.not_finite is not None and columns.count is not None and columns.not_finite[at]:
            return "x", f"{columns.not_finite[at]} of {columns.count[at]} values are not finite"
        if columns.min is None:
            least = value
        else:
            least = columns.min[at]
        if least <= 0 and self._is_log:
            return "triangle-down", f"down to {significant(least)}"
        return None

    def scatter(
        self,
        x: Sequence[float | None],
        y: Sequence[float | None],
        *,
        mode: str = "lines",
        **more: Any,
    ) -> None:
        """Points at places of the scale, and a line or markers as `mode` says."""
        self.data.append({"type": "scatter", "mode": mode, "x": list(x), "y": list(y), **more})

    def band(self, low: SeriesColumns, high: SeriesColumns, color: str) -> None:
        """Between two metrics that have the same steps: an outline for each row of steps with
        finite values of both."""
        ends = dict(zip(high.step, high.value, strict=True))
        rows = [
            (step, value, ends.get(step, math.nan))
            for step, value in zip(low.step, low.value, strict=True)
        ]
        x: list[float | None] = []
        y: list[float | None] = []
        for known, piece in groupby(
            rows, key=lambda row: math.isfinite(row[1]) and math.isfinite(row[2])
        ):
            if not known:
                continue
            steps, lows, highs = (list(column) for column in zip(*piece, strict=True))
            if len(steps) == 1:
                steps, lows, highs = (
                    [steps[0] - ALONE_REACH, steps[0] + ALONE_REACH],
                    lows * 2,
                    highs * 2,
                )
            places = [self.scale.position(step) for step in steps]
            gap = []
            if x:
                gap = [None]
            x += [*gap, *places, *places[::-1]]
            y += [*gap, *highs, *lows[::-1]]
        if x:
            self.area(x, y, color)

    def area(
        self, x: Sequence[float | None], y: Sequence[float | None], color: str, **more: Any
    ) -> None:
        """Filled outlines, None between two of them."""
        self.scatter(x, y, fill="toself", fillcolor=color, line={"width": 0}, **SKIPPED, **more)

    def stroke(
        self,
        steps: Sequence[float],
        values: Sequence[float],
        color: str,
        *,
        dash: str = DASH,
        width: float = 2,
        **more: Any,
    ) -> None:
        """A line of a few points, as of a forecast; without `hovertemplate` the mouse does not find
        it."""
        line = {"color": color, "width": width, "dash": dash}
        hover = SKIPPED
        if "hovertemplate" in more:
            hover = {}
        self.scatter(
            [self.scale.position(step) for step in steps], values, line=line, **hover, **more
        )

    def end(
        self, text: str, y: float, color: str, *, step: float | None = None, name: str = ""
    ) -> None:
        """A label in the gutter, at a value of the y axis; not where the chart is zoomed away from
        `step`. `text` must be our
        own: it is markup."""
        if step is None:
            x = None
        else:
            x = self.scale.position(step)
        self.ends.append({"text": text, "x": x, "y": y, "color": color, "name": name})

    def pill(self, step: float, text: str, color: str, *, says: str) -> None:
        """A few characters on the x axis, at a step; `says` is shown where the mouse is over them.
        Both are markup."""
        self.pills.append(
            {"x": self.scale.position(step), "text": text, "color": color, "says": says}
        )

    def dot(
        self, step: float, value: float, color: str, *, symbol: str = "circle", text: str = ""
    ) -> None:
        """One point; `text` is shown where the mouse is over it."""
        hover = {"text": [text], "hovertemplate": "%{text}<extra></extra>"} if text else SKIPPED
        marker = {
            "size": 10,
            "symbol": symbol,
            "color": color,
            "line": {"color": self.ink["card"], "width": 2},
        }
        self.scatter([self.scale.position(step)], [value], mode="markers", marker=marker, **hover)

    def level(
        self,
        value: float,
        color: str,
        *,
        dash: str = "4px,4px",
        width: float = 1,
        xref: str = "paper",
        **more: Any,
    ) -> None:
        """A horizontal line."""
        line = {"color": color, "width": width, "dash": dash}
        self._shape(x0=0, x1=1, xref=xref, y0=value, y1=value, line=line, **more)

    def mark(self, step: float, color: str) -> None:
        """A vertical line."""
        x = self.scale.position(step)
        self._shape(
            x0=x, x1=x, yref="paper", y0=0, y1=1, line={"color": color, "width": 1, "dash": "solid"}
        )

    def zone(self, first: float, last: float, color: str) -> None:
        """A vertical stripe behind the lines."""
        place = {
            "x0": self.scale.position(first),
            "x1": self.scale.position(last),
            "yref": "paper",
            "y0": 0,
            "y1": 1,
        }
        self._shape(type="rect", **place, fillcolor=color, line={"width": 0}, layer="below")

    def label(self, text: str, *, at: float, y: float, color: str = "", **place: Any) -> None:
        """Words in the chart, at a share of its width. `text` must be our own: it is markup."""
        font = {}
        if color:
            font = {"font": {"size": 11, "color": color}}
        where = {"x": at, "xref": "paper", "y": y, **place}
        self.layout.setdefault("annotations", []).append(
            {"text": text, "showarrow": False, **font, **where}
        )

    def note(self, text: str) -> None:
        """One sentence in the middle of a chart that has nothing to show."""
        self.layout["annotations"] = []
        lines = escape("\n".join(wrap(text, 36)), quote=False)
        self.label(lines.replace("\n", "<br>"), at=0.5, y=0.5, yref="paper", font={"size": 12})
        self.layout["xaxis"] = {"visible": False}
        self.layout["yaxis"] = {"visible": False}

    def x_axis(self, first: float, last: float, most: int = 7) -> None:
        """The axis from one place to another; ends are in units of the scale."""
        places = self.scale.ticks(first, last, most)
        texts = self.scale.texts(places)
        title = {
            "step": "step %{x}",
            "time": "%{x:,.0f} s of training",
            "tokens": "%{x:,.0f} tokens",
        }[self.scale.axis]
        hover = {"unifiedhovertitle": {"text": title}}
        self.layout["xaxis"] = {
            "range": [first, last],
            "tickvals": places,
            "ticktext": texts,
            **hover,
        }

    def y_axis(
        self,
        low: float,
        high: float,
        *,
        written: Callable[[Sequence[float]], list[str]] = tick_texts,
        most: int = 6,
        **more: Any,
    ) -> None:
        """The axis from one value to another."""
        places = ticks(low, high, most)
        self.layout["yaxis"] = {
            "range": [low, high],
            "tickvals": places,
            "ticktext": written(places),
            **more,
        }

    def log_axis(
        self,
        series: Sequence[SeriesColumns],
        *,
        written: Callable[[Sequence[float]], list[str]] | None = None,
        room: float = 0.08,
    ) -> tuple[float, float]:
        """A logarithmic y axis over the positive values; returns its ends as powers of ten."""
        values = [
            math.log10(value)
            for columns in series
            for value in columns.value
            if 0 < value < math.inf
        ] or [0.0]
        least, most = min(values), max(values)
        beyond = room * (most - least) or 0.1 * (abs(most) or 0.2)
        low, high = max(least - beyond, LEAST_POWER), min(most + beyond, LARGEST_POWER)
        places = log_ticks(low, high)
        texts = [significant(place, 6) for place in places]
        if written is not None:
            texts = written(places)
        elif len(set(texts)) < len(texts):
            texts = tick_texts(places)
        self.layout["yaxis"] = {
            "type": "log",
            "range": [low, high],
            "tickvals": places,
            "ticktext": texts,
        }
        return low, high

    def figure(self) -> dict[str, Any]:
        """The chart as JSON. `meta` is for the browser: the labels that it places, and, as a click
        chooses a step, the steps of places that are no steps."""
        self._free_corner()
        places = {}
        if self.scale.steps:
            places = {"x": self.scale.places, "step": self.scale.steps}
        meta = {"ends": self.ends, "pills": self.pills, **places}
        return {
            "data": self.data,
            "layout": {"meta": meta, **self.layout, "template": theme.template(self.scheme)},
        }

    def _free_corner(self) -> None:
        """Where both axes have a number at their common end, the lower one's is left out."""
        x, y = (self.layout.get(name, {}) for name in ("xaxis", "yaxis"))
        if self._is_log or not x.get("tickvals") or not y.get("tickvals"):
            return
        (left, right), (low, high) = x["range"], y["range"]
        is_left = x["tickvals"][0] - left < CORNER * (right - left)
        if is_left and y["tickvals"][0] - low < CORNER * (high - low):
            x["ticktext"] = ["", *x["ticktext"][1:]]

    def _shape(self, **shape: Any) -> None:
        self.layout.setdefault("shapes", []).append({"type": "line", **shape})


class NotDrawable(ValueError):
    """Says why there can be no axis for some values."""


def value_range(
    series: Sequence[SeriesColumns],
    *,
    from_zero: bool = False,
    low: float | None = None,
    high: float | None = None,
) -> tuple[float, float]:
    """What the values span, with some room; at least `low` to `high` where they are given."""
    values = [value for columns in series for value in columns.value if math.isfinite(value)]
    values += [value for value in (low, high) if value is not None and math.isfinite(value)]
    if from_zero:
        values.append(0.0)
    if not values:
        return 0.0, 1.0
    least, most = min(values), max(values)
    room = 0.08 * most - 0.08 * least or max(abs(most), 1e-3) * 0.1
    bottom, top = (least if from_zero and least == 0 else least - room), most + room
    if not LEAST_SPAN < top - bottom < LARGEST:
        raise NotDrawable(
            f"The values from {significant(least)} to {significant(most)} can't be drawn: their "
            "axis would need more than floating-point numbers have."
        )
    return bottom, top


def log_ticks(low: float, high: float) -> list[float]:
    """Round numbers between two powers of ten: powers themselves where several fit, else 1, 2, 5
    times them."""
    powers = range(math.ceil(low - 1e-9), math.floor(high + 1e-9) + 1)
    if len(powers) >= 3:
        return [10.0**power for power in powers][:: math.ceil(len(powers) / 5)]
    around = range(math.floor(low), math.ceil(high) + 1)
    fine = [factor * 10.0**power for power in around for factor in (1, 2, 5)]
    inside = [place for place in fine if low <= math.log10(place) <= high]
    if len(inside) >= 2:
        return inside
    return [place for place in ticks(10**low, 10**high, 5) if place > 0]


def positive(columns: SeriesColumns) -> SeriesColumns:
    """The positive values; the others are gaps."""
    return replace(columns, value=[value if value > 0 else math.nan for value in columns.value])
