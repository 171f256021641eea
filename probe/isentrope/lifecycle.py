"""The start of a run, on which all ranks agree, and its end.

The status a run gets:

- `finished`, or what `Probe.finish(status)` was given: the loop called it, left the probe's `with`
  block, or the trainer's callback reported the end of training
- `failed`: the `with` block or the training was left by an error; or the process ended without
  `finish` after an error that nothing handled (Python keeps it in `sys.last_exc`), Ctrl-C included
- `ended`: the process ended without `finish`, and Python knows of no error. So does a process that
  ends by `sys.exit`, whatever its status: that can't be known without replacing `sys.exit`. A
  process of `multiprocessing` ends likewise; there the error that leaves its function is known
- `silent`, which the server concludes: nothing is sent by a process that is killed or calls
`os._exit`"""

from __future__ import annotations

import atexit
import os
import stat
import sys
import time
import traceback
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing import parent_process
from multiprocessing.util import Finalize

from torch import Tensor

from isentrope.config import ProbeConfig
from isentrope.distributed import Ranks
from isentrope.guard import SafeLog
from isentrope.steps.parts import Parts
from isentrope.transport.transport import ReadyMessage
from isentrope_wire import __version__, environment
from isentrope_wire.control import CAPABILITIES
from isentrope_wire.errors import ConfigurationError
from isentrope_wire.reports import (
    ERROR_CHARACTERS,
    OUTPUT,
    ControlSnapshot,
    RunFinished,
    RunStarted,
    cut,
)

logger = SafeLog(__name__)


@dataclass(frozen=True, slots=True)
class _RankSettings:
    """What the ranks compare before the run begins."""

    error: str
    """Why this rank can't begin; empty when it can."""
    wanted_run_id: str = ""
    """As given; empty: any."""
    run_id: str = ""
    incarnation: str = ""
    """Id of this attempt of the run. Rank 0's counts for all ranks."""
    control: str = ""
    threshold_source: str = ""


def begin_run(
    ranks: Ranks, read_config: Callable[[], ProbeConfig]
) -> tuple[ProbeConfig, ControlSnapshot, RunStarted]:
    """Agree on the run with the other ranks; a rank that can't begin keeps none of them waiting.

    Args:
        read_config: gives this rank's settings, or raises.

    Returns:
        The settings, with the run id that all share; the control that is active first; and this
        rank's first message.

    Raises:
        ConfigurationError: a setting that can't work here or on another rank, or that differs
            between them.
    """
    own_error: ConfigurationError | None = None
    try:
        config = read_config()
        mine = _RankSettings(
            error="",
            wanted_run_id=config.wanted_run_id,
            run_id=config.run_id,
            incarnation=uuid.uuid4().hex,
            control=str(config.control.to_document()),
            threshold_source=config.threshold_source,
        )
    except ConfigurationError as error:
        own_error, mine = error, _RankSettings(error=str(error))
    settings = ranks.gather_objects(mine)
    if own_error is not None:
        raise own_error
    _check_agreement(settings)
    if config.world_size > ranks.size:
        logger.warning(
            "torch.distributed was not initialised when the probe was built: each of the %d ranks"
            " reports its own tokens only, and applies a new control by itself.",
            config.world_size,
        )
    config, now = replace(config, run_id=settings[0].run_id), time.time()
    first = ControlSnapshot(version=0, control=config.control, author="trainer", requested_at=now)
    return (
        config,
        first,
        RunStarted(
            run_id=config.run_id,
            incarnation=settings[0].incarnation,
            rank=config.rank,
            world_size=config.world_size,
            name=config.name,
            project=config.project,
            started_at=now,
            probe_version=__version__,
            config=config.shown_config,
            tags=config.tags,
            capabilities=CAPABILITIES,
            planned_steps=config.planned_steps,
            initial_control=first,
        ),
    )


