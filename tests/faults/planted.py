"""Bugs planted in a copy of the sources: the matrix is worth something if it finds each of them."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
PACKAGES = ("isentrope_wire", "isentrope", "isentrope_server")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bug:
    """One change of the sources that breaks a promise."""

    name: str
    file: str
    """Below the folder that holds the packages, e.g. `isentrope/control.py`."""
    right: str
    wrong: str
    fault: str
    """The one that finds it."""
    shows: str
    """Part of what the oracle says then: a fault that fails for another reason has not found it."""

    def planted_in(self, source: str) -> str:
        """
        Raises:
            AssertionError: the source no longer holds what this bug changes.
        """
        assert source.count(self.right) == 1, f"{self.file} no longer holds what {self.name!r} changes: {self.right}"
        return source.replace(self.right, self.wrong)


CHANCES = 10
"""A server is killed at a moment that is drawn: in the short form of its fault, about a third of the draws show the bug."""

BUGS = (
    Bug(
        name="ack before commit",
        file="isentrope_server/store/writer.py",
        right="""                events.extend(job.run(connection, in_savepoint=False))
""",
        wrong="""                events.extend(job.run(connection, in_savepoint=False))
                job.settle()
""",
        fault="server_killed_before_commit",
        shows="had acknowledged these records and has them no longer",
    ),
    Bug(
        name="key without incarnation",
        file="isentrope_server/store/streams.py",
        right="runs.c.id == run_id, streams.c.incarnation == incarnation, streams.c.rank == rank",
        wrong="runs.c.id == run_id, streams.c.rank == rank",
        fault="two_attempts_with_the_same_numbers",
        shows="is not known here",
    ),
    Bug(
        name=">= in the version compare",
        file="isentrope/control.py",
        right="if known is not None:",
        wrong="if known is not None and (not desired.version >= newest_decided or not desired.version):",
        fault="two_clients_racing",
        shows="the process decided twice about a version",
    ),
    Bug(
        name="segment deleted before the acknowledgement",
        file="isentrope/transport/shipper.py",
        right="            acked_through, quarantined = connection.push(batch)\n",
        wrong="            self._reader.acknowledge(batch[-1].seq)\n"
        "            acked_through, quarantined = connection.push(batch)\n",
        fault="resetting_network",
        shows="is missing: StoredGap",
    ),
    Bug(
        name="payload hash not compared",
        file="isentrope_server/ingest/intake.py",
        right="elif known[arrival.seq] != arrival.payload_hash:",
        wrong="elif len(known[arrival.seq]) != len(arrival.payload_hash):",
        fault="contradicting_payloads",
        shows="contradictions were answered by",
    ),
    Bug(
        name="gap not recorded",
        file="isentrope/transport/spool_reader.py",
        right="        if first > last:\n            return []\n",
        wrong="        if first > last or self._next_seq > 1:\n            self._next_seq = max(seq, first)\n            return []\n",
        fault="truncation_at_every_byte",
        shows="records vanished",
    ),
    Bug(
        name="refused reports take no number",
        file="isentrope/transport/spool_writer.py",
        right="        if isinstance(entry, Refused):\n",
        wrong="        if isinstance(entry, Refused):\n            return\n        if isinstance(entry, Refused):\n",
        fault="spool_disk_full",
        shows="is stored with another payload",
    ),
    Bug(
        name="control applied twice after a reconnect",
        file="isentrope/control.py",
        right="if known is not None:",
        wrong="if known is not None and (desired is self._in_force or desired.version == 0):",
        fault="control_over_a_breaking_connection",
        shows="the process decided twice about a version",
    ),
    Bug(
        name="duplicate counted as new",
        file="isentrope_server/ingest/intake.py",
        right="        if arrival.seq not in known:\n",
        wrong="        if known.get(arrival.seq) in (None, arrival.payload_hash):\n",
        fault="duplicate_reordered_and_replayed_batches",
        shows="UNAVAILABLE",
    ),
    Bug(
        name="acknowledged across a hole",
        file="isentrope_server/store/streams.py",
        right="        if first > through + 1:\n            break\n",
        wrong="",
        fault="acknowledgement_stops_at_a_gap",
        shows="records behind a gap were acknowledged",
    ),
    Bug(
        name="time to live not looked at",
        file="isentrope/control.py",
        right="if desired.expires_at is not None and now > desired.expires_at:",
        wrong="if desired.expires_at is not None and now > 2 * desired.expires_at:",
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
    with tempfile.TemporaryDirectory(prefix="planted-") as folder:
        copy = copy_of_the_sources(Path(folder))
        unnoticed = [bug.name for bug in chosen if not _is_caught(bug, copy)]
    print(f"\n{len(chosen) - len(unnoticed)} of {len(chosen)} bugs were caught, {time.monotonic() - started:.0f} s")
    if unnoticed:
        print(f"Not caught: {', '.join(unnoticed)}")
    return len(unnoticed)


def copy_of_the_sources(folder: Path) -> Path:
    """The packages side by side, and what the matrix is made of; where they stand, they are what a process imports."""
    ignore = shutil.ignore_patterns("__pycache__", ".*")
    for name in PACKAGES:
        found = importlib.util.find_spec(name)
        assert found is not None
        assert found.origin is not None
        shutil.copytree(Path(found.origin).parent, folder / name, ignore=ignore)
    for name in ("tests", "docker"):
        shutil.copytree(REPOSITORY / name, folder / name, ignore=ignore)
    return folder


def _is_caught(bug: Bug, copy: Path) -> bool:
    source = copy / bug.file
    healthy = source.read_text(encoding="utf-8")
    source.write_text(bug.planted_in(healthy), encoding="utf-8")
    try:
        return any(_is_found(bug, copy) for _ in range(CHANCES))
    finally:
        source.write_text(healthy, encoding="utf-8")


def _is_found(bug: Bug, copy: Path) -> bool:
    with subprocess.Popen(
        [sys.executable, "-m", "tests.faults", bug.fault, "--short", "--forget"],
        cwd=copy,
        env=dict(os.environ) | {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"},
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
    words = next((line.strip() for line in said.splitlines() if bug.shows in line), said + complained)
    print(f"{bug.name}: {'caught by' if caught else 'NOT caught by'} {bug.fault}: {words[:400]}", flush=True)
    return caught
