"""Where a run's entropy goes: along the line, at a pace that fades (Gardner and McKenzie's damped
trend), with a band as wide as this run's own forecasts were wrong."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from statistics import fmean

from isentrope_wire.control_answers import ForecastScore
from isentrope_wire.diagnosis.course import tuning
from isentrope_wire.diagnosis.course.levels import Levels, bound_nats
from isentrope_wire.diagnosis.course.line import memory_at


@dataclass(frozen=True, slots=True)
class Fading:
    """How a pace fades."""

    lift: float
    """Pace of log H that the active control adds upwards; 0 where it adds none."""
    memory: float
    """Memory of the line, in steps."""

    def gone_in(self, steps: int, rate: float) -> float:
        """How far log H goes in so many steps at this pace."""
        # A rise that a control makes lasts as long as a fall does.
        by_control = min(self.lift, max(rate, 0.0))
        own = rate - by_control
        lasts = tuning.RISE_LASTS
        if own < 0:
            lasts = tuning.PACE_LASTS
        lifted = by_control * sum_fading(steps, self.memory * tuning.PACE_LASTS)
        return lifted + own * sum_fading(steps, self.memory * lasts)


@dataclass(frozen=True, slots=True)
class Projection:
    """What a forecast is made of at one moment."""

    start: float
    """log H where it begins."""
    rate: float
    """The pace of log H that it goes on at."""
    fading: Fading
    most: float = math.log(tuning.CEILING)
    """The largest log H that is forecast."""

    def gone_in(self, steps: int) -> float:
        """How far log H goes in so many steps."""
        return self.fading.gone_in(steps, self.rate)

    def level_in(self, steps: int) -> float:
        """log H after so many steps."""
        level = self.start + self.gone_in(steps)
        return max(min(level, self.most), math.log(tuning.FLOOR))

    def entropy_in(self, steps: int, added: float) -> float:
        """The entropy after so many steps, in nats, with so much added in all."""
        # An entropy moves by shares of itself: where it falls, less is added to it, too. Beyond a
        # factor of e nothing was measured: there it goes on in nats.
        now = math.exp(self.start)
        share = added / now
        if share < 1:
            grown = math.exp(share)
        else:
            grown = math.e * share
        unbounded = now * math.exp(min(self.gone_in(steps), self.most - self.start)) * grown
        return max(min(unbounded, math.exp(self.most)), tuning.FLOOR)

    def steps_until(self, share: float, level: float) -> float | None:
        """Steps until this share of the entropy at a level is left; None where it never comes to
        that."""
        lasts = tuning.RISE_LASTS
        if self.rate < 0:
            lasts = tuning.PACE_LASTS
        last = math.exp(-1 / (self.fading.memory * lasts))
        gone = min(math.log(share) + level - self.start, 0.0)
        rest = 0.0
        if self.rate:
            rest = 1 - gone * (1 - last) / (self.rate * last)
        if 0 < rest <= 1:
            return math.log(rest) / math.log(last)
        return None


@dataclass(slots=True)
class ControlTrial:
    """What is expected of the active control, before its course shows what it does."""

    steps: int | None = None
    """Steps since another control was applied; None: none was."""
    by_control: float = 0.0
    """Mean of what the active control added to each of its last steps, in nats; 0 where it is not
    known."""
    _added: deque[float] = field(default_factory=lambda: deque(maxlen=tuning.ADDED_STEPS))
    _without: float = 0.0
    """Pace of log H that would go on without the active control, as known when it was applied."""
    _explained: float = 0.0
    """R² of the predictions that `_added` is made of."""

    def begin(self, going_on: float, level: float) -> None:
        """Another control is applied; the entropy went on at this pace until then."""
        self._without = going_on - self.by_control / math.exp(level)
        self._added.clear()
        self.by_control = 0.0
        self.steps = 0

    def add(self, by_control: float | None, explained: float | None, levels: Levels) -> None:
        """Add one step; see `Course.add`."""
        if self.steps is not None:
            self.steps += 1
        self._explained = min(max(explained or 0.0, 0.0), 1.0)
        if by_control is not None:
            self._added.append(levels.own_share * bound_nats(by_control))
            self.by_control = fmean(self._added)

    def blend(self, rate: float, level: float) -> float:
        """The pace to go on at: that of the course, and what is expected, as far as such
        predictions explain what comes."""
        if self.steps is None:
            return rate
        expected = 0.0
        if self._added:
            expected = self._without + self.by_control / math.exp(level)
        weighted = self.steps * rate + tuning.TRIAL * self._explained * expected
        return weighted / (self.steps + tuning.TRIAL)


@dataclass(slots=True)
class _Origin:
    """A forecast that is compared with what came."""

    step: int
    start: float
    level: float
    rate: float
    place: int = 0
    """Index of the next horizon."""


@dataclass(slots=True)
class PastForecasts:
    """How far the run's own forecasts were off."""

    _origins: deque[_Origin] = field(default_factory=deque)
    _errors: list[deque[float]] = field(
        default_factory=lambda: [deque(maxlen=tuning.OWN_ERRORS) for _ in tuning.HORIZONS]
    )
    _scored: list[tuple[int, float, float]] = field(
        default_factory=lambda: [(0, 0.0, 0.0) for _ in tuning.HORIZONS]
    )
    """For each horizon: number of forecasts, sum of their errors and of those of "nothing changes",
    in nats."""

    def remember(self, step: int, level: float, projection: Projection) -> None:
        """Keep a forecast that is made at this step."""
        self._origins.append(_Origin(step, projection.start, level, projection.rate))

    def forget(self) -> None:
        """Drop what was forecast under another control."""
        self._origins.clear()

    def compare(self, step: int, z: float, fading: Fading, most: float) -> None:
        """Compare earlier forecasts, none above `most`, with log H of the step that they were
        about."""
        for origin in self._origins:
            while (
                origin.place < len(tuning.HORIZONS)
                and step >= origin.step + tuning.HORIZONS[origin.place]
            ):
                horizon = tuning.HORIZONS[origin.place]
                expected = origin.start + fading.gone_in(horizon, origin.rate)
                expected = min(expected, most)
                self._errors[origin.place].append(abs(z - expected))
                count, errors, unchanged = self._scored[origin.place]
                came = math.exp(z)
                self._scored[origin.place] = (
                    count + 1,
                    errors + abs(came - math.exp(expected)),
                    unchanged + abs(came - math.exp(origin.level)),
                )
                origin.place += 1
        while self._origins and self._origins[0].place == len(tuning.HORIZONS):
            self._origins.popleft()

    @property
    def score(self) -> ForecastScore | None:
        """At the furthest horizon that some forecast has reached, 20 steps at least."""
        for horizon, (count, errors, unchanged) in reversed(
            [*zip(tuning.HORIZONS, self._scored, strict=True)]
        ):
            if count and horizon >= tuning.HORIZONS[2]:
                return ForecastScore(
                    horizon=horizon,
                    forecasts=count,
                    mean_error=errors / count,
                    unchanged_error=unchanged / count,
                )
        return None

    def usual_widths(self) -> list[float]:
        """What nine of ten own forecasts were off by at most, in log H, 1 to AHEAD steps ahead.
        Errors of recorded runs count before there are own ones."""
        return self._join(tuning.USUAL_ERRORS)

    def own_widths(self, noise: float, projection: Projection) -> list[float]:
        """Widths from recorded errors, wider by a part of the predicted change, and where this run
        scatters more than recorded ones; in log H."""
        beyond = tuning.NORMAL_95 * math.sqrt(max(noise**2 - tuning.USUAL_NOISE**2, 0.0))
        widened = [
            math.hypot(usual, beyond, tuning.OFF_OF_MOVED * projection.gone_in(horizon))
            for horizon, usual in zip(tuning.HORIZONS, tuning.USUAL_ERRORS, strict=True)
        ]
        return self._join(widened)

    def _join(self, usual_errors: Sequence[float]) -> list[float]:
        """Width at each step, from own errors and from usual ones at the horizons."""
        widths = list[float]()
        for own, usual in zip(self._errors, usual_errors, strict=True):
            errors = sorted([*own, *(usual * part for part in tuning.USUAL)])
            width = errors[math.ceil(0.9 * (len(errors) + 1)) - 1]
            widths.append(min(width, math.log(tuning.CEILING)))
        rising, joined = [*accumulate(widths, max)], list[float]()
        for (left, right), (low, high) in zip(
            pairwise(tuning.HORIZONS), pairwise(rising), strict=True
        ):
            part = (high - low) / (right - left)
            joined += [low + part * (steps - left) for steps in range(left, right)]
        return [*joined, rising[-1]]


def effect_in(steps: int, age: int) -> float:
    """How many steps' worth of its effect a control has after so many; the run was so old when it
    was applied."""
    return sum_fading(steps, memory_at(age) * tuning.EFFECT_LASTS)


def sum_fading(steps: int, lasts: float) -> float:
    """Sum of what is left of a pace in each of the steps, after so many 1 / e."""
    kept = math.exp(-1 / lasts)
    return kept * (1 - kept**steps) / (1 - kept)
