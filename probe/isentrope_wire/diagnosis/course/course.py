"""The course of a run's entropy: its pace, where it is going, and how urgent that is.

Entropy moves by shares of itself, so the course is that of log H. A line is fitted to it with
weights that fade over an eighth of the run's age (`line.py`); the forecast goes on along this line
at a pace that fades (`forecast.py`). A step costs the same however long the run is, so the alerts,
raised where a run is measured, and the diagnosis, made of the stored steps, share this one class.
Every constant that was chosen is in `tuning.py`."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from statistics import fmean, median

from isentrope_wire.control_answers import EntropyForecast, Estimate, ForecastScore
from isentrope_wire.diagnosis.course import tuning
from isentrope_wire.diagnosis.course.forecast import (
    ControlTrial,
    Fading,
    PastForecasts,
    Projection,
    effect_in,
)
from isentrope_wire.diagnosis.course.levels import Levels, bound_nats
from isentrope_wire.diagnosis.course.line import Line, memory_at
from isentrope_wire.diagnosis.course.urgency import Evidence, Urgency
from isentrope_wire.metrics import NEWEST_STEPS, EarlyLevel


@dataclass(slots=True)
class Course:
    """The course of a run's entropy; call `add` with each step that measured it, in order."""

    age: int = 0
    """Steps that the run had before the first one that is added."""
    early: EarlyLevel = field(default_factory=EarlyLevel)
    step: int = 0
    """The newest."""
    steps: int = 0
    """That were added."""
    largest: float = tuning.CEILING
    """ln V, in nats, where the number V of a vocabulary's tokens is known: no policy has more."""
    directions: deque[int] = field(default_factory=lambda: deque(maxlen=2 * NEWEST_STEPS))
    """Which way the pace clearly went in the last ten steps; 0: neither."""
    _levels: Levels = field(default_factory=Levels)
    _line: Line = field(default_factory=Line)
    _trial: ControlTrial = field(default_factory=ControlTrial)
    _past: PastForecasts = field(default_factory=PastForecasts)
    _followed: float = 0.0
    """log H, followed from step to step: moved by what the update changed, and by a share of each
    surprise."""
    _urgencies: dict[str, Urgency] = field(
        default_factory=lambda: {kind: Urgency() for kind in tuning.DIRECTIONS}
    )

    def add(
        self,
        step: int,
        entropy: float,
        *,
        observed: float | None = None,
        target: float | None = None,
        is_new_control: bool = False,
        by_control: float | None = None,
        explained: float | None = None,
    ) -> dict[str, int]:
        """Pass the next step.

        Args:
            step: higher than all before.
            entropy: mean over its tokens, in nats, finite.
            observed: change of the entropy of its own tokens by its update, in nats; None: not
                measured.
            target: the entropy that is held, in nats.
            is_new_control: whether this step is the first under another control.
            by_control: part of its predicted change that the active control makes, in nats; None:
                not known.
            explained: share of past changes that these predictions explain, their R²; None: not
                known.

        Returns:
            The kinds that became more urgent with this step, or lost or gained another half: 1
            watch, 2 act.
        """
        entropy = min(entropy, tuning.CEILING)
        z = math.log(max(entropy, tuning.FLOOR))
        passed = 1
        if self.steps:
            passed = step - self.step
        self.early.add(entropy)
        self.step, self.steps, self.age = step, self.steps + 1, self.age + passed
        self._past.compare(step, z, self._fading, self._most)
        if is_new_control:
            self._trial.begin(self._going_on, self.level)
            self._past.forget()
        self._trial.add(by_control, explained, self._levels)
        self._levels.add_raw(z)
        self._follow(z, passed)
        # One odd step is no course.
        smooth = median([*self._levels.newest][-3:])
        self._line.add(smooth, z, passed, memory_at(self.age), is_new=is_new_control)
        pace = self.pace
        self.directions.append(0 if pace is None else pace.direction)
        moved = None
        if observed is not None:
            moved = bound_nats(observed) / max(entropy, tuning.FLOOR)
        self._levels.add_level(moved)
        is_due = self.steps >= tuning.LEAST_FORECAST and self.steps % tuning.ORIGIN_EVERY == 0
        if target is None and is_due:
            self._past.remember(step, self.level, self._projection())
        return self._judge(target)

    def _judge(self, target: float | None) -> dict[str, int]:
        """The kinds that are news, with their urgency."""
        early = self.early.level
        if early is None or early <= 0:
            return {}
        # A held entropy is meant to go to its target: only what lies beyond that is a collapse, or
        # an explosion.
        bases = [early]
        if target is not None:
            bases.append(target)
        ahead = self._projection().level_in(tuning.AHEAD) - self.level
        evidence = Evidence(self._levels, self._line, self._fading, self._past, ahead)
        raised = {
            "collapse": self._urgencies["collapse"].judge(-1, min(bases), evidence),
            "explosion": self._urgencies["explosion"].judge(1, max(bases), evidence),
        }
        return {kind: urgency for kind, urgency in raised.items() if urgency}

    @property
    def level(self) -> float:
        """log H now: the median of the last five steps."""
        return self._levels.level

    @property
    def entropy(self) -> float:
        """The level in nats."""
        return self._levels.entropy

    @property
    def rate(self) -> float:
        """Slope of the line through log H, per step, shrunk towards 0 the less certain it is."""
        return self._line.rate

    @property
    def rate_error(self) -> float:
        """Standard error of the rate."""
        return self._line.rate_error

    @property
    def pace(self) -> Estimate | None:
        """Slope of log H per step, with a 90 % interval; None for fewer than five steps."""
        if self.steps < tuning.LEAST_POINTS:
            return None
        margin = tuning.NORMAL_95 * self.rate_error
        return Estimate(value=self.rate, low=self.rate - margin, high=self.rate + margin)

    @property
    def share_lost(self) -> float | None:
        """Share of the early level that is lost; below 0 where the entropy rose, None unless the
        level is known and above 0."""
        early = self.early.level
        if early is None or early <= 0 or not self._levels.newest:
            return None
        return 1 - self.entropy / early

    @property
    def own_share(self) -> float:
        """Over the last fifty steps; see `levels.own_share`."""
        return self._levels.own_share

    @property
    def levels(self) -> list[float]:
        """log H of the last five steps, each the median of five."""
        return self._levels.last

    @property
    def level_error(self) -> float:
        """Standard error of such a median, see `Levels.error`."""
        return self._levels.error

    @property
    def speeds_up(self) -> bool:
        """See `Levels.speeds_up`."""
        return self._levels.speeds_up

    def shares(self, steps: int) -> list[float]:
        """The entropy now by that of each of the last steps, at most AHEAD."""
        return self._levels.shares(steps)

    @property
    def urgency(self) -> int:
        """0: nothing, 1: watch, 2: act, while the forecast goes on."""
        return max(urgency.shown for urgency in self._urgencies.values())

    @property
    def score(self) -> ForecastScore | None:
        """How far the run's earlier forecasts were off; see `PastForecasts.score`."""
        return self._past.score

    def forecast(
        self, change: float = 0.0, error: float = 0.0, *, is_kept: bool = False
    ) -> EntropyForecast | None:
        """The next steps.

        Args:
            change: what a control adds to a step at first, in nats; that fades.
            error: its standard error.
            is_kept: it does not fade, for the control is moved so that it goes on.

        Returns:
            None before the tenth step.
        """
        if self.steps < tuning.LEAST_FORECAST:
            return None
        projection = self._projection()
        widths = self._past.own_widths(self._levels.noise(), projection)
        forecast = EntropyForecast(step=[], entropy=[], low=[], high=[])
        for steps, width in enumerate(widths, 1):
            added = steps if is_kept else effect_in(steps, self.age)
            middle = projection.entropy_in(steps, added * change)
            by_control = tuning.NORMAL_95 * error * added
            low = middle - math.hypot(middle * (1 - math.exp(-width)), by_control)
            forecast.step.append(self.step + steps)
            forecast.entropy.append(middle)
            forecast.low.append(max(low, 0.0))
            high = middle + math.hypot(middle * (math.exp(width) - 1), by_control)
            forecast.high.append(min(high, max(self.largest, middle)))
        return forecast

    def ahead(self, steps: int, change: float = 0.0) -> float:
        """The entropy after so many steps, in nats; `change` is what a control adds to a step at
        first."""
        return self._projection().entropy_in(steps, effect_in(steps, self.age) * change)

    def mean_pace(self, steps: int, change: float = 0.0, error: float = 0.0) -> Estimate | None:
        """Forecast mean change of the entropy over the next steps, in nats a step, with a 90 %
        interval; see `forecast`."""
        if self.steps < tuning.LEAST_POINTS:
            return None
        projection = self._projection()
        added = effect_in(steps, self.age)
        then = projection.entropy_in(steps, added * change)
        value = (then - math.exp(projection.start)) / steps
        by_rate = self.entropy * projection.fading.gone_in(steps, -self.rate_error)
        margin = tuning.NORMAL_95 * math.hypot(by_rate, added * error) / steps
        highest = (max(self.largest, then) - math.exp(projection.start)) / steps
        return Estimate(value=value, low=value - margin, high=min(value + margin, highest))

    def steps_until(self, share: float) -> float | None:
        """Steps until this share of the entropy, at most 1, is left by the forecast; None where it
        never comes to that."""
        return self._projection().steps_until(share, self.level)

    def gone_in(self, steps: int, rate: float | None = None) -> float:
        """How far log H goes in so many steps at a pace that fades; by default at the one that a
        forecast goes on at."""
        return self._fading.gone_in(steps, self._going_on if rate is None else rate)

    def _projection(self) -> Projection:
        return Projection(
            start=self._start, rate=self._going_on, fading=self._fading, most=self._most
        )

    @property
    def _most(self) -> float:
        """The largest log H that is forecast; what was measured is possible."""
        return max(math.log(self.largest), self.level)

    @property
    def _fading(self) -> Fading:
        lift = max(self._trial.by_control, 0.0) / math.exp(self.level)
        return Fading(lift=lift, memory=memory_at(self.age))

    @property
    def _start(self) -> float:
        """log H where a forecast begins.

        What an update changed is measured more exactly than the mean of a step's tokens, but one
        odd change must not carry it away: no further from the last steps and the line's end than
        the median of five scatters. Where it is not measured: between the two, each of which is off
        in its own way.
        """
        moved, end = self._levels.moved, self._line.end
        if not moved or moved[-1][1] is None:
            return (self.level + end) / 2
        error = self._line.scatter * math.sqrt(math.pi / 2 / NEWEST_STEPS)
        lowest, highest = min(self.level, end) - error, max(self.level, end) + error
        return min(max(self._followed, lowest), highest)

    @property
    def _going_on(self) -> float:
        """The pace that a forecast goes on at: half that of the line, half what updates changed,
        which has less noise.

        What a control adds is measured long before the course shows it, see `ControlTrial`."""
        rate = self.rate
        newest = [*self._levels.moved][-(self._trial.steps or tuning.AHEAD) :]
        known = [moved for _, moved in newest if moved is not None]
        if len(known) >= tuning.LEAST_POINTS:
            rate = (rate + self.own_share * fmean(known)) / 2
        return self._trial.blend(rate, self.level)

    def _follow(self, z: float, passed: int) -> None:
        """Move the followed level to the next step, whose log H is z."""
        moved = self._levels.moved
        known = None
        if moved and passed == 1:
            known = moved[-1][1]
        if known is None:
            change = self.rate * passed
        else:
            change = self.own_share * known
        expected = self._followed + change
        largest = 3 * self._line.scatter  # one odd step is no course
        surprise = min(max(z - expected, -largest), largest)
        self._followed = expected + max(tuning.SURPRISE, 1 / self.steps) * surprise
