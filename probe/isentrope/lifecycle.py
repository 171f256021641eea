"""What a run is when it begins, and that all of its ranks say the same of it.

The goodbye of one rank: said by `Probe.finish`, or when the process ends and nobody has.

How this process comes to its end, as far as Python tells: by itself, by an error nobody handled, by `sys.exit`.

A signal that kills, and `os._exit`, tell nobody: nothing here notices them.
"""

from __future__ import annotations

import atexit
import functools
import logging
import os
import sys
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, NoReturn

import isentrope
from isentrope.config import ProbeConfig, checked_tags, jsonable, wanted_run_id
from isentrope.control import StepBoundary
from isentrope.distributed import RankMeeting, Ranks
from isentrope.errors import ConfigurationError
from isentrope.guard import Guard
from isentrope.methods.gate import CAPABILITIES
from isentrope.trackers.base import OpenMirrors
from isentrope.transport.spool import open_transport
from isentrope.transport.transport import ReadyMessage, Transport
from isentrope_wire import environment
from isentrope_wire.control import Control
from isentrope_wire.reports import ERROR_CHARACTERS, ControlSnapshot, RunFinished, RunStarted, cut

logger = logging.getLogger(__name__)


class RunStart(NamedTuple):
    """A run that all ranks agree on."""

    config: ProbeConfig
    control: ControlSnapshot
    """In force from the first step on: version 0."""
    message: RunStarted
    """What this rank reports first."""


@dataclass(frozen=True, slots=True)
class _Word:
    """What a rank tells the others before the run begins."""

    error: str
    """Why it can't begin; empty when it can."""
    wanted_run_id: str = ""
    """As given; empty: rank 0's will do."""
    run_id: str = ""
    incarnation: str = ""
    """Of rank 0: one life of the run has one, whatever the number of its ranks."""
    control: str = ""
    threshold_source: str = ""


def begin_run(
    ranks: Ranks,
    configure: Callable[[], ProbeConfig],
    run_id: str | None,
    control: Control | None,
    run_config: Mapping[str, object],
    tags: Sequence[str],
) -> RunStart:
    """Agree on the run with the other ranks; a rank that can't begin keeps none of them waiting.

    Args:
        configure: makes this rank's settings.
        run_id: the one asked for, if any.
        control: the intervention the run starts with.
        run_config: the run's hyper-parameters, shown with it.

    Raises:
        ConfigurationError: a setting that can't work here or on another rank, or that differs between them.
    """
    own_error: ConfigurationError | None = None
    try:
        _check_control(control)
        config = configure()
        _check_mode(config, control)
        shown_config, shown_tags = jsonable(run_config), checked_tags(tags)
        mine = _Word(
            error="",
            wanted_run_id=wanted_run_id(run_id),
            run_id=config.run_id,
            incarnation=uuid.uuid4().hex,
            control=str((control or Control()).to_document()),
            threshold_source=config.threshold_source,
        )
    except ConfigurationError as error:
        own_error, mine = error, _Word(error=str(error))
    words = ranks.agree(mine)
    if own_error is not None:
        raise own_error
    _check_agreement(words)
    if config.world_size > ranks.size:
        logger.warning(
            "torch.distributed was not initialised when the probe was built: each of the %d ranks reports its own tokens "
            "only, and takes up a new control by itself.",
            config.world_size,
        )
    config = replace(config, run_id=words[0].run_id)
    initial = ControlSnapshot(version=0, control=control or Control(), author="trainer", requested_at=time.time())
    return RunStart(config, initial, _run_started(config, words[0].incarnation, initial, shown_config, shown_tags))


def transport_of(start: RunStart) -> Transport:
    """What carries this rank's reports."""
    config = start.config
    return open_transport(
        start.message, mode=config.mode, home=config.home, grpc_target=config.grpc_target, token=config.token
    )


def announce(config: ProbeConfig) -> None:
    """One line on stderr, of rank 0 alone, that says which run this is and where to look at it."""
    if config.rank or config.mode == "disabled":
        return
    where = (
        f"{environment.url()}/runs/{config.run_id}"
        if config.mode == "online"
        else f"offline, reports wait in {config.home / 'spool'} (isentrope sync)"
    )
    sys.stderr.write(f"isentrope: run {config.run_id}, {where}\n")


