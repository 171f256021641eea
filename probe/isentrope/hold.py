"""Holds the mean entropy at a target by moving the thresholds from step to step. No torch here.

- `Effect`: how much a step's unit prediction changes the entropy, apart from what changes it anyway
- `EntropyEstimator`: the entropy after a step, and the value at which it will come to rest
- `reward_falls`: whether the reward began to fall since a hold acts
- `HoldController`: takes the numbers of reported steps, decides, and sets the control of the step
    that begins

The decision itself is a pure function of what was measured (`isentrope_wire.hold_decision`), which
the page's preview uses too.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from statistics import median
from threading import Lock
from typing import Any, SupportsFloat

from isentrope_wire import hold_decision, metrics
from isentrope_wire.control import Control, Hold, Method
from isentrope_wire.diagnosis.guard import lost_reward
from isentrope_wire.diagnosis.slope import autocorrelation, deviation_of_pairs, slopes_of_pairs
from isentrope_wire.numbers import document_of, read_exactly
from isentrope_wire.reports import ControlSnapshot, StepReport

REWARD_WINDOW = 30
"""Newest rewards since the hold began that are tested; before there are so many there is no
answer."""
LARGEST_FALL_BY_CHANCE = 3.5
"""Standard deviations of Mann and Kendall's statistic: the test is repeated every step."""
LARGEST_AUTOCORRELATION = 0.5
"""Counted with: a steady curve is autocorrelated too, and with more its fall would never be
certain."""
NOISES = 2.0
_ROBUST_DEVIATION = 1.4826
"""Standard deviation of a normal distribution over its median absolute deviation."""


def own_fall(before: Sequence[float]) -> float:
    """The fall of the reward per step before the hold began, oldest first: 0 where it rose, or is
    not known."""
    return max(0.0, -_slope(before[-REWARD_WINDOW:])) if len(before) >= REWARD_WINDOW // 2 else 0.0


def reward_falls(
    own: float, since: Sequence[float], before: Sequence[float] = (), steps: int | None = None
) -> str:
    """Why the hold is to end, in a sentence; empty where it goes on. `own` is `own_fall` when it
    began; `before` has the rewards of the steps before it acted, `steps` how many it has acted for:
    None where `since` has them all.

    It ends where the newest rewards are lower than those before it for certain (`lost_reward`), or
    fall:

    A held entropy can cost reward: far above what the run had, the policy stops learning. The hold
    is to end where the newest rewards fall by Mann and Kendall's statistic, which counts falling
    against rising pairs and knows no scale, widened for rewards that follow their predecessor; and
    the fall turns the run's own trend by more than NOISES times the rewards'
    noise: the median slope of all pairs (Theil and Sen) against that of the rewards before the
    hold."""
    newest = since[-REWARD_WINDOW:]
    if len(newest) < REWARD_WINDOW:
        return ""
    lost = lost_reward(before, since, len(since) if steps is None else steps)
    if lost:
        return _ended(f"the reward is {lost:.3g} lower than before it acted", newest)
    slope = _slope(newest)
    residuals = [value - slope * step for step, value in enumerate(newest)]
    alike = autocorrelation(residuals, at_most=LARGEST_AUTOCORRELATION)
    falling = sum(
        (later < earlier) - (later > earlier) for earlier, later in combinations(newest, 2)
    )
    if falling < LARGEST_FALL_BY_CHANCE * deviation_of_pairs(len(newest), alike):
        return ""
    if (-slope - own) * (REWARD_WINDOW - 1) <= NOISES * _noise(residuals):
        return ""
    fell = -slope * (REWARD_WINDOW - 1)
    return _ended(f"over the last {REWARD_WINDOW} steps the reward fell by {fell:.3g}", newest)


