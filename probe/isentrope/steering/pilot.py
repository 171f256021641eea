"""Brings the numbers of closed steps to the controller, and its decision to the step that begins.

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
from isentrope.steering.action import Action, clipping_method, control_under, undecided
from isentrope.steering.controller import HoldState, Measured, decide
from isentrope.steering.entropy_estimate import EntropyEstimator
from isentrope.steering.trust import Calibrated
from isentrope_wire.control import Control, Method
from isentrope_wire.hold import Hold
from isentrope_wire.messages import ControlSnapshot, StepReport
from isentrope_wire.metrics import (
    ENTROPY_MEAN,
    ENTROPY_PREDICTION_R2,
    ENTROPY_PREDICTION_SIGN_AGREEMENT,
    ENTROPY_UNIT_PREDICTED_CHANGE,
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
