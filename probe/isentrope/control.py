"""Which control is active on this rank, how a requested one takes effect, and how that is
acknowledged. No torch here.

`ControlState` is a pure state machine: no clock, no file. The same calls give the same answers, so
ranks that are given the same snapshot and the same time switch at the same step.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from isentrope_wire.control import Control
from isentrope_wire.reports import ControlOutcome, ControlSnapshot, OutcomeState

CAPABILITY_MISSING = "capability_missing"
UNREADABLE = "unreadable"
TIME_TO_LIVE_OVER = "time_to_live_over"
NEWER_VERSION_DECIDED = "newer_version_decided"
VERSION_TAKEN = "version_taken"
NOTHING_GATED = "nothing_gated"
NOTHING_GATED_MESSAGE = (
    "No token of this run has passed probe.gate, so that no control can act. Compute the loss from "
    "the log-probs that gate returns; in a trainer that is attached to, from those of its own "
    "method and not from the model's logits."
)

_Request = tuple[Control, str]
"""The control of a version, and why it can't be read."""


class ControlState:
    """The active control, and the outcome of every version that was requested.

    A control changes only when a step begins. No version is decided twice, and the versions applied
    only rise. A version that is never seen here, because a newer one replaced it between two steps,
    gets no outcome from here. A decided version that comes again with another control is rejected:
    the server's count has restarted, and it would otherwise show this control as active.
    """

    def __init__(self, initial: ControlSnapshot, capabilities: Collection[str]) -> None:
        """`initial` is the control the run starts with (version 0); `capabilities` is what this
        probe can apply, as in `Control.capability`."""
        self.active = initial
        self.last_step: int | None = None
        self._capabilities = frozenset(capabilities)
        self._decided: dict[int, list[_Request]] = {initial.version: _requests_of(initial)}
        """What each decided version requested; empty where only its number is known: version 0, and
        versions before a checkpoint that were refused."""
        self._step_is_open = False
        self._new_outcomes: tuple[ControlOutcome, ...] = ()
        """Decided in the step that runs, whose number is not known yet."""
        self._outcomes: tuple[ControlOutcome, ...] = ()

    @property
    def newest_decided(self) -> int:
        """The highest version that has an outcome."""
        return max(self._decided)

    @property
    def next_step(self) -> int:
        """The number the step that runs is expected to get: one more than the last one of this
        process."""
        if self.last_step is None:
            return 0
        return self.last_step + 1

    @property
    def pending_outcomes(self) -> tuple[ControlOutcome, ...]:
        """Outcomes that no report has carried yet."""
        return self._outcomes + self._new_outcomes

    @property
    def has_begun(self) -> bool:
        """Whether a step has begun in this process."""
        return self._step_is_open or self.last_step is not None

    @property
    def step_is_open(self) -> bool:
        """Whether a step has begun that is not closed."""
        return self._step_is_open

    def resume(self, active: ControlSnapshot, newest_decided: int, last_step: int | None) -> None:
        """Continue after the last step of another process. `newest_decided` may have been refused
        there."""
        self.active, self.last_step = active, last_step
        self._decided = {newest_decided: [], active.version: _requests_of(active)}

    def open_step(self) -> bool:
        """Begin a step unless it has begun; True when it begins now: the only moment to `decide`
        about a control."""
        begins, self._step_is_open = not self._step_is_open, True
        return begins

    def decide(
        self, requested: ControlSnapshot | None, *, now: float, bypassed: bool = False
    ) -> tuple[ControlOutcome, ...]:
        """Decide between two optimiser updates about the newest snapshot known on rank 0, at its
        time in seconds since the Unix epoch. The outcomes, which the next report carries; empty
        when nothing new was requested. `bypassed`: steps were closed, and none has gated
        anything."""
        if requested is None:
            outcome = None
        else:
            outcome = self._decision(requested, now, bypassed)
        decided = () if outcome is None else (outcome,)
        self._new_outcomes += decided
        return decided

    def end_step(self) -> None:
        """Let the next step begin, under another control."""
        self._step_is_open = False

    def outcomes_at(self, step: int) -> tuple[ControlOutcome, ...]:
        """The outcomes for the report of this step, whose number is known now: the first under a
        control applied since the last."""
        self._outcomes += tuple(
            replace(outcome, step=step) if outcome.state == OutcomeState.APPLIED else outcome
            for outcome in self._new_outcomes
        )
        self._new_outcomes = ()
        return self._outcomes

    def reported(self, step: int, *, sent: bool) -> None:
        """Note that the report of a step was handed over. Where it found no room, its outcomes
        travel with a later one."""
        self._outcomes = () if sent else self._outcomes
        self.last_step = step

    def _decision(
        self, requested: ControlSnapshot, now: float, bypassed: bool
    ) -> ControlOutcome | None:
        version, newest_decided = requested.version, self.newest_decided
        known = self._decided.get(version)
        if known is not None:
            if not known or _request_of(requested) in known:
                return None
            known.append(_request_of(requested))
            message = (
                f"Version {version} is another control here: the server's count restarted, as after"
                " its database was restored. Push it again."
            )
            return self._rejected(version, VERSION_TAKEN, message, now)
        self._decided[version] = [_request_of(requested)]
        if version < newest_decided:
            message = f"Version {newest_decided} was decided before version {version} arrived."
            return _outcome(version, OutcomeState.SUPERSEDED, now, NEWER_VERSION_DECIDED, message)
        if requested.expires_at is not None and now > requested.expires_at:
            late_seconds = now - requested.expires_at
            message = (
                f"The change reached the start of a step {late_seconds:.1f} s after it expired."
                " Push it again if it is still wanted."
            )
            return _outcome(version, OutcomeState.EXPIRED, now, TIME_TO_LIVE_OVER, message)
        if requested.unreadable:
            return self._rejected(
                version,
                UNREADABLE,
                f"This probe can't read the control: {requested.unreadable}",
                now,
            )
        if bypassed:
            return self._rejected(version, NOTHING_GATED, NOTHING_GATED_MESSAGE, now)
        if requested.control.capability not in self._capabilities:
            message = (
                f"This probe can apply {', '.join(sorted(self._capabilities)) or 'nothing'}; "
                f"the control needs {requested.control.capability}."
            )
            return self._rejected(version, CAPABILITY_MISSING, message, now)
        self.active = requested
        return ControlOutcome(
            version=version, state=OutcomeState.APPLIED, step=self.next_step, at=now
        )

    def _rejected(self, version: int, code: str, message: str, now: float) -> ControlOutcome:
        message = f"{message} Version {self.active.version} stays active."
        return _outcome(version, OutcomeState.REJECTED, now, code, message)


def _outcome(
    version: int, state: OutcomeState, at: float, code: str, message: str
) -> ControlOutcome:
    return ControlOutcome(version=version, state=state, at=at, code=code, message=message)


def _request_of(snapshot: ControlSnapshot) -> _Request:
    return snapshot.control, snapshot.unreadable


def _requests_of(active: ControlSnapshot) -> list[_Request]:
    if active.version:
        return [_request_of(active)]
    return []
