"""A run as a piece of HTML for notebooks: health line and chart, without scripts or requests.

`Probe.show()` makes it from what the probe keeps of its newest steps, without a server;
`Client.show(run_id)` from the server's answers."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape

from isentrope_wire import metrics, reports
from isentrope_wire.answers import HealthLevel
from isentrope_wire.diagnosis.course import STEPS_READ
from isentrope_wire.diagnosis.health import Diagnosis, Measured, diagnose, finite
from isentrope_wire.diagnosis.pull import CAUSE_STEPS, change_parts
from isentrope_wire.numbers import fixed
from isentrope_wire.reports import StepReport

_WIDTH, _LEFT, _RIGHT = 680, 52, 8
_LEVELS = {
    HealthLevel.NO_DATA: ("No data yet", "#6b7280"),
    HealthLevel.HEALTHY: ("Healthy", "#15803d"),
    HealthLevel.WATCH: ("Watch", "#b45309"),
    HealthLevel.ACT: ("Act", "#b91c1c"),
    HealthLevel.HOLDING: ("Holding", "#0e7490"),
}
_LINE, _CONTROL = "#4f46e5", "#0d9488"

_KEPT = (
    metrics.ENTROPY_MEAN,
    metrics.ENTROPY_OBSERVED_CHANGE,
    metrics.ENTROPY_UNSEEN_CHANGE,
    metrics.HOLD_TARGET,
    metrics.HOLD_MU,
    metrics.HOLD_BONUS,
)

Steps = Mapping[int, float]
"""Step -> value."""


class RunHistory:
    """What a probe keeps of its newest reports, STEPS_READ at most. The writer thread adds, any
    thread reads. A resumed run begins with none."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._steps: deque[tuple[int, Mapping[str, float]]] = deque(maxlen=STEPS_READ)
        self._parts: deque[tuple[int, Mapping[str, float]]] = deque(maxlen=CAUSE_STEPS)
        self._early: list[float] = []
        self._first: int | None = None
        self._applied: list[int] = []
        self._version = 0
        self._labels: Mapping[str, str] = {}

    def add(self, report: StepReport) -> None:
        """Keep what a view shows of the next report."""
        kept: dict[str, float] = {
            name: report.scalars[name] for name in _KEPT if name in report.scalars
        }
        reward = next((name for name in metrics.REWARD_MEAN.names if name in report.scalars), None)
        if reward is not None:
            kept[metrics.REWARD_MEAN] = report.scalars[reward]
        entropy = kept.get(metrics.ENTROPY_MEAN, math.nan)
        with self._lock:
            if self._first is None:
                self._first = report.step
            if math.isfinite(entropy) and len(self._early) < metrics.EARLY_STEPS:
                self._early.append(entropy)
            if report.control_version != self._version:
                self._version = report.control_version
                self._applied.append(report.step)
            self._steps.append((report.step, kept))
            self._parts.append((report.step, change_parts(_finite_of(report))))
            self._labels = report.labels

    def view(self, title: str, page: str = "") -> RunView:
        """The run as it is now. `page` is its address on a server, empty: not known."""
        with self._lock:
            measured = self._measured()
        return RunView(
            title=title,
            diagnosis=diagnose(measured),
            entropies=measured.entropies,
            rewards=measured.rewards,
            targets=measured.targets,
            applied_steps=measured.applied_steps,
            page=page,
        )

    def _measured(self) -> Measured:
        if not self._steps:
            return Measured()
        step, newest = self._steps[-1]
        unseen = self._values(metrics.ENTROPY_UNSEEN_CHANGE)
        return Measured(
            step=step,
            first_step=self._first,
            largest_entropy=metrics.largest_entropy(newest),
            early_entropies=list(self._early),
            entropies={
                step: scalars[metrics.ENTROPY_MEAN]
                for step, scalars in self._steps
                if metrics.ENTROPY_MEAN in scalars
            },
            observed=unseen or self._values(metrics.ENTROPY_OBSERVED_CHANGE),
            targets=self._values(metrics.HOLD_TARGET),
            is_acting=not newest.keys().isdisjoint({metrics.HOLD_MU, metrics.HOLD_BONUS}),
            rewards=self._values(metrics.REWARD_MEAN),
            applied_steps=list(self._applied),
            parts=dict(self._parts),
            hold_state=self._labels.get(reports.HOLD_STATE, ""),
            hold_why=self._labels.get(reports.HOLD_WHY, ""),
        )

    def _values(self, name: str) -> dict[int, float]:
        """The finite values of a metric."""
        return finite((step, scalars.get(name, math.nan)) for step, scalars in self._steps)


def _finite_of(report: StepReport) -> dict[str, float]:
    return {name: value for name, value in report.scalars.items() if math.isfinite(value)}


