"""Which control is in force on this rank, how a new one takes effect and how that is answered. No torch here.

- `desk`: at a step boundary decides what becomes of the desired control: applied, rejected, expired, superseded
- `step_boundary`: asks the desk when a step begins, keeps the outcomes until a report has taken them
- `relay`: with several ranks, rank 0's desired control is told to all of them, so that they switch at the same step
- `control_file`: the desired control as a small file, written by the shipper and read by the training process
- `control_handover`: the shipper's side of it: several threads take turns, the newest stands

The desk that decides, at a step boundary, which control is in force from the next step on.

A pure state machine: no clock, no file, no torch. The same calls give the same answers, so ranks that are told the
same snapshot and the same time switch at the same step.

When a step begins a control may change; when it ends, what became of the control is told.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

from isentrope_wire.control import Control
from isentrope_wire.reports import ControlOutcome, ControlSnapshot, OutcomeState

CAPABILITY_MISSING = "capability_missing"
UNREADABLE = "unreadable"
TIME_TO_LIVE_OVER = "time_to_live_over"
NEWER_VERSION_DECIDED = "newer_version_decided"
VERSION_TAKEN = "version_taken"

_Asked = tuple[Control, str]
"""What a version asked for, and why that can't be read; both, since what can't be read says nothing."""


class ControlDesk:
    """Holds the control in force and ends every version it is shown in exactly one terminal state.

    No version is decided twice, and the versions applied only rise. A version that is never shown (because a newer
    one replaced it between two boundaries) gets no outcome from here. A decided version that comes again with another
    document is rejected: the server counts anew, and would else believe that this document is in force.
    """

    def __init__(
        self, initial: ControlSnapshot, capabilities: Collection[str], newest_decided: int | None = None
    ) -> None:
        """
        Args:
            initial: what the run starts with (version 0), or what a checkpoint says was in force.
            capabilities: what this probe can carry out, in the words of `Control.capability` (`method:clip_v` ...).
            newest_decided: a version that was decided before; a checkpoint may know one that was refused.
        """
        self._in_force = initial
        self._capabilities = frozenset(capabilities)
        # Nobody pushes a version 0: it is whatever the run started with.
        self._decided: dict[int, list[_Asked]] = {initial.version: [_asked(initial)] if initial.version else []}
        """Empty: what that version asked for isn't known, as a checkpoint doesn't tell of one that was refused."""
        if newest_decided is not None:
            self._decided.setdefault(newest_decided, [])

    @property
    def in_force(self) -> ControlSnapshot:
        """The control for the step that runs now."""
        return self._in_force

    @property
    def newest_decided(self) -> int:
        """The highest version that has got its terminal state."""
        return max(self._decided)

    def at_step_boundary(self, desired: ControlSnapshot | None, *, step: int, now: float) -> tuple[ControlOutcome, ...]:
        """Decide about the newest desired control between two optimiser updates.

        Args:
            desired: the newest snapshot known on this rank (rank 0's, where there are several), or None.
            step: the step about to begin: the first one a newly applied control is in force for.
            now: seconds since the Unix epoch (rank 0's, where there are several).
        Returns: the outcomes to send with the next report; empty when there is nothing new.
        """
        if desired is None:
            return ()
        newest_decided = self.newest_decided
        known = self._decided.get(desired.version)
        if known is not None:
            if not known or _asked(desired) in known:
                return ()
            known.append(_asked(desired))
            message = (
                f"Version {desired.version} stands for another control here: the server counts anew, as after its "
                "database was restored. Push it again."
            )
            return (self._rejected(desired, VERSION_TAKEN, message, now),)
        self._decided[desired.version] = [_asked(desired)]
        if desired.version < newest_decided:
            return (_superseded(desired, newest_decided, now),)
        if desired.expires_at is not None and now > desired.expires_at:
            return (_expired(desired, now),)
        if desired.unreadable:
            message = f"This probe can't read the control: {desired.unreadable}"
            return (self._rejected(desired, UNREADABLE, message, now),)
        if desired.control.capability not in self._capabilities:
            return (self._rejected(desired, CAPABILITY_MISSING, self._missing(desired), now),)
        self._in_force = desired
        return (ControlOutcome(version=desired.version, state=OutcomeState.APPLIED, step=step, at=now),)

    def _missing(self, desired: ControlSnapshot) -> str:
        return (
            f"This probe can carry out {', '.join(sorted(self._capabilities)) or 'nothing'}; "
            f"the control asks for {desired.control.capability}."
        )

    def _rejected(self, desired: ControlSnapshot, code: str, message: str, now: float) -> ControlOutcome:
        return ControlOutcome(
            version=desired.version,
            state=OutcomeState.REJECTED,
            at=now,
            code=code,
            message=f"{message} Version {self._in_force.version} stays in force.",
        )


def _asked(snapshot: ControlSnapshot) -> _Asked:
    return snapshot.control, snapshot.unreadable


def _superseded(desired: ControlSnapshot, newest_decided: int, now: float) -> ControlOutcome:
    return ControlOutcome(
        version=desired.version,
        state=OutcomeState.SUPERSEDED,
        at=now,
        code=NEWER_VERSION_DECIDED,
        message=f"Version {newest_decided} was decided before version {desired.version} arrived.",
    )


def _expired(desired: ControlSnapshot, now: float) -> ControlOutcome:
    late_seconds = now - (desired.expires_at or now)
    return ControlOutcome(
        version=desired.version,
        state=OutcomeState.EXPIRED,
        at=now,
        code=TIME_TO_LIVE_OVER,
        message=f"The change reached a step boundary {late_seconds:.1f} s after its time to live. Push it again if still wanted.",
    )


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
