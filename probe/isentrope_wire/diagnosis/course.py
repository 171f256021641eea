"""The course of a run's entropy: its pace, where it is going, and how urgent that is.

Entropy moves by shares of itself, so the course is that of log H. A line is fitted to it with
weights that fade over a quarter of the run's age; the forecast goes on along this line at a pace
that fades (Gardner and McKenzie's damped trend). Its band is as wide as this run's own forecasts
were wrong at that distance, and before there are any, as those of recorded runs were. A step costs
the same however long the run is, so the alerts, raised where a run is measured, and the diagnosis,
made of the stored steps, share this one class. No threshold is in nats or steps: a run is compared
with its own early level, its own noise and its own age."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from statistics import NormalDist, fmean, median

from isentrope_wire.control_answers import EntropyForecast, Estimate, ForecastScore
from isentrope_wire.metrics import EARLY_STEPS, NEWEST_STEPS, EarlyLevel

STEPS_READ = 500
"""Stored steps that a course is made of: what lies further back has no weight left."""

AHEAD = 50
"""Steps that a forecast reaches."""

WATCH_LEFT, ACT_LEFT = 0.75, 0.5
"""Shares of the early entropy: with so much left a collapse is to be watched, and to be acted on.
An explosion is judged at their reciprocals, 1 / 0.75 and 1 / 0.5."""

OVER_LEFT, BACK_LEFT = 0.875, 0.625
"""With more than this left there is nothing to watch any more, and nothing to act on. A held
entropy is near a target it is as close to as OVER_LEFT."""

DIRECTIONS = {"collapse": -1, "explosion": 1}
"""The kinds of alerts about the entropy's course, and where it goes."""

MOVES = -math.log(0.9)
"""A course that changes the entropy by less than a tenth over the forecast is level."""

LEAST_POINTS = 5
"""Steps that a pace needs."""

_LEAST_FORECAST = 10
"""Steps that a forecast needs."""
_PACE_LASTS, _RISE_LASTS, _EFFECT_LASTS = 2.0, 0.4, 3.0
"""The memories after which a pace has faded to 1 / e: what lasted long goes on for long, rises end
sooner, and what a control adds later. Fixed on recorded runs, as the usual errors are."""
_LEAST_MEMORY, _PART_OF_AGE, _LONGEST_MEMORY = 12.0, 8.0, 60.0
"""Steps after which a step's weight is 1 / e: an eighth of the age, within these bounds."""
_KEPT_OF_WEIGHTS, _TRIAL, _ADDED_STEPS = 0.05, 20, 10
"""What is kept of the weights when another control is applied; steps under it after which its pace
counts half in a forecast, the rest is what is expected of it; steps whose mean is what it
adds."""
_TRACKED, _TURNED, _KEPT_OF_A_TURN = 0.15, 1.0, 0.6
"""Weight of the newest step in the mean error of the line about the next one; how large that is, in
standard deviations of a step, where the course has turned (noise alone reaches a third of it); what
is then kept of the weights."""
_SURPRISE = 0.2
"""Share of a step's surprise that `_followed` takes on: one step's mean is mostly noise."""
_HORIZONS = (1, 10, 20, 50)
_USUAL_ERRORS = (0.12, 0.15, 0.20, 0.26)
"""What nine of ten forecasts of recorded runs were off by at most at these horizons, in log H."""
_USUAL_NOISE = 0.04
"""Standard deviation of their steps, in log H."""
_OFF_OF_MOVED = 1.1
"""Share of the way to a forecast that nine of ten were off by at most, where runs move faster than
recorded ones."""
_USUAL = [NormalDist().inv_cdf(0.5 + (place + 0.5) / 20) / 1.6449 for place in range(10)]
"""They count as ten errors, spread as a normal variable's are."""
_OWN_ERRORS, _ORIGIN_EVERY = 30, 5
NORMAL_95 = 1.6449
"""A normal variable lies below it with a probability of 95 %: the ends of a 90 % interval."""
_NOISES = 4.0
"""How many standard errors the change of log H must be away from 0."""
_SURE = 1.6
"""Times the band: where even its near end is past half, half is expected to go."""
_IN_A_ROW, _CALM = 8, 20
"""Steps for which half must be expected to go before that is acted on, and for which the course
must be level after it."""
_USUAL_OWN, _OWN_PRIOR, _LEAST_OWN = 0.75, 0.3, 0.3
"""Change of the entropy per change on own tokens: its prior, from recorded runs; the change of log
H that the prior weighs as much as; its lowest value, whose reciprocal is the highest. On a real
language model it was 1.8."""
_UNEXPLAINED = 0.25
"""Where the updates changed their own tokens' entropy by less than this share of a fall, the
prompts changed."""
_FLOOR, _CEILING = 1e-6, 1e6
"""In nats; an entropy, or a change of one, beyond counts as this one: the log of 0 is no number,
nor the exponential of a large one."""


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
class _Urgency:
    """How urgent a collapse, or an explosion, is: 0 not, 1 watch, 2 act."""

    now: int = 0
    expected: int = 0
    """Steps in a row in which half was expected to go."""
    calm: int = 0
    """Steps in a row in which the course was level."""
    halvings: int = 0
    """Halvings of the base entropy at the time of the last alert."""


