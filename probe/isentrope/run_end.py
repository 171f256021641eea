"""The goodbye of one rank: said by `Probe.finish`, or when the process ends and nobody has."""

from __future__ import annotations

import atexit
import os
import time

from isentrope.control.step_boundary import StepBoundary
from isentrope.guard import Guard
from isentrope.mirrors.open_mirrors import OpenMirrors
from isentrope.process_end import failure_since, mark, watch_exits
from isentrope.rank_meeting import RankMeeting
from isentrope.transport.transport import ReadyMessage, Transport
from isentrope_wire.messages import RunFinished
from isentrope_wire.run_limits import ERROR_CHARACTERS, cut

LONGEST_END_SECONDS = 1.0
"""How long the end of a run may take, whatever hangs; and of all runs together that a process leaves unfinished."""
LAST_MEETING_SHARE = 0.6
"""How much of it goes to the other ranks' part of the last report: ranks end within moments of each other, or hang."""


class RunEnd:
    """Says goodbye once. It outlives its probe, which may be gone before the process is: a local of `main`, say."""

    def __init__(
        self,
        boundary: StepBoundary,
        meeting: RankMeeting,
        transport: Transport,
        mirrors: OpenMirrors,
        guard: Guard,
        *,
        watches_process: bool = True,
    ) -> None:
        """Build it after the transport is open: what is registered last is called first, and the transport closes itself.

        Args:
            watches_process: whether the process's end is the run's. False where nobody hears of either.
        """
        self._boundary = boundary
        self._meeting = meeting
        self._transport = transport
        self._mirrors = mirrors
        self._guard = guard
        self._process = os.getpid()
        self._said = False
        self._mark = mark()
        if watches_process:
            watch_exits()
            _unfinished.add(self)
            atexit.register(self._process_ends)

    def goes_on(self) -> None:
        """A step has closed: errors and exits before it have ended nothing."""
        self._mark = mark()

    def say(self, status: str, error: str = "", seconds: float | None = None) -> None:
        """Say goodbye, and close what carries it. Safe to repeat: the first counts.

        Args:
            seconds: how long it may take. None: `LONGEST_END_SECONDS`.
        """
        if self._said:
            return
        self._said = True
        _unfinished.discard(self)
        atexit.unregister(self._process_ends)
        seconds = LONGEST_END_SECONDS if seconds is None else seconds
        end = time.monotonic() + seconds
        with self._guard.protect("finishing the run"):
            goodbye = RunFinished(
                status=status,
                finished_at=time.time(),
                step=self._boundary.last_step,
                error=cut(error, ERROR_CHARACTERS),
                outcomes=self._boundary.untold,
            )
            # The last report holds the other ranks' numbers too.
            self._meeting.settle(LAST_MEETING_SHARE * seconds)
            self._transport.put(ReadyMessage(goodbye))
            self._transport.close(timeout_seconds=end - time.monotonic())
            self._mirrors.close(timeout_seconds=end - time.monotonic())

    def _process_ends(self) -> None:
        # A forked child must not speak in its parent's name.
        if os.getpid() == self._process:
            failure = failure_since(self._mark)
            self.say("failed" if failure else "finished", failure, seconds=_shared_seconds())


_unfinished: set[RunEnd] = set()
_all_ended_by: list[float] = []
"""When the process must be through with all of them; empty before the first."""


def _shared_seconds() -> float:
    """An equal share of the time left for each run that is unfinished."""
    if not _all_ended_by:
        _all_ended_by.append(time.monotonic() + LONGEST_END_SECONDS)
    return max(_all_ended_by[0] - time.monotonic(), 0.0) / max(len(_unfinished), 1)
