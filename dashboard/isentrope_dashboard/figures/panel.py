"""A chart over steps as a row: of the tables in `panels`, or of any metric (`metric_panel`); and
how its lines are drawn from what was read (`Shown`)."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeAlias

from isentrope_dashboard import theme
from isentrope_dashboard.figures.chart import (
    EMPTY,
    GUTTER,
    Chart,
    Scale,
    percent_texts,
    positive,
    tick_texts,
    value_range,
)
from isentrope_dashboard.formatting import method, pace, percent, told_apart
from isentrope_dashboard.theme import Scheme
from isentrope_dashboard.view import SMOOTHED
from isentrope_wire.answers import HistogramColumns, SeriesColumns, StepReport
from isentrope_wire.control import Control
from isentrope_wire.control_answers import ControlVersion, EntropyForecast, EntropyPerformance
from isentrope_wire.diagnosis.course import AHEAD
from isentrope_wire.diagnosis.effect import PROMISED_STEPS
from isentrope_wire.diagnosis.health import Preview
from isentrope_wire.metrics import METRICS, Metric, Show

Figure: TypeAlias = dict[str, Any]

NEXT_STEPS = AHEAD
"""How far forecasts go."""
HEIGHT, NAMES = 196, 104
"""Height of a chart with names at its lines' ends, and the pixels that these take."""
REST = 1e-3
ENVELOPE = 0.16
"""How opaque the band between minimum and maximum of the buckets is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Something that happened at a step."""

    step: int
    label: str
    """In a few characters."""
    kind: str = "control"
    """`control`, `watch` or `act`."""
    text: str = ""
    """In a sentence, shown on hover."""
    is_active: bool = False
    """Whether it is the control that acts now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What the server says of the next steps."""

    label: str
    """In a word or two: there is room for twelve characters."""
    course: EntropyForecast | None
    pace: float | None
    """Mean over the next steps, in nats a step."""
    clip_fraction: float | None = None
    entropy: float | None = None
    """Now, in nats."""
    tone: str = "act"
    """Name of its colour: `hold` where it stays, `act` where it is lost."""
    has_band: bool = False
    is_drawn: bool = True
    """Whether there is a line; else its band alone."""
    name: str = ""
    """Name of its trace and its label: the browser hides what is `suggested` while it draws what
    the form has."""

    @classmethod
    def read(cls, found: Preview, control: Control) -> Forecast:
        """The line with a control, from the server's preview of it."""
        return cls(
            label=f"with {method(control.method) if control.held is None else 'hold'}",
            course=found.forecast,
            pace=None if found.pace is None else found.pace.value,
            clip_fraction=found.clip_fraction,
            entropy=found.entropy,
            tone="hold",
            name="suggested",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What was read for the panels of a tab, and how the reader looks at it."""

    scheme: Scheme
    scale: Scale
    first: int
    """First step of the window."""
    last: int
    """The newest step; the zone of the next steps begins there."""
    zoom: tuple[float, float] | None = None
    """In units of the scale."""
    smooth: int = SMOOTHED["on"]
    """Steps that the smoothed lines are means of; 0: none is smoothed."""
    is_live: bool = True
    """Whether the next steps are shown, too."""
    label: str = ""
    """Of the run, in a chart of several."""
    key: str = ""
    """What the browser calls the run's line, in a chart of several."""
    look: int = 0
    """Of its line; see `theme.look_of`."""
    runs: Sequence[Shown] = ()
    """What was read of each run, in a chart of several; then the fields about one run are empty."""
    marks: Sequence[Mark] = ()
    forecasts: Sequence[Forecast] = ()
    early_level: float | None = None
    series: Mapping[str, SeriesColumns] = field(default_factory=dict)
    histograms: Mapping[str, HistogramColumns] = field(default_factory=dict)
    history: Sequence[ControlVersion] = ()
    seeds: int = 0
    """Runs that `means` are of."""
    means: Mapping[str, SeriesColumns] = field(default_factory=dict)
    """Means over this run and those that differ from it in the seed alone, with the lowest and
    highest of them."""
    law: EntropyPerformance | None = None
    chosen: int | None = None
    """The step that the reader chose, with its report."""
    report: StepReport | None = None

    @property
    def ends(self) -> tuple[float, float]:
        """Ends of the x axis, in units of the scale."""
        if self.zoom is not None:
            return self.zoom
        if self.runs:
            return min(run.ends[0] for run in self.runs), max(run.ends[1] for run in self.runs)
        # So wide that what comes next is never a sliver.
        beyond = 0
        if self.is_live:
            beyond = max(NEXT_STEPS, 8 * (self.last - self.first) // 100)
        return self.scale.position(self.first), self.scale.position(
            max(self.last + beyond, self.first + 1)
        )

    @property
    def ends_now(self) -> tuple[float, float]:
        """Ends of the x axis without the next steps."""
        if self.zoom is not None:
            return self.ends
        return replace(self, is_live=False).ends

    @property
    def controls(self) -> Sequence[Mark]:
        """The applied ones."""
        return [mark for mark in self.marks if mark.kind == "control"]

    def columns(self, name: str) -> SeriesColumns:
        """A metric; EMPTY where it was not reported."""
        return self.series.get(name, EMPTY)

    def ends_of_seeds(self, name: str) -> list[SeriesColumns]:
        """The lowest and the highest of the seeds; empty where none were read."""
        mean = self.means.get(name, EMPTY)
        return [
            SeriesColumns(step=mean.step, value=ends, min=None, max=None)
            for ends in (mean.min, mean.max)
            if ends
        ]

    def seen(self, columns: SeriesColumns) -> SeriesColumns:
        """Of a zoomed chart what lies in it, which its y axis follows; a step to each side is read
        with it."""
        if self.zoom is None:
            return columns
        first, last = self.zoom
        rows = [
            at for at, step in enumerate(columns.step) if first <= self.scale.position(step) <= last
        ]
        kept = {
            name: [column[at] for at in rows]
            for name in ("step", "value", "min", "max", "mean", "count", "not_finite")
            if (column := getattr(columns, name))
        }
        return replace(columns, **kept)


@dataclass(frozen=True, slots=True)
class Line:
    """One metric in a panel."""

    metric: str
    label: str
    """Plotly's markup."""
    color: str
    """By its name in the theme, or the number of one of its lines."""
    dash: str = "solid"
    width: float = 1.6
    smooth: bool = True
    """Whether the reader's smoothing applies."""
    unless: str = ""
    """Not drawn where this metric was measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """What a histogram in every report counts."""

    histogram: Metric
    symbol: str
    """Plotly's markup."""
    mean: str = ""
    """Metric that thresholds are counted from; empty: from 0."""
    std: str = ""
    """Metric that thresholds are multiples of; empty: none lie on this quantity."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One chart: of lines, unless `draw` says otherwise."""

    name: str
    title: str
    unit: str
    says: str
    """What it shows, read by screen readers."""
    needs: str
    """What a run must report for it, in a sentence."""
    height: int | str = HEIGHT
    """Pixels, or a length of CSS."""
    lines: Sequence[Line] = ()
    reads: Sequence[str] = ()
    """Metrics beside those of the lines."""
    quantity: Quantity | None = None
    draw: Callable[[Panel, Shown], Figure | str] | None = None
    """Returns plotly's JSON, or why there is nothing to see."""
    keys: Sequence[tuple[str, str, str]] = ()
    """What is drawn, named above the chart: word, kind of the sample, colour. Without them the
    lines' ends have names."""
    zooms: bool = True
    """Whether its x axis is that of the steps."""
    signs: Sequence[str] = ()
    """There is something to see when one of these was measured; empty: any of its lines."""
    written: Callable[[float | None], str] | None = None
    """Values under the mouse; None: with as many digits as tell them apart."""
    log: bool = False
    from_zero: bool = False
    """The value axis begins at 0, unless it is zoomed."""
    share: bool = False
    """Shown as a share: per cent from 0 to at most 100."""
    least_top: float | None = None
    """The value axis reaches at least so far."""
    band: tuple[str, str] | None = None
    """Metrics of its lower and upper end."""
    forecast: str = ""
    """Field of `Forecast` that is drawn ahead, as a level."""
    at_rest: float | None = None
    """The value of every line where there is nothing to see; a run that never leaves it by REST has
    no chart."""
    rest: str = ""
    """What it means that there is nothing to see, in a sentence."""

    @property
    def metrics(self) -> list[str]:
        """Names of everything that it reads as a series."""
        return [*(line.metric for line in self.lines), *(self.band or ()), *self.reads]

    def figure(self, shown: Shown) -> Figure | str:
        """Plotly's JSON, or why there is nothing to see."""
        return (self.draw or draw_lines)(self, shown)


def absent(panel: Panel, shown: Shown) -> str:
    """Why a panel of lines has nothing to show; empty where it has."""
    names = {line.metric for line in panel.lines if shown.columns(line.metric).step}
    if not names:
        return panel.needs
    if panel.signs and names.isdisjoint(panel.signs):
        return panel.rest
    if panel.at_rest is None:
        return ""
    values = [value for name in names for value in shown.columns(name).value]
    if any(math.isfinite(value) and abs(value - panel.at_rest) >= REST for value in values):
        return ""
    return panel.rest


def written_by(panel: Panel, series: Sequence[SeriesColumns]) -> Callable[[float | None], str]:
    """How the panel's values are written, beside these."""
    if panel.share:
        return percent
    return panel.written or partial(told_apart, span=span_of(series))


def span_of(series: Sequence[SeriesColumns]) -> float:
    """From the least to the largest finite value; 0 without two of them."""
    values = [value for columns in series for value in columns.value if math.isfinite(value)]
    if values:
        return max(values) - min(values)
    return 0.0


def begin(panel: Panel, shown: Shown, most: int = 7, *, looks_ahead: bool = True) -> Chart:
    """A chart with its x axis, the zone of the next steps where it `looks_ahead`, the applied
    controls."""
    chart = Chart(shown.scheme, shown.scale)
    gutter = NAMES
    if panel.keys:
        gutter = GUTTER
    if panel.quantity is not None:
        gutter = 12
    chart.layout["margin"] = {"l": 48, "r": gutter, "t": 8, "b": 24}
    chart.x_axis(*(shown.ends if looks_ahead else shown.ends_now), most=most)
    if shown.is_live and looks_ahead:
        end = (
            shown.last + NEXT_STEPS * 2
            if shown.zoom is None
            else shown.scale.step_at(shown.zoom[1])
        )
        chart.zone(shown.last, end, chart.ink["future"])
        chart.mark(shown.last, chart.ink["zero"])
    add_controls(chart, shown)
    return chart


def add_controls(chart: Chart, shown: Shown) -> None:
    """Each applied control as a line, with its version on the axis."""
    for mark in shown.controls:
        color = chart.ink["hold" if mark.is_active else "faint"]
        chart.mark(mark.step, color)
        chart.pill(mark.step, mark.label.split(" ")[0], color, says=html.escape(mark.label))


def add_seeds(chart: Chart, panel: Panel, shown: Shown, *, log: bool = False) -> None:
    """The mean of the seeds of the panel's last line, over the band from the lowest to the highest
    of them."""
    name = panel.lines[-1].metric
    ends = shown.ends_of_seeds(name)
    if not ends:
        return
    low, high = ends
    if log:
        low, high = positive(low), positive(high)
    chart.band(low, high, _see_through(chart.ink["observed"]))
    chart.line(
        shown.means[name],
        name=f"mean of {shown.seeds} seeds",
        color=chart.ink["observed"],
        width=1.2,
        dash="2px,3px",
        written=written_by(panel, ends),
    )


def draw_lines(panel: Panel, shown: Shown) -> Figure | str:
    """The panel's lines over its band, and the forecasts; where `keys` do not name the lines, their
    ends do."""
    why = absent(panel, shown)
    if why:
        return why
    ahead = []
    if panel.forecast:
        levels = [(forecast, getattr(forecast, panel.forecast)) for forecast in shown.forecasts]
        ahead = [(forecast, level) for forecast, level in levels if level is not None]
    most_ticks = 6
    if panel.keys:
        most_ticks = 7
    chart = begin(panel, shown, most=most_ticks, looks_ahead=bool(ahead))
    lines = [line for line in panel.lines if not shown.columns(line.unless).step]
    lines = [line for line in lines if shown.columns(line.metric).step]
    series = [shown.columns(line.metric) for line in lines]
    written = written_by(panel, series)
    seen, whole = [shown.seen(columns) for columns in series], shown.zoom is None
    of_seeds = [shown.seen(columns) for columns in shown.ends_of_seeds(panel.lines[-1].metric)]
    if panel.log:
        chart.log_axis(seen, room=0.06)
    else:
        from_zero = panel.share or (whole and panel.from_zero)
        beyond, texts = list[float](), tick_texts
        if shown.ends[1] > shown.scale.position(shown.last):
            beyond += [level for _, level in ahead]
        if whole and not from_zero:
            beyond.append(0.0)
        if panel.least_top is not None:
            beyond.append(panel.least_top)
        bottom, top = min(beyond, default=None), max(beyond, default=None)
        low, high = value_range([*seen, *of_seeds], from_zero=from_zero, low=bottom, high=top)
        if panel.share:
            high, texts = min(high, 1.02), percent_texts
        chart.y_axis(low, high, written=texts, most=most_ticks - 1, zeroline=not from_zero)
    add_seeds(chart, panel, shown)
    if panel.band is not None:
        least, most = panel.band
        chart.band(shown.columns(least), shown.columns(most), chart.ink["iris_soft"])
    if shown.chosen is not None:
        chart.mark(shown.chosen, chart.ink["zero"])
    for line, columns, last in zip(lines, series, seen, strict=True):
        if line.color.isdecimal():
            color = theme.LINES[shown.scheme][int(line.color)]
        else:
            color = chart.ink[line.color]
        chart.line(
            columns,
            name=line.label,
            color=color,
            width=line.width,
            dash=line.dash,
            smooth=shown.smooth * line.smooth,
            written=written,
        )
        newest = next((value for value in reversed(last.value) if math.isfinite(value)), None)
        if newest is not None and not panel.keys:
            chart.end(line.label, newest, color)
    for forecast, value in ahead:
        end, color = shown.last + PROMISED_STEPS, chart.ink[forecast.tone]
        chart.stroke([shown.last, end], [value, value], color, meta=forecast.name)
        if panel.share:
            words = percent(value)
        else:
            words = pace(value, forecast.entropy)
        chart.end(end_label(forecast.label, words), value, color, step=end, name=forecast.name)
    return chart.figure()


def end_label(label: str, value: str) -> str:
    """A name and a value, one above the other."""
    return f"<b>{html.escape(label)}</b><br>{value}"


def metric_panel(name: str, height: int, *, log: bool = False) -> Panel:
    """The row of a metric that may have any name."""
    metric, unit = METRICS.get(name), ""
    if metric is not None:
        unit = metric.unit
    return Panel(
        name=name,
        title=name,
        unit=unit,
        says=f"{name} over steps",
        needs="No values in these steps",
        height=height,
        lines=[Line(name, name, "0")],
        draw=metric_figure,
        log=log,
        share=metric is not None and metric.show is Show.PERCENT,
    )


def metric_figure(panel: Panel, shown: Shown) -> Figure | str:
    """A line for each run; a reduced series has a band from minimum to maximum."""
    drawn = [run for run in shown.runs or [shown] if run.columns(panel.name).step]
    if not drawn:
        return panel.needs
    every = [run.columns(panel.name) for run in drawn]
    chart = Chart(shown.scheme, shown.scale)
    chart.x_axis(*shown.ends, most=5 if shown.scale.axis == "step" else 4)
    log = panel.log and any(0 < value < math.inf for columns in every for value in columns.value)
    seen = [run.seen(columns) for run, columns in zip(drawn, every, strict=True)]
    of_seeds = [shown.seen(columns) for columns in shown.ends_of_seeds(panel.name)]
    from_zero = panel.share or (panel.from_zero and shown.zoom is None)
    _y_axis(chart, [*seen, *of_seeds], log=log, is_share=panel.share, from_zero=from_zero)
    longest = max(map(len, chart.layout["yaxis"]["ticktext"]), default=0)
    chart.layout["margin"] = {"l": max(44, 7 * longest + 8), "r": 16, "t": 8, "b": 24}
    add_controls(chart, shown)
    add_seeds(chart, panel, shown, log=log)
    for run in drawn:
        chart.scale = run.scale
        _add_line(chart, panel, run, written_by(panel, every), log=log)
    chart.scale = shown.scale
    return chart.figure()


def _add_line(
    chart: Chart, panel: Panel, run: Shown, written: Callable[[float | None], str], *, log: bool
) -> None:
    color, dash = theme.look_of(chart.scheme, run.look)
    columns = run.columns(panel.name)
    if columns.reduced and columns.min is not None and columns.max is not None:
        low, high = (replace(columns, value=ends) for ends in (columns.min, columns.max))
        if log:
            low, high = positive(low), positive(high)
        chart.band(low, high, _see_through(color))
    chart.line(
        columns,
        name=html.escape(run.label or panel.name),
        color=color,
        width=1.6,
        dash=dash,
        smooth=run.smooth,
        written=written,
        key=run.key,
        has_band=columns.reduced,
    )


def _y_axis(
    chart: Chart, every: Sequence[SeriesColumns], *, log: bool, is_share: bool, from_zero: bool
) -> None:
    extremes = [
        replace(columns, value=ends)
        for columns in every
        for ends in (columns.min, columns.max)
        if ends is not None
    ]
    series = [*every, *extremes]
    if log and is_share:
        chart.log_axis(series, written=percent_texts)
    elif log:
        chart.log_axis(series)
    elif is_share:
        chart.y_axis(*value_range(series, from_zero=True), most=5, written=percent_texts)
    else:
        chart.y_axis(*value_range(series, from_zero=from_zero), most=5)


def _see_through(color: str) -> str:
    red, green, blue = (int(color[at : at + 2], 16) for at in (1, 3, 5))
    return f"rgba({red},{green},{blue},{ENVELOPE})"