@dataclass(slots=True)
class Course:
    """The course of a run's entropy; call `add` with each step that measured it, in order."""

    age: int = 0
    """Steps that the run had before the first one that is added."""
    early: EarlyLevel = field(default_factory=EarlyLevel)
    step: int = 0
    """The newest."""
    rate: float = 0.0
    """Slope of the line through log H, per step, shrunk towards 0 the less certain it is."""
    rate_error: float = math.inf
    """Its standard error."""
    steps: int = 0
    """That were added."""
    level: float = 0.0
    """log H now: the median of the last five steps."""
    newest: deque[float] = field(default_factory=lambda: deque(maxlen=NEWEST_STEPS))
    """log H of the last five steps."""
    directions: deque[int] = field(default_factory=lambda: deque(maxlen=2 * NEWEST_STEPS))
    """Which way the pace clearly went in the last ten steps; 0: neither."""
    _under_control: int | None = None
    """Steps since another control was applied; None: none was."""
    _added: deque[float] = field(default_factory=lambda: deque(maxlen=_ADDED_STEPS))
    """What the active control added to each of its last steps, in nats."""
    _by_control: float = 0.0
    """Their mean; 0 where it is not known."""
    _without: float = 0.0
    """Pace of log H that would go on without the active control, as known when it was applied."""
    _explained: float = 0.0
    """R² of the predictions that `_added` is made of."""
    _raw: deque[float] = field(default_factory=lambda: deque(maxlen=4 * NEWEST_STEPS))
    """The same of the last twenty."""
    _followed: float = 0.0
    """log H, followed from step to step: moved by what the update changed, and by a share of each
    surprise."""
    _w: float = 0.0
    _wt: float = 0.0
    _wz: float = 0.0
    _wtt: float = 0.0
    _wtz: float = 0.0
    _ww: float = 0.0
    """Sums over the steps of their weights and of the squares of these, t counted back from the
    newest step, z = log H."""
    _intercept: float = 0.0
    _rests: float = 0.0
    _odds: float = 0.0
    _neighbours: float = 0.0
    _counted: float = 0.0
    _last_rest: float = 0.0
    """What the line leaves over: sums of squares, of products of neighbours, of weights; the
    newest."""
    _off: float = 0.0
    """Mean error of the line about the next step."""
    _scatter: float = math.inf
    """Standard deviation of a step about the line, in log H."""
    _origins: deque[_Origin] = field(default_factory=deque)
    _errors: list[deque[float]] = field(
        default_factory=lambda: [deque(maxlen=_OWN_ERRORS) for _ in _HORIZONS]
    )
    _scored: list[tuple[int, float, float]] = field(
        default_factory=lambda: [(0, 0.0, 0.0) for _ in _HORIZONS]
    )
    """For each horizon: number of forecasts, sum of their errors and of those of "nothing changes",
    in nats."""
    _moved: deque[tuple[float, float | None]] = field(default_factory=lambda: deque(maxlen=AHEAD))
    """log H of the last steps, and what their updates changed of it on their own tokens."""
    _urgencies: dict[str, _Urgency] = field(
        default_factory=lambda: {kind: _Urgency() for kind in DIRECTIONS}
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
        entropy = min(entropy, _CEILING)
        z, passed = math.log(max(entropy, _FLOOR)), step - self.step if self.steps else 1
        self.early.add(entropy)
        self.step, self.steps, self.age = step, self.steps + 1, self.age + passed
        self._compare(z)
        if is_new_control:
            self._without = self._going_on - self._by_control / math.exp(self.level)
            self._origins.clear()
            self._added.clear()
            self._by_control = 0.0
            self._under_control = 0
        if self._under_control is not None:
            self._under_control += 1
        self._explained = min(max(explained or 0.0, 0.0), 1.0)
        if by_control is not None:
            self._added.append(self.own_share * _bounded(by_control))
            self._by_control = fmean(self._added)
        self.newest.append(z)
        self.level = median(self.newest)
        self._raw.append(z)
        self._follow(z, passed)
        # One odd step is no course.
        self._fit(median([*self.newest][-3:]), passed, _KEPT_OF_WEIGHTS if is_new_control else 1.0)
        pace = self.pace
        self.directions.append(0 if pace is None else pace.direction)
        self._moved.append(
            (self.level, None if observed is None else _bounded(observed) / max(entropy, _FLOOR))
        )
        if target is None and self.steps >= _LEAST_FORECAST and self.steps % _ORIGIN_EVERY == 0:
            self._origins.append(_Origin(step, self._start, self.level, self._going_on))
        early = self.early.level
        if early is None or early <= 0:
            return {}
        bases = [early] if target is None else [early, target]
        # A held entropy is meant to go to its target: only what lies beyond that is a collapse, or
        # an explosion.
        raised = {
            kind: self._judge(kind, min(bases) if way < 0 else max(bases))
            for kind, way in DIRECTIONS.items()
        }
        return {kind: urgency for kind, urgency in raised.items() if urgency}

    @property
    def entropy(self) -> float:
        """The same in nats."""
        return math.exp(self.level)

    @property
    def pace(self) -> Estimate | None:
        """Slope of log H per step, with a 90 % interval; None for fewer than five steps."""
        if self.steps < LEAST_POINTS:
            return None
        margin = NORMAL_95 * self.rate_error
        return Estimate(value=self.rate, low=self.rate - margin, high=self.rate + margin)

    @property
    def share_lost(self) -> float | None:
        """Share of the early level that is lost; below 0 where the entropy rose, None unless the
        level is known and above 0."""
        early = self.early.level
        return None if early is None or early <= 0 or not self.newest else 1 - self.entropy / early

    @property
    def own_share(self) -> float:
        """Over the last fifty steps; see `own_share`."""
        return own_share(self._moved)

    def shares(self, steps: int) -> list[float]:
        """The entropy now by that of each of the last steps, at most AHEAD."""
        levels = [level for level, _ in self._moved][-steps:]
        return [
            math.exp(self.level - level) for level in levels[:1] * (steps - len(levels)) + levels
        ]

    @property
    def _moved_by_updates(self) -> float:
        """How far the updates of the last fifty steps moved log H."""
        return self.own_share * sum(moved for _, moved in self._moved if moved is not None)

    @property
    def levels(self) -> list[float]:
        """log H of the last five steps, each the median of five."""
        return [level for level, _ in self._moved][-NEWEST_STEPS:]

    @property
    def level_error(self) -> float:
        """Standard error of such a median, from the run's own scatter; 0 while that is not
        known."""
        noise = self._noise()
        return noise * math.sqrt(math.pi / 2 / NEWEST_STEPS) if math.isfinite(noise) else 0.0

    @property
    def speeds_up(self) -> bool:
        """Whether the last ten steps clearly went further than the ten before, the same way, and so
        far that a quarter is gone, or added, at the end of the forecast at this pace."""
        levels = [level for level, _ in self._moved]
        if len(levels) <= 4 * NEWEST_STEPS:
            return False
        newest = levels[-1] - levels[-1 - 2 * NEWEST_STEPS]
        before = levels[-1 - 2 * NEWEST_STEPS] - levels[-1 - 4 * NEWEST_STEPS]
        # Of the difference of three medians of five.
        error = self._noise() * math.sqrt(math.pi / 2 * 6 / NEWEST_STEPS)
        is_faster = newest * before > 0 and abs(newest) - abs(before) > _NOISES * error
        return is_faster and abs(newest) * AHEAD / (2 * NEWEST_STEPS) > -math.log(WATCH_LEFT)

    @property
    def urgency(self) -> int:
        """0: nothing, 1: watch, 2: act."""
        return max(urgency.now for urgency in self._urgencies.values())

    @property
    def score(self) -> ForecastScore | None:
        """At the furthest horizon that some forecast has reached, 20 steps at least."""
        for horizon, (count, errors, unchanged) in reversed(
            [*zip(_HORIZONS, self._scored, strict=True)]
        ):
            if count and horizon >= _HORIZONS[2]:
                return ForecastScore(
                    horizon=horizon,
                    forecasts=count,
                    mean_error=errors / count,
                    unchanged_error=unchanged / count,
                )
        return None

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
        if self.steps < _LEAST_FORECAST:
            return None
        found = EntropyForecast(step=[], entropy=[], low=[], high=[])
        for steps, width in enumerate(self._widths(is_own=True), 1):
            added = self._effect_in(steps, is_kept)
            middle, by_control = self._add_change(steps, added * change), NORMAL_95 * error * added
            found.step.append(self.step + steps)
            found.entropy.append(middle)
            found.low.append(
                max(middle - math.hypot(middle * (1 - math.exp(-width)), by_control), 0.0)
            )
            found.high.append(middle + math.hypot(middle * (math.exp(width) - 1), by_control))
        return found

    def ahead(self, steps: int, change: float = 0.0) -> float:
        """The entropy after so many steps, in nats; `change` is what a control adds to a step at
        first."""
        return self._add_change(steps, self._effect_in(steps) * change)

    def _add_change(self, steps: int, added: float) -> float:
        """The same with so much added in all."""
        # An entropy moves by shares of itself: where it falls, less is added to it, too. Beyond a
        # factor of e nothing was measured: there it goes on in nats.
        now = math.exp(self._start)
        share = added / now
        grown = math.exp(share) if share < 1 else math.e * share
        most = math.log(_CEILING) - self._start
        return max(now * math.exp(min(self.gone_in(steps), most)) * grown, _FLOOR)

    def mean_pace(self, steps: int, change: float = 0.0, error: float = 0.0) -> Estimate | None:
        """Forecast mean change of the entropy over the next steps, in nats a step, with a 90 %
        interval; see `forecast`."""
        if self.steps < LEAST_POINTS:
            return None
        added = self._effect_in(steps)
        value = (self._add_change(steps, added * change) - math.exp(self._start)) / steps
        margin = (
            NORMAL_95
            * math.hypot(self.entropy * self.gone_in(steps, -self.rate_error), added * error)
            / steps
        )
        return Estimate(value=value, low=value - margin, high=value + margin)

    def steps_until(self, share: float) -> float | None:
        """Steps until this share of the entropy, at most 1, is left by the forecast; None where it
        never comes to that."""
        rate = self._going_on
        last = math.exp(-1 / (self._memory * (_PACE_LASTS if rate < 0 else _RISE_LASTS)))
        gone = min(math.log(share) + self.level - self._start, 0.0)
        rest = 1 - gone * (1 - last) / (rate * last) if rate else 0.0
        return math.log(rest) / math.log(last) if 0 < rest <= 1 else None

    def gone_in(self, steps: int, rate: float | None = None) -> float:
        """How far log H goes in so many steps at a pace that fades; by default at the one that a
        forecast goes on at."""
        rate = self._going_on if rate is None else rate
        # A rise that a control makes lasts as long as a fall does.
        by_control = min(max(self._by_control, 0.0) / math.exp(self.level), max(rate, 0.0))
        own = rate - by_control
        return by_control * self._fading(steps, _PACE_LASTS) + own * self._fading(
            steps, _PACE_LASTS if own < 0 else _RISE_LASTS
        )

    def _effect_in(self, steps: int, is_kept: bool = False) -> float:
        return steps if is_kept else effect_in(steps, self.age)

    def _fading(self, steps: int, lasts: float) -> float:
        return _faded(steps, self._memory * lasts)

    @property
    def _start(self) -> float:
        """log H where a forecast begins.

        What an update changed is measured more exactly than the mean of a step's tokens, but one
        odd change must not carry it
        away: no further from the last steps and the line's end than the median of five scatters.
        Where it is not measured: between the two, each of which is off in its own way.
        """
        if not self._moved or self._moved[-1][1] is None:
            return (self.level + self._intercept) / 2
        error = self._scatter * math.sqrt(math.pi / 2 / NEWEST_STEPS)
        return min(
            max(self._followed, min(self.level, self._intercept) - error),
            max(self.level, self._intercept) + error,
        )

    @property
    def _going_on(self) -> float:
        """The pace that a forecast goes on at: half that of the line, half what updates changed,
        which has less noise.

        What a control adds is measured long before the course shows it; as far as such predictions
        explain what comes."""
        steps, rate = self._under_control, self.rate
        known = [moved for _, moved in [*self._moved][-(steps or AHEAD) :] if moved is not None]
        if len(known) >= LEAST_POINTS:
            rate = (rate + self.own_share * fmean(known)) / 2
        if steps is None:
            return rate
        expected = self._without + self._by_control / math.exp(self.level) if self._added else 0.0
        return (steps * rate + _TRIAL * self._explained * expected) / (steps + _TRIAL)

    @property
    def _memory(self) -> float:
        return _memory(self.age)

    def _follow(self, z: float, passed: int) -> None:
        known = self._moved[-1][1] if self._moved and passed == 1 else None
        expected = self._followed + (
            self.rate * passed if known is None else self.own_share * known
        )
        largest = 3 * self._scatter  # one odd step is no course
        surprise = min(max(z - expected, -largest), largest)
        self._followed = expected + max(_SURPRISE, 1 / self.steps) * surprise

    def _compare(self, z: float) -> None:
        """Compare earlier forecasts with the step that they were about."""
        for origin in self._origins:
            while (
                origin.place < len(_HORIZONS) and self.step >= origin.step + _HORIZONS[origin.place]
            ):
                expected = origin.start + self.gone_in(_HORIZONS[origin.place], origin.rate)
                expected = min(expected, math.log(_CEILING))
                self._errors[origin.place].append(abs(z - expected))
                count, errors, unchanged = self._scored[origin.place]
                came = math.exp(z)
                self._scored[origin.place] = (
                    count + 1,
                    errors + abs(came - math.exp(expected)),
                    unchanged + abs(came - math.exp(origin.level)),
                )
                origin.place += 1
        while self._origins and self._origins[0].place == len(_HORIZONS):
            self._origins.popleft()

    def _widths(self, *, is_own: bool = False) -> list[float]:
        """What nine of ten own forecasts were off by at most, in log H, 1 to AHEAD steps ahead.

        Those of recorded runs count before there are own ones; `is_own` adds what this run scatters
        more, and a part of what it moves.
        """
        widths = list[float]()
        noise = self._noise() if is_own else 0.0
        for horizon, own, usual in zip(_HORIZONS, self._errors, _USUAL_ERRORS, strict=True):
            moved = _OFF_OF_MOVED * self.gone_in(horizon) if is_own else 0.0
            widened = math.hypot(
                usual, NORMAL_95 * math.sqrt(max(noise**2 - _USUAL_NOISE**2, 0.0)), moved
            )
            errors = sorted([*own, *(widened * one for one in _USUAL)])
            width = errors[math.ceil(0.9 * (len(errors) + 1)) - 1]
            widths.append(min(width, math.log(_CEILING)))
        widths, found = [*accumulate(widths, max)], []
        for (left, right), (low, high) in zip(pairwise(_HORIZONS), pairwise(widths), strict=True):
            part = (high - low) / (right - left)
            found += [low + part * (steps - left) for steps in range(left, right)]
        return [*found, widths[-1]]

    def _fit(self, z: float, passed: int, kept: float) -> None:
        """Fit the line again, with one more step."""
        if self.steps > LEAST_POINTS:
            off = z - self._intercept - self.rate * passed
            self._off += _TRACKED * (off - self._off)
            if abs(self._off) > _TURNED * self._scatter:
                kept *= _KEPT_OF_A_TURN
        fade = kept * math.exp(-passed / self._memory)
        w, wt, wz = self._w, self._wt, self._wz
        self._wtt = fade * (self._wtt - 2 * passed * wt + passed * passed * w)
        self._wtz = fade * (self._wtz - passed * wz)
        self._wt, self._wz = fade * (wt - passed * w), fade * wz + z
        self._w, self._ww = fade * w + 1, fade * fade * self._ww + 1
        if self.steps < LEAST_POINTS:
            self._intercept = z
            return
        middle = self._wt / self._w
        spread = self._wtt - self._w * middle * middle
        rate = (self._wtz - middle * self._wz) / spread
        self._intercept = self._wz / self._w - rate * middle
        rest = z - self._intercept
        odd = self.newest[-1] - self._intercept
        self._odds = fade * self._odds + odd * odd
        self._rests, self._counted = fade * self._rests + rest * rest, fade * self._counted + 1
        self._neighbours, self._last_rest = fade * self._neighbours + rest * self._last_rest, rest
        # Neighbouring steps resemble each other, as if there were fewer of them.
        alike = min(max(self._neighbours / self._rests, 0.0), 0.9) if self._rests > 0 else 0.0
        points = self._w * self._w / self._ww
        variance = (
            self._rests / self._counted * points / max(points - 2, 1) * (1 + alike) / (1 - alike)
        )
        self._scatter = math.sqrt(self._odds / self._counted)
        self.rate_error = math.sqrt(variance * self._ww / self._w / spread)
        # A pace that noise could have made is no pace to go on at.
        self.rate = rate * max(0.0, 1 - (self.rate_error / rate) ** 2) if rate else 0.0

    def _judge(self, kind: str, base: float) -> int:
        """Bring the urgency of a collapse, or an explosion, up to date.

        Args:
            base: the entropy that it is counted from, in nats.

        Returns:
            The urgency where it is news, else 0.
        """
        way, state = DIRECTIONS[kind], self._urgencies[kind]
        before, gone = state.now, way * (self.level - math.log(max(base, _FLOOR)))
        left = math.exp(-gone)
        if before == 0 and left > WATCH_LEFT:
            state.expected = 0
            return 0
        further = way * self._reach(self.rate)
        # What the updates changed of their tokens has less noise than the mean over new ones.
        is_sure = way * self._moved_by_updates >= -math.log(
            WATCH_LEFT
        ) or gone >= _NOISES * self._noise() * math.sqrt(
            math.pi / 2 * (1 / NEWEST_STEPS + 1 / EARLY_STEPS)
        )
        is_expected = (
            left <= WATCH_LEFT
            and further >= MOVES
            and gone + further - _SURE * self._widths()[-1] >= -math.log(ACT_LEFT)
        )
        state.expected = state.expected + 1 if is_expected else 0
        is_level = way * self._reach(self.rate + way * NORMAL_95 * self.rate_error) < MOVES
        is_over = is_level or left > BACK_LEFT if state.now == 2 else left > OVER_LEFT
        state.calm = state.calm + 1 if is_over else 0
        if state.calm >= _CALM:
            state.now, state.calm = int(left <= OVER_LEFT), 0
        elif not is_sure or left > WATCH_LEFT:
            pass
        elif (
            self._moves(way, further)
            and (left <= ACT_LEFT or state.expected >= _IN_A_ROW)
            and self._is_learnt(way)
        ):
            state.now = 2
        else:
            state.now = max(state.now, 1)
        halvings = math.floor(gone / math.log(2) + 1e-9)
        if state.now > before:
            state.halvings = halvings
            return state.now
        if state.now == 2 and halvings > max(state.halvings, 1):
            state.halvings = halvings
            return 2
        return 0

    def _reach(self, rate: float) -> float:
        """How far log H goes over a forecast if a rise lasts as long as a fall: it is as urgent."""
        return math.copysign(self.gone_in(AHEAD, -abs(rate)), rate)

    def _moves(self, way: int, further: float) -> bool:
        """Whether the entropy goes on that way, or just did, faster than a line can follow."""
        recent = list(self._moved)[-2 * NEWEST_STEPS :]
        noise = _NOISES * self._noise() * math.sqrt(math.pi / NEWEST_STEPS)
        return further >= MOVES or way * (recent[-1][0] - recent[0][0]) >= max(2 * MOVES, noise)

    def _noise(self) -> float:
        """Standard deviation of a step's log H, from how three neighbours bend: neither a course
        nor an odd step shows there."""
        z = self._raw
        bends = [abs(z[place] - 2 * z[place + 1] + z[place + 2]) for place in range(len(z) - 2)]
        return 1.4826 / math.sqrt(6) * median(bends) if bends else math.inf

    def _is_learnt(self, way: int) -> bool:
        """Whether the updates account for the change of the last steps, or it is not known; else
        the prompts changed."""
        steps = list(self._moved)
        known = [moved for _, moved in steps[1:] if moved is not None]
        change = way * (steps[-1][0] - steps[0][0])
        return len(known) < len(steps) / 2 or way * sum(known) >= _UNEXPLAINED * change


def _bounded(nats: float) -> float:
    return min(max(nats, -_CEILING), _CEILING)


def own_share(moved: Sequence[tuple[float, float | None]]) -> float:
    """What the entropy moves for each nat that updates move on their own tokens, which are fitted
    to them.

    Of steps with log H and its change on their own tokens (None: not measured), drawn towards what
    it was in recorded runs."""
    own, prior = sum(change for _, change in moved if change is not None), _USUAL_OWN
    if not own:
        return prior
    course = math.copysign(1, own) * (moved[-1][0] - moved[0][0])
    found = (prior * _OWN_PRIOR + course) / (_OWN_PRIOR + abs(own))
    return min(max(found, _LEAST_OWN), 1 / _LEAST_OWN)


def effect_in(steps: int, age: int) -> float:
    """How many steps' worth of its effect a control has after so many; the run was so old when it
    was applied."""
    return _faded(steps, _memory(age) * _EFFECT_LASTS)


def _faded(steps: int, lasts: float) -> float:
    """Sum of what is left of a pace in each of the steps, after so many 1 / e."""
    kept = math.exp(-1 / lasts)
    return kept * (1 - kept**steps) / (1 - kept)


def _memory(age: int) -> float:
    return min(max(_LEAST_MEMORY, age / _PART_OF_AGE), _LONGEST_MEMORY)
