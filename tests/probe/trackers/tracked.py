"""A tracker that may hang or fail, and three steps of a run with trackers."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping

import isentrope
from tests.probe.tiny_loop import TinyLoop, probe_and_transport, reports, run_steps
from tests.system.running_server import wait_for

Written = list[tuple[int, dict[str, float]]]


class OwnTracker:
    """A function of (step, scalars), as a user would hand it over."""

    def __init__(self) -> None:
        self.written: Written = []
        self.threads: set[int] = set()
        self.opened = threading.Event()
        self.opened.set()
        """Cleared: it hangs."""
        self.failing = False
        self.calls = 0

    def __call__(self, step: int, scalars: Mapping[str, float]) -> None:
        self.calls += 1
        self.threads.add(threading.get_ident())
        self.opened.wait()
        if self.failing:
            raise ConnectionError("the tracker is away")
        self.written.append((step, dict(scalars)))

    def wait_for_calls(self, calls: int) -> None:
        wait_for(lambda: self.calls >= calls)


def finish(probe: isentrope.Probe) -> None:
    probe.finish()
    wait_for_trackers()


def wait_for_trackers() -> None:
    """A slow machine may take longer for a database than a run's end may take."""
    wait_for(
        lambda: not any(thread.name == "isentrope-trackers" for thread in threading.enumerate())
    )


def three_steps(trackers: object) -> list[dict[str, float]]:
    """Steps 7 to 9 with a NaN and an infinity in the first; what was reported."""
    probe, transport = probe_and_transport(run_id="mirrored", trackers=trackers)
    probe.log({"loss": math.nan, "kl": math.inf})
    run_steps(TinyLoop(), probe, 3, first=7)
    finish(probe)
    return [dict(report.scalars) for report in reports(transport)]
