"""A chart as plain plotly JSON: lines, bands, levels and marks over steps, with ticks written by our own rules.

Plotly writes small numbers with SI prefixes, which beside a threshold called µ misleads; so every axis gets its ticks in
words from here (`ticks`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from isentrope_dashboard import theme
from isentrope_dashboard.figures.lines import band_outline, missing_steps
from isentrope_dashboard.formatting import MINUS, count
from isentrope_dashboard.theme import Scheme
from isentrope_dashboard.view import Axis
from isentrope_wire.answers import SeriesColumns

EMPTY = SeriesColumns(step=[], value=[], min=None, max=None)
"""Columns of a metric that was never reported."""

DASH = "5px,4px"
"""Of what is predicted."""

SMOOTHED_STEPS = 9


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round numbers within [low, high], at most `most`."""
    span = high - low
    if not (math.isfinite(span) and span > 1e-9 * max(abs(low), abs(high))):
        return [low] if math.isfinite(low) else []
    raw = span / max(1, most - 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]


def tick_texts(places: Sequence[float]) -> list[str]:
    """Ticks with as many decimals as tell them apart; very small and very large ones as powers of ten."""
    distance = min((b - a for a, b in pairwise(places)), default=abs(places[0]) if places else 0)
    largest = max(map(abs, places), default=0)
    if largest and (largest < 1e-4 or distance >= 1e7):
        digits = max(1, math.ceil(math.log10(largest / distance)) + 1)
        return ["0" if place == 0 else f"{place:.{digits}e}".replace("-", MINUS) for place in places]
    decimals = 0 if distance == 0 else max(0, -math.floor(math.log10(distance) + 1e-9))
    if round(distance, decimals) != round(distance, decimals + 1):
        decimals += 1  # steps of 2.5
    return ["0" if place == 0 else f"{place:,.{decimals}f}".replace(",", " ").replace("-", MINUS) for place in places]


def percent_texts(places: Sequence[float]) -> list[str]:
    """The same of shares."""
    return [f"{text} %" for text in tick_texts([100 * place for place in places])]


def duration_texts(places: Sequence[float]) -> list[str]:
    """Seconds as seconds, minutes or hours."""
    largest = max(map(abs, places), default=0)
    unit, name = (1, "s") if largest < 180 else (60, "min") if largest < 10800 else (3600, "h")
    return [text if text == "0" else f"{text} {name}" for text in tick_texts([place / unit for place in places])]


@dataclass(frozen=True, slots=True)
class Scale:
    """From a step to its place on the x axis: the step itself, or the seconds or tokens of training until then."""

    axis: Axis = "step"
    steps: Sequence[int] = ()
    places: Sequence[float] = ()

    @classmethod
    def of(cls, axis: Axis, amounts: SeriesColumns) -> Scale:
        """The scale of an axis, from what each step took: seconds, or tokens."""
        if axis == "step" or not amounts.step:
            return cls()
        places, total, before = [], 0.0, amounts.step[0] - 1
        for step, amount in zip(amounts.step, amounts.value, strict=True):
            # A reduced series has the mean of each bucket.
            total += (amount if math.isfinite(amount) else 0.0) * (step - before)
            before = step
            places.append(total)
        return cls(axis, amounts.step, places)

    def at(self, step: float) -> float:
        """The place of a step; before and after the known ones, in proportion."""
        if not self.steps:
            return step
        steps, places = self.steps, self.places
        if step <= steps[0]:
            return places[0] + (step - steps[0]) * self._pace
        if step >= steps[-1]:
            return places[-1] + (step - steps[-1]) * self._pace
        low, high = 0, len(steps) - 1
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if steps[middle] <= step else (low, middle)
        share = (step - steps[low]) / (steps[high] - steps[low])
        return places[low] + share * (places[high] - places[low])

    def step_at(self, place: float) -> float:
        """The step at a place: the inverse."""
        if not self.steps:
            return place
        if place >= self.places[-1]:
            return self.steps[-1] + (place - self.places[-1]) / (self._pace or 1.0)
        return Scale("step", [0], [0]).at(0) if not self.places else _inverse(self.places, self.steps, place)

    @property
    def _pace(self) -> float:
        return self.places[-1] / max(1, len(self.steps) and self.steps[-1] - self.steps[0] + 1)

    def texts(self, places: Sequence[float]) -> list[str]:
        return duration_texts(places) if self.axis == "time" else [count(round(place)) for place in places]


