"""Hold an entropy: moves the thresholds from step to step so that the mean entropy stays at a target. No torch here.

- `effect`: how much a step's unit prediction moves the entropy, told apart from what happens anyway
- `entropy_estimate`: where the entropy stands after a step, and where it will come to rest
- `trust`: whether the calibrated prediction may be acted on
- `controller`: the decision for a step, a pure function of what was measured and of its own small state
- `action`: what was decided; which control that puts in force, what reports say of it, how rank 0 tells the others
- `pilot`: brings the numbers from the writer's thread to the decision, and the decision to the step

Read `controller.py` first.

What a step's unit prediction does to the entropy, told apart from what happens anyway.

    dH_t = g x_t + b        x_t = gamma x_(t-1) + (1 - gamma) a_t u_t, gamma = beta_1^2, a_t: learning rate

by least squares with weights that halve every HALF_LIFE steps. The calibration's gain (`statistics/calibration.py`) has
no b and is no gain to steer by. A held entropy stands still because g x makes up for b; a line through the origin reads
that as a gain near 0, and a controller that believes in half the gain corrects twice as much, until the entropy swings.
In a held run of the reference trainer the line through the origin fell from 2.0 to 0.95 within 190 steps, while a free
fit of ten steps' effects summed to 1.9 to 2.3 all along.

gamma is smaller than the optimiser's beta_1 because an update that is older than a few steps moves the entropy of today's
tokens less than momentum says: on three stretches of that run gamma = beta_1^2 explained 0.39, 0.34 and 0.47 of the
variance, beta_1 itself 0.26, 0.38 and 0.50, and on the run that once swung 0.40 and 0.55 against 0.30 and 0.42.

Where the entropy stands after a step, and where it would come to rest if all further updates were neutral.

The mean over a step's tokens jitters with the prompts, and what an update sets in motion takes some steps. With the
regressor x, the gain g and gamma of `effect.py`, and b for what g x misses on average,

    dH_t = g x_t + b,   x_t = gamma x_(t-1) + (1 - gamma) a_t u_t      the change that step t brings about
    s_t = H_t + (g x_t + b) gamma / (1 - gamma)                        H after step t, and what is still to come

with the learning rate a_t, so that s_t = s_(t-1) + a_t g u_t + b: a unit prediction moves the resting point by its size
in nats at once, however slowly the entropy follows. The controller steers s, which is why it does not correct twice what
is under way already; and it makes up for b, without which the entropy would stay beside its target for good.

The observed change is of the very tokens that the update learned from, and those lose more entropy than the next step's
do: in runs of the reference trainer held at a quarter of the start, 0.0005 to 0.001 nats more per step, with which the
entropy came to rest 5 % above its target. So what the observed changes miss is learnt from the steps' own means, slowly and within bounds:

    H_t = H_(t-1) + NEWEST_WEIGHT e_t + dH_t + c_t,   c_t = c_(t-1) + MISSED_WEIGHT e_t,   e_t: mean entropy - H_(t-1)
    |c_t| <= LARGEST_MISSED H_(t-1)

Without the bound c remembered what a steep fall had missed, three times as much, and held the entropy 3 % too low for a
hundred steps after.

Brings the numbers of closed steps to the controller, and its decision to the step that begins.

Numbers arrive on the writer's thread, some steps late: the training thread waits for none. There the newest replaces the
one before as a whole, so that the decision, on the training thread, sees one step's numbers and never a mixture.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import SupportsFloat

from isentrope.plain_state import Plain, plain, rebuilt
from isentrope_wire.control import Control, Hold, Method
from isentrope_wire.hold_decision import (
    Action,
    Calibrated,
    EntropyEstimate,
    HoldState,
    Measured,
    clipping_method,
    control_under,
    decide,
    undecided,
)
from isentrope_wire.metrics import (
    ENTROPY_MEAN,
    ENTROPY_PREDICTION_R2,
    ENTROPY_PREDICTION_SIGN_AGREEMENT,
    ENTROPY_UNIT_PREDICTED_CHANGE,
)
from isentrope_wire.reports import ControlSnapshot, StepReport

HALF_LIFE = 50.0
"""Steps after which an observation counts half."""

WARM_UP = 3
"""Observations before the first gain."""

PULL = 10.0
"""Steps' weight with which b is held at 0: a run just begun can't tell a drift from the effect of its own updates, whose
averages hardly differ."""

LARGEST_MOMENTUM = 0.99
"""Beyond it the effect of a step lasts for hundreds, and is not worth steering by."""


@dataclass(slots=True)
class Effect:
    """Feed it one step at a time, in order."""

    _average: float = 0.0
    _average_weight: float = 0.0
    _observations: int = 0
    _weight: float = 0.0
    _x: float = 0.0
    _y: float = 0.0
    _xx: float = 0.0
    _xy: float = 0.0

    def regressor(self, scaled_prediction: float, momentum: float) -> float:
        """x of the step, once a step.

        Args:
            scaled_prediction: the unit prediction times the learning rate.
            momentum: the optimiser's beta_1, 0 for plain SGD.
        """
        memory = self.memory(momentum)
        self._average = memory * self._average + (1 - memory) * scaled_prediction
        self._average_weight = memory * self._average_weight + (1 - memory)
        return self._average / self._average_weight

    @staticmethod
    def memory(momentum: float) -> float:
        """gamma: the share of a step's effect that is left for the steps after it."""
        return min(momentum, LARGEST_MOMENTUM) ** 2

    def learn(self, regressor: float, observed_change: float) -> None:
        """
        Args:
            observed_change: y, what the step's update did to the entropy, in nats.
        """
        keep = 0.5 ** (1 / HALF_LIFE)
        self._observations += 1
        self._weight = keep * self._weight + 1
        self._x = keep * self._x + regressor
        self._y = keep * self._y + observed_change
        self._xx = keep * self._xx + regressor * regressor
        self._xy = keep * self._xy + regressor * observed_change

    @property
    def gain(self) -> float | None:
        """g, nats per unit of x; None while there is too little past to say it."""
        if self._observations < WARM_UP:
            return None
        # Least squares with PULL b^2 added: b = (Y - g X) / (W + PULL), put into the normal equation of g.
        variation = self._xx - self._x * self._x / (self._weight + PULL)
        return (self._xy - self._x * self._y / (self._weight + PULL)) / variation if variation > 0 else None