@dataclass(frozen=True, kw_only=True)
class RunView:
    """A run at one moment. A notebook shows it as HTML, a terminal as its health line."""

    title: str
    diagnosis: Diagnosis
    entropies: Steps
    """In nats."""
    rewards: Steps = field(default_factory=dict)
    targets: Steps = field(default_factory=dict)
    """The entropies to hold, in nats."""
    applied_steps: Sequence[int] = ()
    """The steps from which another control was active."""
    page: str = ""
    """The run's address on its server; empty: not known."""

    def __repr__(self) -> str:
        word, _ = _LEVELS[self.diagnosis.level]
        return f"{word}: {self.diagnosis.message}"

    def _repr_html_(self) -> str:
        word, color = _LEVELS[self.diagnosis.level]
        lines = [
            f"<strong>{escape(self.title)}</strong>",
            f'<strong style="color:{color}">{word}</strong> {escape(self.diagnosis.message)}',
        ]
        if self.diagnosis.cause is not None:
            lines.append(escape(self.diagnosis.cause.message))
        if self.diagnosis.suggestion is not None:
            lines.append(escape(self.diagnosis.suggestion.message))
        if self.page:
            lines.append(f'<a href="{escape(self.page)}" target="_blank">Open its page</a>')
        text = "<br>".join(lines)
        return f'<div style="font-family:sans-serif;max-width:{_WIDTH}px">{text}{self._svg()}</div>'

    def _svg(self) -> str:
        """The chart; empty where nothing was measured."""
        steps = sorted({*self.entropies, *self.rewards})
        if not finite([*self.entropies.items(), *self.rewards.items()]):
            return ""
        last = steps[-1]
        if self.diagnosis.forecast is not None:
            last = max(last, *self.diagnosis.forecast.step)
        axis = _Axis(steps[0], last)
        parts, height = list[str](), 8
        for draw, of_panel in ((self._entropy, 130), (self._reward, 60)):
            drawn = draw(_Panel(axis, height, of_panel))
            if drawn:
                parts += drawn
                height += of_panel + 14
        parts.append(f'<text x="{_LEFT}" y="{height + 4}">steps {steps[0]} to {steps[-1]}</text>')
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height + 10}" '
            f'role="img" aria-label="{escape(repr(self))}" '
            f'style="font-size:11px;fill:currentColor">{"".join(parts)}</svg>'
        )

    def _entropy(self, panel: _Panel) -> list[str]:
        """Entropy with its early level, the forecast with its band, and the pushed controls."""
        if not finite(self.entropies.items()):
            return []
        forecast, early = self.diagnosis.forecast, self.diagnosis.early_level
        levels = [*self.entropies.values(), *self.targets.values()]
        if early is not None:
            levels.append(early)
        if forecast is not None:
            levels += [*forecast.low, *forecast.high]
        panel.span(levels)
        parts = [panel.labels("entropy, nats")]
        if forecast is not None:
            parts.append(panel.band(forecast.step, forecast.low, forecast.high))
            ahead = dict(zip(forecast.step, forecast.entropy, strict=True))
            parts.append(panel.line(ahead, "stroke-dasharray:4 3"))
        if early is not None:
            level = {panel.axis.first: early, panel.axis.last: early}
            parts.append(panel.line(level, "stroke:gray;stroke-dasharray:1 3"))
        parts.append(panel.line(self.targets, f"stroke:{_CONTROL};stroke-dasharray:6 2"))
        first = min(self.entropies)
        parts += [panel.mark(step) for step in self.applied_steps if step >= first]
        return [*parts, panel.line(self.entropies)]

    def _reward(self, panel: _Panel) -> list[str]:
        if not finite(self.rewards.items()):
            return []
        panel.span(self.rewards.values())
        return [panel.labels("reward"), panel.line(self.rewards)]


@dataclass(frozen=True, slots=True)
class _Axis:
    """The steps that all panels show."""

    first: int
    last: int


class _Panel:
    """Draws lines of one quantity into a part of the picture, `top` and `height` in pixels."""

    def __init__(self, axis: _Axis, top: int, height: int) -> None:
        self.axis, self._top, self._height = axis, top, height
        self._low = self._high = 0.0

    def span(self, values: Iterable[float]) -> None:
        """Choose the value axis: the finite ones of these lie in it."""
        shown = [value for value in values if math.isfinite(value)]
        self._low, self._high = min(shown), max(shown)
        if self._low == self._high:
            self._low, self._high = self._low - 0.5, self._high + 0.5

    def _x(self, step: float) -> float:
        span = max(1, self.axis.last - self.axis.first)
        return _LEFT + (step - self.axis.first) / span * (_WIDTH - _LEFT - _RIGHT)

    def _y(self, value: float) -> float:
        share = (value - self._low) / (self._high - self._low)
        return self._top + (1 - share) * self._height

    def _points(self, values: Steps) -> str:
        return " ".join(
            f"{self._x(step):.1f},{self._y(value):.1f}" for step, value in values.items()
        )

    def line(self, values: Steps, style: str = "") -> str:
        """A line that breaks where a value is not finite."""
        pieces: list[dict[int, float]] = [{}]
        for step, value in sorted(values.items()):
            if math.isfinite(value):
                pieces[-1][step] = value
            elif pieces[-1]:
                pieces.append({})
        look = f"fill:none;stroke:{_LINE};stroke-width:1.5;{style}"
        drawn = (self._points(piece) for piece in pieces if piece)
        return "".join(f'<polyline points="{points}" style="{look}"/>' for points in drawn)

    def band(self, steps: Sequence[int], low: Sequence[float], high: Sequence[float]) -> str:
        up = self._points(dict(zip(steps, high, strict=True)))
        back = self._points(dict(zip(reversed(steps), reversed(low), strict=True)))
        return f'<polygon points="{up} {back}" style="fill:{_LINE};opacity:0.15"/>'

    def mark(self, step: int) -> str:
        """A vertical line where another control became active."""
        x = f"{self._x(step):.1f}"
        ends = f'x1="{x}" x2="{x}" y1="{self._top}" y2="{self._top + self._height}"'
        return f'<line {ends} style="stroke:{_CONTROL}"><title>another control</title></line>'

    def labels(self, name: str) -> str:
        """The ends of the value axis, and what it shows."""
        bottom = self._top + self._height
        return (
            f'<text x="0" y="{self._top + 8}">{fixed(self._high, 3)}</text>'
            f'<text x="0" y="{bottom}">{fixed(self._low, 3)}</text>'
            f'<text x="{_WIDTH - _RIGHT}" y="{self._top + 8}" text-anchor="end">{name}</text>'
        )
