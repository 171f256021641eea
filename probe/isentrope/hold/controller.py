"""Decides the thresholds of each step, from the numbers of the steps that were reported."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import Any, SupportsFloat

from isentrope.hold.estimate import EntropyEstimator
from isentrope.hold.reward_guard import REWARD_WINDOW, own_fall, reward_falls
from isentrope_wire import hold_decision, metrics
from isentrope_wire.control import Control, Hold, Method
from isentrope_wire.hold_action import Action, clipping_method, control_under, undecided
from isentrope_wire.numbers import document_of, read_exactly
from isentrope_wire.reports import ControlSnapshot, StepReport

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
        self.action: Action | None = None
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

    def decide(self, active: ControlSnapshot) -> Action | None:
        """The decision about the next step from the numbers that have arrived; None when no entropy
        is to be held."""
        memory = self._memory
        hold, method = active.control.held, clipping_method(active.control)
        if (hold, method) != (memory.requested, memory.method):
            # Thresholds of another target are no place to start from; the effect of past updates
            # still counts.
            memory.hold = hold_decision.HoldState(plans=memory.hold.plans)
            memory.requested, memory.method = hold, method
        if active.version != memory.version:
            memory.version, memory.stopped = active.version, ""
            memory.acting_since = memory.own_fall = None
        if hold is None:
            return None
        if hold.reward_guard:
            stopped = memory.stopped
        else:
            stopped = ""
        memory.hold, action = hold_decision.decide(
            active.control, memory.hold, memory.measured, step=memory.closed_steps, stopped=stopped
        )
        if memory.hold.acting and memory.acting_since is None:
            memory.acting_since = memory.closed_steps
        return replace(self._add_estimate(action), version=active.version)

    def _add_estimate(self, action: Action) -> Action:
        if self._memory.measured is None:
            return action
        known = self._memory.measured.entropy
        return replace(
            action, gain=known.gain, drift=known.drift, resting_point=known.resting_point
        )

    def begin_step(self, active: ControlSnapshot, action: Action | None) -> None:
        """Set the control of the step that begins. The action is the same on all ranks; one for
        another version is ignored."""
        self.action = None
        if active.control.hold is not None:
            is_decided = action is not None and action.version == active.version
            if is_decided:
                self.action = action
            else:
                self.action = undecided(active.version)
        self.control = control_under(self.action, active.control)

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
                since = [reward.value for reward in memory.rewards if reward.step >= began]
                memory.stopped = reward_falls(
                    memory.own_fall, since, memory.rewards_before, step - began + 1
                )
