"""The desk that decides, at a step boundary, which control is in force from the next step on.

A pure state machine: no clock, no file, no torch. The same calls give the same answers, so ranks that are told the
same snapshot and the same time switch at the same step.
"""

from __future__ import annotations

from collections.abc import Collection

from isentrope_wire.control import Control
from isentrope_wire.messages import ControlOutcome, ControlSnapshot, OutcomeState

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