NEWEST_WEIGHT = 0.3
"""Of a step's own mean entropy in the estimate; the rest is the estimate before it, moved on by the observed change."""

MISSED_WEIGHT = 0.01
"""Of a step's surprise in what observed changes miss. Less than a quarter of NEWEST_WEIGHT^2, beyond which the estimate
would swing; this little because a batch's own mean is mostly noise: it takes 25 steps to half of a constant bias."""

LARGEST_MISSED = 0.004
"""Of the entropy, what observed changes may miss per step: held runs missed 0.003 to 0.006 of theirs."""

DRIFT_WEIGHT = 0.1
"""Of a step in the mean of what g x missed: slow enough to leave the noise out."""


@dataclass(slots=True)
class EntropyEstimator:
    """Feed it one step at a time, in order."""

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
    ) -> EntropyEstimate:
        """
        Args:
            mean_entropy: over the step's tokens, before its update, in nats.
            unit_prediction: -mean(keep r A S_c) of the step.
            observed_change: what its update did to the entropy, in nats; None when it was not measured.
            momentum: the optimiser's beta_1, 0 for plain SGD.
            learning_rate: of the step; a schedule then moves the gain at once.
        """
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
        return EntropyEstimate(
            mean_entropy=self._expected,
            gain=None if gain is None else learning_rate * gain,
            to_come=((gain or 0.0) * regressor + self._drift) * memory / (1 - memory),
            drift=self._drift,
        )


_NEEDED = (ENTROPY_MEAN, ENTROPY_UNIT_PREDICTED_CHANGE)


@dataclass(slots=True, kw_only=True)
class _Memory:
    """All that is remembered from step to step. Without it, a run taken up again would begin as one without numbers."""

    estimator: EntropyEstimator = field(default_factory=EntropyEstimator)
    compared_steps: int = 0
    measured: Measured | None = None
    hold: HoldState = field(default_factory=HoldState)
    asked: Hold | None = None
    method: Method = Method.NONE
    """What was to be held, and by whose thresholds, when `hold` was decided."""
    closed_steps: int = 0


