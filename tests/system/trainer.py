"""Starts a training process for a test, follows it, and looks at what its spool has come to."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from isentrope.transport.spool_folder import ShipperState, ShipperStatus, SpoolFolder, folder_name

REPOSITORY = Path(__file__).parents[2]


class Trainer:
    """One training process with a home of its own. `with` ends it, and its shipper, for good."""

    def __init__(
        self, home: Path, environment: dict[str, str], run_id: str, *, steps: int, step_seconds: float
    ) -> None:
        self.home = home
        self.run_id = run_id
        command = [sys.executable, "-m", "tests.system.training_process", run_id, str(steps), str(step_seconds)]
        self.process = subprocess.Popen(
            command,
            cwd=REPOSITORY,
            env=environment | {"ISENTROPE_HOME": str(home)},
            stdout=subprocess.PIPE,
            text=True,
        )
        self.last_step = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
        if self.folder.exists:
            # A shipper without its folder ends by itself; this one should end before the test does.
            wait_until(lambda: self.status().state in (ShipperState.DRAINED, ShipperState.GAVE_UP), 90.0)

    @property
    def folder(self) -> SpoolFolder:
        """The spool, as it is, will be or was: delivered, it is gone."""
        life = f"life-{self.process.pid}"
        return SpoolFolder(self.home / "spool" / folder_name(self.run_id) / life / "rank-0")

    def status(self) -> ShipperStatus:
        """What the shipper says of itself; of a spool that is gone, that it is drained."""
        if not self.folder.exists and self.process.poll() is not None:
            return ShipperStatus(state=ShipperState.DRAINED)
        return ShipperStatus.read(self.folder.status) or ShipperStatus()

    def run_to(self, step: int) -> None:
        """Follow the process until it has put the report of `step`."""
        assert self.process.stdout is not None
        while self.last_step < step:
            line = self.process.stdout.readline()
            assert line.startswith("step "), f"the training process said {line!r}"
            self.last_step = int(line.split()[1])

    def finish(self) -> dict[str, Any]:
        """Follow the process to its end; returns what it measured."""
        assert self.process.stdout is not None
        # Not by communicate: it would pass over what was read ahead of the last line.
        output = self.process.stdout.read()
        assert self.process.wait(timeout=120) == 0
        measured: dict[str, Any] = json.loads(output.splitlines()[-1])
        return measured

    def wait_until_delivered(self, seconds: float = 120.0) -> None:
        """Until the shipper says that everything is acknowledged and the trainer is gone.

        A shipper whose server was long away may have just begun a pause of 30 s.
        """
        wait_until(lambda: self.status().state is ShipperState.DRAINED, seconds)


def wait_until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    """
    Raises:
        AssertionError: it did not come true in time.
    """
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)