def _ended(why: str, rewards: Sequence[float]) -> str:
    now = median(rewards[-REWARD_WINDOW // 3 :])
    return (
        f"The reward guard ended the hold: {why}, to {now:.3g}. Push a hold again to go on; "
        "reward_guard false switches the guard off."
    )


def _slope(values: Sequence[float]) -> float:
    return median(slopes_of_pairs([*enumerate(values)]))


def _noise(residuals: Sequence[float]) -> float:
    """Standard deviation around the line, robust."""
    centre = median(residuals)
    return _ROBUST_DEVIATION * median(abs(residual - centre) for residual in residuals)


HALF_LIFE = 50.0
"""Steps after which an observation counts half."""

WARM_UP = 3
"""Observations before the first gain."""

PULL = 10.0
"""Weight, in steps, of a prior b = 0: early in a run a drift can't be distinguished from the effect
of the run's own updates, whose averages hardly differ."""

LARGEST_MOMENTUM = 0.99
"""Beyond it the effect of a step lasts for hundreds of steps, and is of no use for steering."""


@dataclass(slots=True)
class Effect:
    """What a step's unit prediction does to the entropy. Feed it one step at a time, in order.

        dH_t = g x_t + b,   x_t = gamma x_(t-1) + (1 - gamma) a_t u_t
        gamma = beta_1^2, a_t: learning rate

    by least squares with weights that halve every HALF_LIFE steps. The calibration's gain
    (`statistics/calibration.py`) has no b and can't be used to steer: a held entropy is constant
    because g x makes up for b, a line through the origin reads that as a gain near 0, and a
    controller that trusts half the gain corrects twice as much, until the entropy oscillates.

    gamma is smaller than the optimiser's beta_1 because an update older than a few steps changes
    the entropy of today's tokens less than momentum predicts.
    """

    _average: float = 0.0
    _average_weight: float = 0.0
    _observations: int = 0
    _weight: float = 0.0
    _x: float = 0.0
    _y: float = 0.0
    _xx: float = 0.0
    _xy: float = 0.0

    def regressor(self, scaled_prediction: float, momentum: float) -> float:
        """x of the step, in nats of unit prediction times the learning rate; call it once a
        step."""
        memory = self.memory(momentum)
        self._average = memory * self._average + (1 - memory) * scaled_prediction
        self._average_weight = memory * self._average_weight + (1 - memory)
        return self._average / self._average_weight

    @staticmethod
    def memory(momentum: float) -> float:
        """gamma: the share of a step's effect that remains for the steps after it."""
        return min(momentum, LARGEST_MOMENTUM) ** 2

    def learn(self, regressor: float, observed_change: float) -> None:
        """Add one step to the fit: its x, and y, the change of the entropy by its update, in
        nats."""
        keep = 0.5 ** (1 / HALF_LIFE)
        self._observations += 1
        self._weight = keep * self._weight + 1
        self._x = keep * self._x + regressor
        self._y = keep * self._y + observed_change
        self._xx = keep * self._xx + regressor * regressor
        self._xy = keep * self._xy + regressor * observed_change

    @property
    def gain(self) -> float | None:
        """g in nats per unit of x; None before WARM_UP observations."""
        if self._observations < WARM_UP:
            return None
        # Least squares with PULL b^2 added: b = (Y - g X) / (W + PULL), put into the normal
        # equation of g.
        variation = self._xx - self._x * self._x / (self._weight + PULL)
        return (
            (self._xy - self._x * self._y / (self._weight + PULL)) / variation
            if variation > 0
            else None
        )


NEWEST_WEIGHT = 0.3
"""Weight of a step's own mean entropy in the estimate; the rest is the estimate before it plus the
observed change."""

MISSED_WEIGHT = 0.01
"""Weight of a step's surprise in what observed changes miss. Less than a quarter of
NEWEST_WEIGHT^2, beyond which the estimate would swing; this little because a batch's own mean is
mostly noise: it takes 25 steps to half of a constant bias."""

LARGEST_MISSED = 0.004
"""Share of the entropy that observed changes may miss per step: held runs missed 0.003 to 0.006."""

DRIFT_WEIGHT = 0.1
"""Weight of a step in the mean of what g x missed: slow enough to leave the noise out."""


@dataclass(slots=True)
class EntropyEstimator:
    """The entropy after a step, and where it would come to rest if all further updates were
    neutral.

    The mean over a step's tokens varies with the prompts, and the effect of an update takes some
    steps. With x, g and gamma of `Effect`, and b for what g x misses on average,

        dH_t = g x_t + b,   x_t = gamma x_(t-1) + (1 - gamma) a_t u_t     the change by step t
        s_t = H_t + (g x_t + b) gamma / (1 - gamma)       H after step t, and what is still to come

    with the learning rate a_t, so that s_t = s_(t-1) + a_t g u_t + b: a unit prediction moves the
    resting point by its size in nats at once, however slowly the entropy follows. The controller
    steers s, so it does not correct again what is under way already; and it makes up for b, without
    which the entropy would stay beside its target.

    The observed change is of the very tokens that the update learned from, and those lose more
    entropy than the next step's do. So what the observed changes miss is learnt from the steps' own
    means, slowly and within bounds:

        H_t = H_(t-1) + NEWEST_WEIGHT e_t + dH_t + c_t,   e_t: mean entropy - H_(t-1)
        c_t = c_(t-1) + MISSED_WEIGHT e_t
        |c_t| <= LARGEST_MISSED H_(t-1)

    Without the bound c would keep what a steep fall missed, and hold the entropy too low long
    after. Feed it one step at a time, in order.
    """

    _expected: float | None = None
    _missed: float = 0.0
    _drift: float = 0.0
    _effect: Effect = field(default_factory=Effect)

    def step(
        self,
        *,
        mean_entropy: float,
        unit_prediction: float,
        observed_change: float | None,
        momentum: float,
        learning_rate: float = 1.0,
    ) -> hold_decision.EntropyEstimate:
        """The estimate after one more step: of its tokens' mean entropy before the update, in nats,
        its unit prediction, in nats per unit gain, the observed change, None where it was not
        measured, and the optimiser's beta_1. With the step's learning rate a schedule moves the
        gain at once."""
        regressor = self._effect.regressor(learning_rate * unit_prediction, momentum)
        before = self._effect.gain
        explained = None if before is None else before * regressor
        last = mean_entropy if self._expected is None else self._expected
        surprise = mean_entropy - last
        if observed_change is None:
            change = (explained or 0.0) + self._drift
        else:
            largest = LARGEST_MISSED * abs(last)
            self._missed = min(max(self._missed + MISSED_WEIGHT * surprise, -largest), largest)
            change = observed_change + self._missed
            if explained is not None:
                self._drift += DRIFT_WEIGHT * (change - explained - self._drift)
            self._effect.learn(regressor, observed_change)
        self._expected = last + NEWEST_WEIGHT * surprise + change
        gain, memory = self._effect.gain, self._effect.memory(momentum)
        return hold_decision.EntropyEstimate(
            mean_entropy=self._expected,
            gain=None if gain is None else learning_rate * gain,
            to_come=((gain or 0.0) * regressor + self._drift) * memory / (1 - memory),
            drift=self._drift,
        )


_NEEDED = (metrics.ENTROPY_MEAN, metrics.ENTROPY_UNIT_PREDICTED_CHANGE)


@dataclass(frozen=True, slots=True)
class Reward:
    """The mean reward of a step."""

    step: int
    """Counted as in `Measured.step`."""
    value: float


@dataclass(slots=True, kw_only=True)
class _Memory:
    """All that is kept from step to step, and written into a checkpoint."""

    estimator: EntropyEstimator = field(default_factory=EntropyEstimator)
    compared_steps: int = 0
    measured: hold_decision.Measured | None = None
    hold: hold_decision.HoldState = field(default_factory=hold_decision.HoldState)
    requested: Hold | None = None
    method: str = Method.NONE
    """The hold, and the method whose thresholds it moves, for which `hold` was decided."""
    version: int = 0
    closed_steps: int = 0
    early: metrics.EarlyLevel = field(default_factory=metrics.EarlyLevel)
    highest_entropy: float = -math.inf
    """The highest mean entropy of any step so far, in nats."""
    acting_since: int | None = None
    """The step from which the hold acted, counted as in `closed_steps`; None: it has not acted
    yet."""
    rewards: deque[Reward] = field(default_factory=lambda: deque(maxlen=REWARD_WINDOW))
    """Newest last."""
    own_fall: float | None = None
    """Fall of the reward per step before the hold acted; None: it has not acted yet."""
    rewards_before: list[float] = field(default_factory=list)
    """Of the steps before it acted."""
    stopped: str = ""


class HoldController:
    """Decides the thresholds of each step. One per probe.

    Numbers arrive on the writer's thread, some steps late: the training thread waits for none.
    There the newest replaces the one before as a whole, so that a decision, on the training thread,
    uses the numbers of one step, never a mixture. Everything but the functions that `learner`
    returns belongs to the training thread."""

    def __init__(self) -> None:
        self._memory = _Memory()
        self._lock = Lock()
        self.control = Control()
        """The control of the step that runs: the pushed one, with the thresholds that were
        decided."""
        self.action: hold_decision.Action | None = None
        """The decision for the step that runs; None: no entropy is to be held."""
        self.vocabulary: int | None = None
        """Number of tokens that the loop's distributions are over; None: not known."""

    def state(self) -> Any:
        """What is kept between two steps, as JSON values: for a checkpoint."""
        with self._lock:
            return document_of(self._memory)

    def restore(self, state: object) -> None:
        """Continue from what `state` gave, before the first step."""
        self._memory = read_exactly(_Memory, state)

    def decide(self, active: ControlSnapshot) -> hold_decision.Action | None:
        """The decision about the next step from the numbers that have arrived; None when no entropy
        is to be held."""
        memory = self._memory
        hold, method = active.control.held, hold_decision.clipping_method(active.control)
        if (hold, method) != (memory.requested, memory.method):
            # Thresholds of another target are no place to start from; the effect of past updates
            # still counts.
            memory.hold = hold_decision.HoldState(plans=memory.hold.plans)
            memory.requested, memory.method = hold, method
        if active.version != memory.version:
            memory.version, memory.acting_since, memory.own_fall, memory.stopped = (
                active.version,
                None,
                None,
                "",
            )
        if hold is None:
            return None
        stopped = memory.stopped if hold.reward_guard else ""
        memory.hold, action = hold_decision.decide(
            active.control, memory.hold, memory.measured, step=memory.closed_steps, stopped=stopped
        )
        if memory.hold.acting and memory.acting_since is None:
            memory.acting_since = memory.closed_steps
        return replace(self._add_estimate(action), version=active.version)

    def _add_estimate(self, action: hold_decision.Action) -> hold_decision.Action:
        if self._memory.measured is None:
            return action
        known = self._memory.measured.entropy
        return replace(
            action, gain=known.gain, drift=known.drift, resting_point=known.resting_point
        )

    def begin_step(self, active: ControlSnapshot, action: hold_decision.Action | None) -> None:
        """Set the control of the step that begins. The action is the same on all ranks; one for
        another version is ignored."""
        self.action = None
        if active.control.hold is not None:
            is_decided = action is not None and action.version == active.version
            self.action = action if is_decided else hold_decision.undecided(active.version)
        self.control = hold_decision.control_under(self.action, active.control)

    def end_step(self) -> None:
        """Count the step: its numbers arrive from here on."""
        self._memory.closed_steps += 1

    def learner(
        self, momentum: float | None, learning_rate: SupportsFloat | None = None
    ) -> Callable[[StepReport], None]:
        """A function that takes the report of the step that ended last, on a thread that may wait
        for the device, where a rate that is a tensor is read. None counts as a momentum of 0, and
        as a constant rate."""
        step = self._memory.closed_steps - 1
        return lambda report: self._learn(step, report, momentum or 0.0, learning_rate)

    def _learn(
        self, step: int, report: StepReport, momentum: float, learning_rate: SupportsFloat | None
    ) -> None:
        scalars = report.scalars
        self._guard_reward(step, scalars.get(metrics.REWARD_MEAN, math.nan))
        if report.what_if is None or not all(
            math.isfinite(scalars.get(name, math.nan)) for name in _NEEDED
        ):
            return
        observed, predicted = (
            metrics.measured_change(scalars),
            scalars.get(metrics.ENTROPY_PREDICTED_CHANGE),
        )
        memory = self._memory
        with self._lock:
            memory.compared_steps += observed is not None and predicted is not None
            memory.early.add(scalars[metrics.ENTROPY_MEAN])
            memory.highest_entropy = max(memory.highest_entropy, scalars[metrics.ENTROPY_MEAN])
            memory.measured = hold_decision.Measured(
                step=step,
                run_step=report.step,
                early_level=memory.early.level,
                highest_entropy=memory.highest_entropy,
                vocabulary=self.vocabulary,
                entropy=memory.estimator.step(
                    mean_entropy=scalars[metrics.ENTROPY_MEAN],
                    unit_prediction=scalars[metrics.ENTROPY_UNIT_PREDICTED_CHANGE],
                    observed_change=observed,
                    momentum=momentum,
                    learning_rate=1.0 if learning_rate is None else float(learning_rate),
                ),
                calibrated=hold_decision.Calibrated(
                    r2=scalars.get(metrics.ENTROPY_PREDICTION_R2),
                    sign_agreement=scalars.get(metrics.ENTROPY_PREDICTION_SIGN_AGREEMENT),
                    compared_steps=memory.compared_steps,
                ),
                what_if=report.what_if,
                bonus_effect=scalars.get(metrics.ENTROPY_BONUS_EFFECT),
            )

    def _guard_reward(self, step: int, reward: float) -> None:
        """End the hold where the reward has begun to fall since it acts."""
        if not math.isfinite(reward):
            return
        memory = self._memory
        with self._lock:
            began = memory.acting_since
            if began is not None and memory.own_fall is None:
                memory.rewards_before = [
                    reward.value for reward in memory.rewards if reward.step < began
                ]
                memory.own_fall = own_fall(memory.rewards_before)
            memory.rewards.append(Reward(step, reward))
            if began is not None and memory.own_fall is not None and not memory.stopped:
                since = [one.value for one in memory.rewards if one.step >= began]
                memory.stopped = reward_falls(
                    memory.own_fall, since, memory.rewards_before, step - began + 1
                )