def announce(config: ProbeConfig) -> None:
    """Write the run's id and address to stderr, on rank 0 alone."""
    if config.rank or config.mode == "disabled":
        return
    if config.mode != "online":
        where = f"offline, reports wait in {config.home / 'spool'} (isentrope sync)"
    else:
        target = config.grpc_target
        where = (
            page_of(config)
            or f"reported to {target} (set ISENTROPE_URL, the address of its pages, as well)"
        )
    # A service or a closed terminal has no stderr, a window's may raise anything; training goes on
    # without this line.
    with suppress(Exception):
        sys.stderr.write(f"isentrope: run {config.run_id}, {where}\n")
    if config.run_id in _finished_runs:
        logger.warning(
            "Run %s had finished in this process; what follows is its next attempt, whose steps "
            "take the place of equal ones. Give each training a run id of its own, unless it "
            "continues from a checkpoint.",
            config.run_id,
        )


def page_of(config: ProbeConfig) -> str:
    """The address of the run's page; empty where it has none, or that is not known."""
    pages = None
    if config.mode == "online":
        pages = environment.pages_of(config.grpc_target)
    if pages is None:
        return ""
    return f"{pages}/runs/{config.run_id}"


def _check_agreement(settings: Sequence[_RankSettings]) -> None:
    for rank, own in enumerate(settings):
        if own.error:
            raise ConfigurationError(f"Rank {rank} can't begin: {own.error}")
    first = settings[0]
    for rank, own in enumerate(settings):
        for name, expected, got in (
            ("run_id", first.run_id, own.wanted_run_id or first.run_id),
            ("control", first.control, own.control),
            ("threshold_source", first.threshold_source, own.threshold_source),
        ):
            if got != expected:
                raise ConfigurationError(
                    f"All ranks must be given the same {name}: rank 0 has {expected}, rank {rank}"
                    f" has {got}."
                )


SHOWN_CALLS = 20


def error_text(error: BaseException) -> str:
    """An error as a run's page shows it: the last calls of its traceback, and what it is."""
    found = traceback.TracebackException.from_exception(error, limit=-SHOWN_CALLS)
    text = "".join(found.format())
    # Without what it was raised from, where that is too long: what is cut is the end.
    return (text if len(text) <= ERROR_CHARACTERS else "".join(found.format(chain=False))).rstrip()


OUTPUT_LINES, OUTPUT_BYTES = 200, 64 << 10
"""Read of each file that the process writes to."""


def last_output() -> str:
    """The last lines that this process, and what else writes to the same files, wrote to stdout and
    stderr. Empty where these are a terminal or a pipe, which keep nothing, and on systems other
    than Linux.

    What is written is not looked at while training: a copy of each line, or a stream in the place
    of the loop's, could slow or change the run.
    """
    found: dict[tuple[int, int], list[str]] = {}
    for number, stream in ((1, sys.stdout), (2, sys.stderr)):
        with suppress(Exception):
            stream.flush()
        with suppress(OSError):
            state = os.fstat(number)
            if stat.S_ISREG(state.st_mode):
                with open(f"/proc/self/fd/{number}", "rb") as file:
                    file.seek(max(0, state.st_size - OUTPUT_BYTES))
                    lines = file.read(OUTPUT_BYTES).decode(errors="replace").strip().split("\n")
                # Of a progress bar, which overwrites its line, the last state.
                found[state.st_dev, state.st_ino] = [
                    line.rstrip("\r").rpartition("\r")[2] for line in lines[-OUTPUT_LINES:]
                ]
    return "\n".join(line for lines in found.values() for line in lines).strip()


def last_unhandled_error() -> BaseException | None:
    """The last error that nothing handled; a notebook has such errors and continues."""
    # `last_exc` from Python 3.12 on, `last_value` before.
    # Not by getattr, which makes an error of each name that is missing, at each step.
    known = sys.__dict__
    error: BaseException | None = known.get("last_exc") or known.get("last_value")
    return error


