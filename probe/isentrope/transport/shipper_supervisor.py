"""Starts the shipper beside the training process, and restarts it when it died."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from pathlib import Path

from isentrope.transport.files import is_held_by_another_process
from isentrope.transport.spool_folder import SpoolFolder

logger = logging.getLogger(__name__)

FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 60.0
STEADY_SECONDS = 30.0
"""After a shipper that ran this long the next restart begins with a short pause again."""


class ShipperSupervisor:
    """Keeps one shipper process running on a spool folder. Used by the writer thread alone."""

    def __init__(self, folder: SpoolFolder, *, home: Path, token: str | None) -> None:
        """
        Args:
            folder: of the spool.
            home: where the shipper looks for the owner's token.
            token: for the server; None: the one that the shipper finds in the home.
        """
        self._folder = folder
        self._environment = _shipper_environment(home, token)
        self._process: subprocess.Popen[bytes] | None = None
        self._started_at = 0.0
        self._pause_seconds = FIRST_PAUSE_SECONDS
        self._not_before = 0.0

    def keep_running(self, *, last: bool = False) -> None:
        """Start the shipper if none runs and the pause after its last end is over.

        Args:
            last: this process ends: start one whatever the pause, for what is left to deliver.

        Raises:
            OSError: the process can't be started.
        """
        now = time.monotonic()
        if self._process is not None:
            status = self._process.poll()
            # The shell ends a moment after a shipper that was killed. Of two shippers one delivers, whichever has the lock.
            if status is None and (not last or is_held_by_another_process(self._folder.shipper_lock)):
                return
            self._process = None
            if status is not None:
                self._plan_restart(status, now)
        if last or now >= self._not_before:
            self._started_at = now
            self._process = self._start()

    def _plan_restart(self, status: int, now: float) -> None:
        if now - self._started_at >= STEADY_SECONDS:
            self._pause_seconds = FIRST_PAUSE_SECONDS
        logger.warning(
            "The shipper ended with status %d and starts again in %.0f s; reports stay in %s meanwhile.",
            status,
            self._pause_seconds,
            self._folder.path,
        )
        self._not_before = now + self._pause_seconds
        self._pause_seconds = min(2 * self._pause_seconds, LONGEST_PAUSE_SECONDS)

    def _start(self) -> subprocess.Popen[bytes]:
        # -P: a grpc.py or logging.py lying in the user's working folder must not be taken for the real one.
        shipper = [sys.executable, "-P", "-m", "isentrope.transport.shipper", str(self._folder.path)]
        # A shell between them: Ray kills the children of a worker that exits, not their children, and the last reports are
        # still to be delivered then.
        command = ["/bin/sh", "-c", '"$@" & wait $!', "sh", *shipper, "--trainer", str(os.getpid())]
        with self._folder.errors.open("wb") as errors:
            return subprocess.Popen(
                command,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                # A Ctrl-C in the trainer's terminal must not reach the process that delivers its last reports.
                start_new_session=True,
            )


def _shipper_environment(home: Path, token: str | None) -> dict[str, str]:
    environment = dict(os.environ)
    environment["ISENTROPE_HOME"] = str(home.absolute())
    environment["GRPC_ENABLE_FORK_SUPPORT"] = "0"
    # gRPC's stderr goes to a file of unlimited size; the shipper's own log names failed calls.
    environment.setdefault("GRPC_VERBOSITY", "NONE")
    if token is not None:
        # The environment, not the command line, which any user of the machine can read.
        environment["ISENTROPE_TOKEN"] = token
    return environment
