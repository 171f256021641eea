"""Planted bugs, each a small change of one function's behaviour: the matrix is worth something if
it finds each of them.

Server, trainer and shipper are processes of their own. Python imports `seam/sitecustomize.py` at
the start of each, which wraps the function when its module is imported.
"""

from __future__ import annotations

import functools
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import Any

REPOSITORY = Path(__file__).parents[2]
SEAM = Path(__file__).parent / "seam"

Function = Callable[..., Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bug:
    """A wrong version of one function, which breaks a promise."""

    name: str
    module: str
    function: str
    """Its name in the module, e.g. `ControlState.decide`."""
    wrong: Callable[[Function], Function]
    """Makes the wrong version from the right one."""
    fault: str
    """The one that finds it."""
    shows: str
    """Part of what the oracle says then: a fault that fails for another reason has not found it."""

    def plant(self, module: ModuleType) -> None:
        """
        Raises:
            AttributeError: the module no longer holds the function.
        """
        *path, last = self.function.split(".")
        owner = attrgetter(".".join(path))(module) if path else module
        right = getattr(owner, last)
        setattr(owner, last, functools.wraps(right)(self.wrong(right)))

    def plant_when_imported(self) -> None:
        """Plant it in this process, without importing anything now."""
        sys.meta_path.insert(0, _Planter(self))


class _Planter(importlib.abc.MetaPathFinder):
    def __init__(self, bug: Bug) -> None:
        self._bug = bug

    def find_spec(self, fullname: str, *_: object) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._bug.module:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        assert spec is not None
        loader: Any = spec.loader
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            self._bug.plant(module)

        loader.exec_module = exec_module
        return spec


def acknowledged_before_commit(run: Function) -> Function:
    def wrong(job: Any, connection: Any) -> Any:
        events = run(job, connection)
        if job.error is None:
            job.settle()
        return events

    return wrong


def without_incarnation(find: Function) -> Function:
    first: dict[tuple[str, int], str] = {}

    def wrong(connection: Any, run_id: str, incarnation: str, rank: int) -> Any:
        return find(connection, run_id, first.setdefault((run_id, rank), incarnation), rank)

    return wrong


def newest_decided_again(decide: Function) -> Function:
    def wrong(control: Any, requested: Any, *, now: float) -> Any:
        if (
            requested is not None
            and requested.version
            and requested.version >= control.newest_decided
        ):
            control._decided.pop(requested.version, None)
        return decide(control, requested, now=now)

    return wrong


def decided_again_after_a_reconnect(decide: Function) -> Function:
    def wrong(control: Any, requested: Any, *, now: float) -> Any:
        if requested is not None and requested.version and requested is not control.active:
            control._decided.pop(requested.version, None)
        return decide(control, requested, now=now)

    return wrong


def never_expired(decide: Function) -> Function:
    def wrong(control: Any, requested: Any, *, now: float) -> Any:
        return decide(control, requested and replace(requested, expires_at=None), now=now)

    return wrong


def acknowledged_when_read(next_batch: Function) -> Function:
    def wrong(reader: Any, max_records: int, max_bytes: int) -> Any:
        batch = next_batch(reader, max_records, max_bytes)
        if batch:
            reader.acknowledge(batch[-1].seq)
        return batch

    return wrong


def gaps_skipped(missing_before: Function) -> Function:
    def wrong(reader: Any, seq: int, reason: str | None = None) -> Any:
        if reader._next_seq == 1:
            return missing_before(reader, seq, reason)
        reader._next_seq = max(seq, reader._next_seq)
        return []

    return wrong


def refused_not_numbered(add: Function) -> Function:
    def wrong(writer: Any, entry: Any) -> None:
        if not hasattr(entry, "count"):
            add(writer, entry)

    return wrong


class AnyHash(bytes):
    """Equals every hash."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, bytes)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = bytes.__hash__


def hashes_not_compared(stored_hashes: Function) -> Function:
    def wrong(*arguments: Any, **named: Any) -> Any:
        return dict.fromkeys(stored_hashes(*arguments, **named), AnyHash())

    return wrong


def nothing_known(stored_hashes: Function) -> Function:
    return lambda *arguments, **named: {}


def acknowledged_across_gaps(contiguous_through: Function) -> Function:
    def wrong(connection: Any, stream: Any, just_stored: Sequence[int] = (), **named: Any) -> Any:
        return max(contiguous_through(connection, stream, just_stored, **named), *just_stored, 0)

    return wrong


CHANCES = 10
"""A server is killed at a moment that is drawn: in the short form of its fault, about a third of
the draws show the bug."""

BUGS = (
    Bug(
        name="ack before commit",
        module="isentrope_server.store.writer",
        function="_Job.run",
        wrong=acknowledged_before_commit,
        fault="server_killed_before_commit",
        shows="had acknowledged these records and has them no longer",
    ),
    Bug(
        name="key without incarnation",
        module="isentrope_server.store.streams",
        function="find",
        wrong=without_incarnation,
        fault="two_attempts_with_the_same_numbers",
        shows="is not known here",
    ),
    Bug(
        name=">= in the version compare",
        module="isentrope.control",
        function="ControlState.decide",
        wrong=newest_decided_again,
        fault="two_clients_racing",
        shows="the process decided twice about a version",
    ),
    Bug(
        name="segment deleted before the acknowledgement",
        module="isentrope.transport.spool_reader",
        function="SpoolReader.next_batch",
        wrong=acknowledged_when_read,
        fault="resetting_network",
        shows="is missing: StoredGap",
    ),
    Bug(
        name="payload hash not compared",
        module="isentrope_server.store.reports.records",
        function="stored_hashes",
        wrong=hashes_not_compared,
        fault="contradicting_payloads",
        shows="contradictions were answered by",
    ),
    Bug(
        name="gap not recorded",
        module="isentrope.transport.spool_reader",
        function="SpoolReader._missing_before",
        wrong=gaps_skipped,
        fault="truncated_segment",
        shows="records vanished",
    ),
    Bug(
        name="refused reports take no number",
        module="isentrope.transport.spool_writer",
        function="SpoolWriter._add",
        wrong=refused_not_numbered,
        fault="spool_disk_full",
        shows="is stored with another payload",
    ),
    Bug(
        name="control applied twice after a reconnect",
        module="isentrope.control",
        function="ControlState.decide",
        wrong=decided_again_after_a_reconnect,
        fault="control_over_a_breaking_connection",
        shows="the process decided twice about a version",
    ),
    Bug(
        name="duplicate counted as new",
        module="isentrope_server.store.reports.records",
        function="stored_hashes",
        wrong=nothing_known,
        fault="duplicate_reordered_and_replayed_batches",
        shows="UNAVAILABLE",
    ),
    Bug(
        name="acknowledged across a gap",
        module="isentrope_server.store.streams",
        function="contiguous_through",
        wrong=acknowledged_across_gaps,
        fault="acknowledgement_stops_at_a_gap",
        shows="records behind a gap were acknowledged",
    ),
    Bug(
        name="time to live not looked at",
        module="isentrope.control",
        function="ControlState.decide",
        wrong=never_expired,
        fault="stale_invalid_and_late_control",
        shows="the stale change",
    ),
)


def run_planted(names: Sequence[str]) -> int:
    """Plant one bug after another; returns how many went unnoticed.

    Args:
        names: of bugs; all of them without a name.
    """
    started = time.monotonic()
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    chosen = [bug for bug in BUGS if not names or bug.name in names]
    unnoticed = [bug.name for bug in chosen if not any(_is_found(bug) for _ in range(CHANCES))]
    print(
        f"\n{len(chosen) - len(unnoticed)} of {len(chosen)} bugs were caught,"
        f" {time.monotonic() - started:.0f} s"
    )
    if unnoticed:
        print(f"Not caught: {', '.join(unnoticed)}")
    return len(unnoticed)


def environment_with(bug: Bug) -> dict[str, str]:
    """In which every Python process has the bug."""
    return dict(os.environ) | {
        "PLANTED_BUG": bug.name,
        "PYTHONPATH": f"{SEAM}{os.pathsep}{REPOSITORY}",
    }


def _is_found(bug: Bug) -> bool:
    with subprocess.Popen(
        [sys.executable, "-m", "tests.faults", bug.fault, "--short", "--forget"],
        cwd=REPOSITORY,
        env=environment_with(bug),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as matrix:
        try:
            said, complained = matrix.communicate()
        except BaseException:
            # Not killed: it has processes and disks of its own to clear away.
            matrix.terminate()
            raise
    caught = matrix.returncode == 1 and bug.shows in said
    words = next(
        (line.strip() for line in said.splitlines() if bug.shows in line), said + complained
    )
    print(
        f"{bug.name}: {'caught by' if caught else 'NOT caught by'} {bug.fault}: {words[:400]}",
        flush=True,
    )
    return caught