def error_leaving_child() -> BaseException | None:
    """The error that is leaving the function of a multiprocessing process, whose end this is. One
    that was turned into an exit, as `torch.multiprocessing.spawn` does, is that error."""
    error = sys.exc_info()[1]
    if not isinstance(error, SystemExit):
        return error
    if error.code:
        return error.__context__
    return None


def _add_output(error: str) -> str:
    """The error of a failed run with the last lines of its output, as far as there is room."""
    room = ERROR_CHARACTERS - len(error) - len(OUTPUT)
    output = ""
    if room > 0:
        output = last_output()
    if output:
        return f"{error}{OUTPUT}{output[-room:]}"
    return error


_finished_runs: set[str] = set()
"""Ids of the runs that this process has finished."""
LONGEST_END_SECONDS = 1.0
"""How long the end of a run may take."""
LAST_EXCHANGE_SHARE = 0.6
"""Share of it for the other ranks' part of the last report: ranks end within moments of each other,
or hang."""


class RunEnd:
    """Ends the run of one rank once. It outlives its probe, which may be gone before the process
    is: a local, say."""

    def __init__(self, parts: Parts, logged: dict[str, float | Tensor]) -> None:
        """Build it after the transport is open: what is registered last is called first, and the
        transport closes itself. In mode disabled the process's end is not the run's. `logged`: what
        the loop logged since its last step."""
        self._parts, self._logged = parts, logged
        self._process = os.getpid()
        self.finished = False
        self._earlier_error = id(last_unhandled_error())
        self._child_end: Finalize | None = None
        at_process_end = parts.config.mode != "disabled"
        if at_process_end:
            atexit.register(self._process_ends)
        if at_process_end and parent_process() is not None:
            # A process of multiprocessing calls no function of atexit.
            self._child_end = Finalize(None, self._process_ends, exitpriority=0)

    def step_closed(self) -> None:
        """Note that training continues: errors before this step have ended nothing."""
        self._earlier_error = id(last_unhandled_error())

    def finish(self, status: str, error: str = "") -> None:
        """Send the last message and close transport and trackers. Safe to repeat: the first call
        counts."""
        if self.finished:
            return
        self.finished = True
        if status == "finished":
            _finished_runs.add(self._parts.config.run_id)
        atexit.unregister(self._process_ends)
        if self._child_end is not None:
            self._child_end.cancel()
        end = time.monotonic() + LONGEST_END_SECONDS
        with self._parts.guard.protect("finishing the run"):
            if status == "failed" and self._parts.config.texts:
                error = _add_output(error)
            message = RunFinished(
                status=status,
                finished_at=time.time(),
                step=self._parts.control.last_step,
                error=cut(error, ERROR_CHARACTERS),
                outcomes=self._parts.control.pending_outcomes,
            )
            self._parts.ranks.settle(LAST_EXCHANGE_SHARE * LONGEST_END_SECONDS)
            self._report_rest(completes=status == "finished")
            self._parts.transport.put(ReadyMessage(message))
            self._parts.transport.close(timeout_seconds=end - time.monotonic())
            self._parts.trackers.close(timeout_seconds=end - time.monotonic())

    def _report_rest(self, *, completes: bool) -> None:
        """Report what was logged since the last step as of that step. Unless it `completes` the
        run, it may be of a step that was begun: then no number of the last step gives way to it."""
        step = self._parts.control.last_step or 0
        build = self._parts.reports.rest_of(
            step, self._logged, replaces=completes and not self._parts.control.step_is_open
        )
        if build is not None:
            self._parts.transport.put(self._parts.trackers.also(step, build))
        self._logged.clear()

    def _process_ends(self) -> None:
        # The run belongs to the parent of a forked child.
        if os.getpid() != self._process:
            return
        error = error_leaving_child() or last_unhandled_error()
        if error is None or id(error) == self._earlier_error:
            self.finish("ended")
        else:
            self.finish("failed", error_text(error))
