"""A server that dies at a named point: the real one, with the point patched from outside.

    python -m tests.faults.crashing_server POINT N up ...

It kills itself with SIGKILL when it comes to the point for the N-th time.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import Connection, Engine, event

from isentrope.cli.frame import main as command_line
from isentrope_server.store import writer


class Fuse:
    """Burns down by one each time it is touched."""

    def __init__(self, times: int) -> None:
        self._times = times

    def touch(self) -> None:
        self._times -= 1
        if self._times <= 0:
            # An acknowledgement sent too early has time to arrive.
            time.sleep(0.2)
            os.kill(os.getpid(), signal.SIGKILL)


def before_commit(fuse: Fuse) -> None:
    """All statements of a group of pushes are executed, COMMIT is not."""

    @event.listens_for(Engine, "commit")
    def _on_commit(connection: Connection) -> None:
        fuse.touch()


def after_commit(fuse: Fuse) -> None:
    """COMMIT is done, nothing is acknowledged."""
    commit = writer.Writer._commit

    def commit_and_die(self: writer.Writer, connection: Connection, jobs: Sequence[Any]) -> None:
        job_type = type(jobs[0])
        settle = job_type.settle

        def die_or_settle(job: Any) -> None:
            fuse.touch()
            settle(job)

        job_type.settle = die_or_settle
        try:
            commit(self, connection, jobs)
        finally:
            job_type.settle = settle

    writer.Writer._commit = commit_and_die  # type: ignore[method-assign]


POINTS: dict[str, Callable[[Fuse], None]] = {
    "before-commit": before_commit,
    "after-commit": after_commit,
}


if __name__ == "__main__":
    POINTS[sys.argv[1]](Fuse(int(sys.argv[2])))
    sys.argv = ["isentrope", *sys.argv[3:]]
    command_line()