class Pilot:
    """One per probe. All but what `numbers_of_step` gives belongs to the training thread."""

    def __init__(self) -> None:
        self._memory = _Memory()
        self._taking = Lock()
        self.control = Control()
        """In force in the step that runs: what was pushed, with the thresholds the controller chose."""
        self.action: Action | None = None
        """For the step that runs; None: nobody asked for an entropy to be held."""

    def state(self) -> Plain:
        """All that is remembered, as plain values: between two steps, for a checkpoint."""
        with self._taking:
            return plain(self._memory)

    def restore(self, state: object) -> None:
        """Go on from what `state` gave, before the first step.

        Raises:
            CheckpointError: it is something else.
        """
        self._memory = rebuilt(_Memory, state, "hold")

    def decide(self, pushed: ControlSnapshot) -> Action | None:
        """The action for the next step, from what has arrived.

        Args:
            pushed: the control that is expected to be in force.
        """
        memory = self._memory
        hold, method = pushed.control.held, clipping_method(pushed.control)
        if (hold, method) != (memory.asked, memory.method):
            # What was done for another target is no place to go on from; what it set in motion still counts.
            memory.hold = HoldState(plans=memory.hold.plans)
            memory.asked, memory.method = hold, method
        if hold is None:
            return None
        capped = pushed.control.value("max_fraction") is not None
        memory.hold, action = decide(
            hold,
            memory.hold,
            memory.measured,
            step=memory.closed_steps,
            method=method,
            max_fraction=pushed.control.number("max_fraction") if capped else None,
            shrink_denominator=pushed.control.value("denominator") == "shrink",
        )
        return replace(self._with_what_it_went_by(action), version=pushed.version)

    def _with_what_it_went_by(self, action: Action) -> Action:
        if self._memory.measured is None:
            return action
        known = self._memory.measured.entropy
        return replace(action, gain=known.gain, drift=known.drift, resting_point=known.resting_point)

    def begin_step(self, pushed: ControlSnapshot, action: Action | None) -> None:
        """Put in force what was decided; an action for another version of the control counts for nothing.

        Args:
            action: all ranks must be given the same.
        """
        self.action = None
        if pushed.control.hold is not None:
            decided = action is not None and action.version == pushed.version
            self.action = action if decided else undecided(pushed.version)
        self.control = control_under(self.action, pushed.control)

    def end_step(self) -> None:
        """Its numbers are on their way from here on."""
        self._memory.closed_steps += 1

    def numbers_of_step(
        self, momentum: float | None, learning_rate: SupportsFloat | None = None
    ) -> Callable[[StepReport], None]:
        """The function returned takes the report of the step that ended last, on a thread that may wait.

        Args:
            momentum: the optimiser's beta_1.
            learning_rate: of the step; where it is a tensor it is read on that thread. None: it counts as constant.
        """
        step = self._memory.closed_steps - 1
        return lambda report: self._take(step, report, momentum or 0.0, learning_rate)

    def _take(self, step: int, report: StepReport, momentum: float, learning_rate: SupportsFloat | None) -> None:
        scalars = report.scalars
        if report.what_if is None or not all(math.isfinite(scalars.get(name, math.nan)) for name in _NEEDED):
            return
        observed, predicted = (scalars.get(f"entropy/{name}_change") for name in ("observed", "predicted"))
        memory = self._memory
        with self._taking:
            memory.compared_steps += observed is not None and predicted is not None
            memory.measured = Measured(
                step=step,
                entropy=memory.estimator.step(
                    mean_entropy=scalars[ENTROPY_MEAN],
                    unit_prediction=scalars[ENTROPY_UNIT_PREDICTED_CHANGE],
                    observed_change=observed,
                    momentum=momentum,
                    learning_rate=1.0 if learning_rate is None else float(learning_rate),
                ),
                calibrated=Calibrated(
                    r2=scalars.get(ENTROPY_PREDICTION_R2),
                    sign_agreement=scalars.get(ENTROPY_PREDICTION_SIGN_AGREEMENT),
                    compared_steps=memory.compared_steps,
                ),
                what_if=report.what_if,
            )