def _check_control(control: Control | None) -> None:
    if control is not None and not isinstance(control, Control):
        raise ConfigurationError(
            f"control must be an isentrope.Control, such as Control(method='clip_v', mu_low=1), got {control!r}."
        )
    wanted = (control or Control()).capability
    if wanted not in CAPABILITIES:
        raise ConfigurationError(f"This probe can carry out {', '.join(CAPABILITIES)}; the control asks for {wanted}.")


def _check_mode(config: ProbeConfig, control: Control | None) -> None:
    if config.mode == "disabled" and control is not None and control.hold is not None:
        raise ConfigurationError(
            "hold steers by the numbers of the reports, and mode disabled builds none. Use mode offline or online, or "
            "leave hold out."
        )


def _check_agreement(words: Sequence[_Word]) -> None:
    for rank, word in enumerate(words):
        if word.error:
            raise ConfigurationError(f"Rank {rank} can't begin: {word.error}")
    first = words[0]
    for rank, word in enumerate(words):
        for name, expected, got in (
            ("run_id", first.run_id, word.wanted_run_id or first.run_id),
            ("control", first.control, word.control),
            ("threshold_source", first.threshold_source, word.threshold_source),
        ):
            if got != expected:
                raise ConfigurationError(
                    f"All ranks must be given the same {name}: rank 0 has {expected}, rank {rank} has {got}."
                )


def _run_started(
    config: ProbeConfig,
    incarnation: str,
    initial: ControlSnapshot,
    run_config: Mapping[str, object],
    tags: tuple[str, ...],
) -> RunStarted:
    return RunStarted(
        run_id=config.run_id,
        incarnation=incarnation,
        rank=config.rank,
        world_size=config.world_size,
        name=config.run,
        project=config.project,
        started_at=time.time(),
        probe_version=isentrope.__version__,
        config=run_config,
        tags=tags,
        capabilities=CAPABILITIES,
        planned_steps=config.planned_steps,
        initial_control=initial,
    )


Mark = tuple[int, int]
"""What had gone wrong already at some moment: the identity of the last error that nobody handled (a notebook has errors that
end nothing), and how often `sys.exit` was called."""

_SYS = vars(sys)
"""Where Python keeps the last error that nobody handled: as `last_exc` from 3.12 on, as `last_value` before."""

_exit_codes: list[object] = []
"""What the main thread gave `sys.exit`, one for each call; all but the last were caught."""


def watch_exits() -> None:
    """From now on what the main thread gives `sys.exit` is known. Safe to repeat.

    Python tells nobody else: at the end of the process the SystemExit is gone, and a run whose framework caught the
    error, printed it and called `sys.exit(1)` would look like one that came to its end.
    """
    theirs = sys.exit
    if getattr(theirs, "watched", False):
        return

    @functools.wraps(theirs)
    def watched_exit(status: object = None, /) -> NoReturn:
        if threading.current_thread() is threading.main_thread():
            _exit_codes.append(status)
        theirs(status)  # type: ignore[arg-type]

    watched_exit.watched = True  # type: ignore[attr-defined]
    sys.exit = watched_exit


def mark() -> Mark:
    """This moment: what is known of now is not what ends the process later."""
    return id(_SYS.get("last_exc") or _SYS.get("last_value")), len(_exit_codes)


def failure_since(earlier: Mark) -> str:
    """Why the process ends, when by a failure: `RuntimeError: ...`. Empty: it came to its end."""
    error, (earlier_error, earlier_exits) = _last_unhandled(), earlier
    if error is not None and id(error) != earlier_error:
        return named(error)
    if len(_exit_codes) > earlier_exits and _exit_codes[-1] not in (None, 0):
        return f"SystemExit: {_exit_codes[-1]}"
    return ""


def named(error: BaseException) -> str:
    """An error as a run's page shows it."""
    return f"{type(error).__name__}: {error}".removesuffix(": ")


def _last_unhandled() -> BaseException | None:
    error: BaseException | None = _SYS.get("last_exc") or _SYS.get("last_value")
    return error


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
