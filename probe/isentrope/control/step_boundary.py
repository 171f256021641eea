"""When a step begins a control may change; when it ends, what became of the control is told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from isentrope.control.desk import ControlDesk
from isentrope_wire.messages import ControlOutcome, ControlSnapshot, OutcomeState

Wish = tuple[ControlSnapshot | None, float]
"""The desired control, and the time in seconds since the Unix epoch to decide about it by."""


class StepBoundary:
    """Follows the steps, asks the desk once in each, and keeps its outcomes until a report has taken them."""

    def __init__(self, desk: ControlDesk) -> None:
        self._desk = desk
        self._is_open = False
        self._last_step: int | None = None
        self._decided: tuple[ControlOutcome, ...] = ()
        self._untold: tuple[ControlOutcome, ...] = ()

    @property
    def in_force(self) -> ControlSnapshot:
        """The control for the step that runs now."""
        return self._desk.in_force

    @property
    def newest_decided(self) -> int:
        """The highest version of a control that has got its terminal state."""
        return self._desk.newest_decided

    @property
    def last_step(self) -> int | None:
        """The number of the last step that was reported."""
        return self._last_step

    @property
    def this_step(self) -> int:
        """The number the step that runs is expected to get: one more than the last, as far as this process knows it."""
        return 0 if self._last_step is None else self._last_step + 1

    @property
    def untold(self) -> tuple[ControlOutcome, ...]:
        """Outcomes that no report has taken yet."""
        return self._untold + self._decided

    @property
    def untouched(self) -> bool:
        """Whether no step has begun in this process."""
        return not self._is_open and self._last_step is None

    def resume(self, desk: ControlDesk, last_step: int | None) -> None:
        """Go on after another process' last step, with the control that was in force there."""
        self._desk, self._last_step = desk, last_step

    def open_step(self, wish: Callable[[], Wish]) -> bool:
        """Begin a step, unless it has begun: the only moment a control may change. Returns whether it begins now."""
        if self._is_open:
            return False
        self._is_open = True
        desired, now = wish()
        if desired is not None:
            self._decided += self._desk.at_step_boundary(desired, step=self.this_step, now=now)
        return True

    def end_step(self) -> None:
        """The next step may begin, under another control."""
        self._is_open = False

    def outcomes_at(self, step: int) -> tuple[ControlOutcome, ...]:
        """What the report of this step has to tell. The desk guessed the step's number; now it is known."""
        if not self._decided:
            return self._untold
        self._untold += tuple(
            replace(outcome, step=step) if outcome.state == OutcomeState.APPLIED else outcome
            for outcome in self._decided
        )
        self._decided = ()
        return self._untold

    def reported(self, step: int, *, sent: bool) -> None:
        """An outcome that found no room travels with a later report: a control's end must not be lost."""
        self._untold = () if sent else self._untold
        self._last_step = step