def _inverse(places: Sequence[float], steps: Sequence[int], place: float) -> float:
    for index in range(1, len(places)):
        if places[index] >= place:
            span = places[index] - places[index - 1]
            share = (place - places[index - 1]) / span if span else 0.0
            return steps[index - 1] + share * (steps[index] - steps[index - 1])
    return steps[0]


def smoothed(columns: SeriesColumns, steps: int = SMOOTHED_STEPS) -> list[float | None]:
    """The mean of the values around each one, with weights that fall to both sides; what is not finite counts nothing."""
    half = steps // 2
    values = columns.value
    means: list[float | None] = []
    for at in range(len(values)):
        total = weights = 0.0
        for near in range(max(0, at - half), min(len(values), at + half + 1)):
            if math.isfinite(values[near]):
                weight = half + 1 - abs(near - at)
                total += weight * values[near]
                weights += weight
        means.append(total / weights if weights else None)
    return means


def finite(values: Sequence[float | None]) -> list[float | None]:
    """NaN and infinities as gaps."""
    return [value if value is not None and math.isfinite(value) else None for value in values]


@dataclass(slots=True)
class Chart:
    """One chart while it is built."""

    scheme: Scheme
    scale: Scale = field(default_factory=Scale)
    data: list[dict[str, Any]] = field(default_factory=list)
    layout: dict[str, Any] = field(default_factory=dict)

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
        smooth: bool = False,
        written: Callable[[float | None], str] | None = None,
        axis: str = "y",
    ) -> None:
        """One metric over steps, with a gap where steps are missing. Smoothed, the raw line stays behind it."""
        gaps = {gap.last for gap in missing_steps(columns.step, reduced=columns.reduced)}
        if smooth and len(columns.step) > SMOOTHED_STEPS:
            self._trace(columns.step, finite(columns.value), gaps, name, color, 1, dash, None, axis, opacity=0.35)
            self._trace(columns.step, smoothed(columns), gaps, name, color, width, dash, written, axis)
        else:
            self._trace(columns.step, finite(columns.value), gaps, name, color, width, dash, written, axis)

    def _trace(
        self,
        steps: Sequence[int],
        values: Sequence[float | None],
        gaps: set[int],
        name: str,
        color: str,
        width: float,
        dash: str,
        written: Callable[[float | None], str] | None,
        axis: str,
        opacity: float = 1,
    ) -> None:
        x: list[float | None] = []
        y: list[float | None] = []
        for step, value in zip(steps, values, strict=True):
            if step - 1 in gaps:
                x.append(self.scale.at(step - 1))
                y.append(None)
            x.append(self.scale.at(step))
            y.append(value)
        trace: dict[str, Any] = {
            "type": "scatter",
            # A step between two gaps has no line: only a marker shows it.
            "mode": "lines+markers" if len(steps) == 1 else "lines",
            "x": x,
            "y": y,
            "name": name,
            "line": {"color": color, "width": width, "dash": dash},
            "opacity": opacity,
            "yaxis": axis,
        }
        if written is None:
            trace["hoverinfo"] = "skip"
        else:
            trace |= {"text": [written(value) for value in y], "hovertemplate": "%{text}<extra>" + name + "</extra>"}
        self.data.append(trace)

    def band(self, low: SeriesColumns, high: SeriesColumns, color: str) -> None:
        """Between two metrics that have the same steps."""
        pairs = dict(zip(high.step, high.value, strict=True))
        outline = band_outline(low.step, low.value, [pairs.get(step) for step in low.step])
        if outline.x:
            places = [self.scale.at(x) for x in outline.x]
            self.area(places + places[::-1], outline.high + outline.low[::-1], color)

    def area(self, x: Sequence[float], y: Sequence[float], color: str) -> None:
        """A filled outline."""
        self.data.append(
            {
                "type": "scatter", "mode": "lines", "x": list(x), "y": list(y), "fill": "toself", "fillcolor": color,
                "line": {"width": 0}, "hoverinfo": "skip",
            }
        )  # fmt: skip

    def stroke(
        self, steps: Sequence[float], values: Sequence[float], color: str, *, width: float = 2, dash: str = DASH
    ) -> None:
        """A line of a few points without hover, as of a forecast."""
        self.data.append(
            {
                "type": "scatter", "mode": "lines", "x": [self.scale.at(step) for step in steps], "y": list(values),
                "line": {"color": color, "width": width, "dash": dash}, "hoverinfo": "skip",
            }
        )  # fmt: skip

    def dot(self, step: float, value: float, color: str, *, symbol: str = "circle", text: str = "") -> None:
        """One point; `text` is shown where the mouse is over it."""
        hover = {"text": [text], "hovertemplate": "%{text}<extra></extra>"} if text else {"hoverinfo": "skip"}
        self.data.append(
            {
                "type": "scatter", "mode": "markers", "x": [self.scale.at(step)], "y": [value],
                "marker": {"size": 10, "symbol": symbol, "color": color, "line": {"color": self.ink["card"], "width": 2}},
                **hover,
            }
        )  # fmt: skip

    def level(self, value: float, color: str, *, dash: str = "4px,4px") -> None:
        """A horizontal line."""
        self._shape(x0=0, x1=1, xref="paper", y0=value, y1=value, line={"color": color, "width": 1, "dash": dash})

    def mark(self, step: float, color: str, *, dash: str = "dot", width: float = 1) -> None:
        """A vertical line."""
        x = self.scale.at(step)
        self._shape(x0=x, x1=x, yref="paper", y0=0, y1=1, line={"color": color, "width": width, "dash": dash})

    def zone(self, first: float, last: float, color: str) -> None:
        """A vertical stripe behind the lines."""
        place = {"x0": self.scale.at(first), "x1": self.scale.at(last), "yref": "paper", "y0": 0, "y1": 1}
        self._shape(type="rect", **place, fillcolor=color, line={"width": 0}, layer="below")

    def label(
        self, text: str, *, x: float | None = None, at: float | None = None, y: float, color: str = "", **place: Any
    ) -> None:
        """Words in the chart, at the step `x`, or at the share `at` of its width. `text` must be our own: it is markup."""
        where = {"x": at, "xref": "paper"} if at is not None else {"x": self.scale.at(x or 0)}
        where |= place
        font = {"font": {"size": 11, "color": color}} if color else {}
        self.layout.setdefault("annotations", []).append({"text": text, "y": y, "showarrow": False, **font, **where})

    def note(self, text: str) -> None:
        """One sentence in the middle of a chart that has nothing to show."""
        self.layout["annotations"] = [
            {
                "text": text,
                "x": 0.5,
                "y": 0.5,
                "xref": "paper",
                "yref": "paper",
                "showarrow": False,
                "font": {"size": 12},
            }
        ]
        self.layout["xaxis"] = {"visible": False}
        self.layout["yaxis"] = {"visible": False}

    def x_axis(self, first: float, last: float, most: int = 7) -> None:
        """The axis from one place to another; ends are in units of the scale."""
        places = ticks(first, last, most)
        texts = self.scale.texts(places)
        self.layout["xaxis"] = {"range": [first, last], "tickvals": places, "ticktext": texts}

    def y_axis(
        self,
        low: float,
        high: float,
        *,
        written: Callable[[Sequence[float]], list[str]] = tick_texts,
        most: int = 6,
        name: str = "yaxis",
        **more: Any,
    ) -> None:
        """The axis from one value to another."""
        places = ticks(low, high, most)
        self.layout[name] = {"range": [low, high], "tickvals": places, "ticktext": written(places), **more}

    def figure(self) -> dict[str, Any]:
        """The chart as JSON. A click on it chooses a step: `meta` has the steps of places that are no steps."""
        places = {"meta": {"x": self.scale.places, "step": self.scale.steps}} if self.scale.steps else {}
        return {"data": self.data, "layout": {**self.layout, **places, "template": theme.template(self.scheme)}}

    def _shape(self, **shape: Any) -> None:
        self.layout.setdefault("shapes", []).append({"type": "line", **shape})


def value_range(
    series: Sequence[SeriesColumns], *, from_zero: bool = False, low: float | None = None, high: float | None = None
) -> tuple[float, float]:
    """What the values span, with some room; at least `low` to `high` where they are given."""
    values = [value for columns in series for value in columns.value if math.isfinite(value)]
    values += [value for value in (low, high) if value is not None and math.isfinite(value)]
    if from_zero:
        values.append(0.0)
    if not values:
        return 0.0, 1.0
    least, most = min(values), max(values)
    room = 0.08 * (most - least) or max(abs(most), 1e-3) * 0.1
    return (least if from_zero and least == 0 else least - room), most + room
