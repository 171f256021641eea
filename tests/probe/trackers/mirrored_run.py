"""Three steps of a run that is mirrored, and the wait until its trackers have all of them."""

from __future__ import annotations

import math
import threading

import isentrope
from tests.probe.tiny_loop import TinyLoop, probe_and_transport, reports, run_steps
from tests.probe.trackers.own_tracker import wait_until


def finish(probe: isentrope.Probe) -> None:
    probe.finish()
    wait_for_trackers()


def wait_for_trackers() -> None:
    """A slow machine may take longer for a database than a run's end may take."""
    wait_until(lambda: not any(thread.name.startswith("isentrope-tracker") for thread in threading.enumerate()))


def mirrored_steps(trackers: object) -> list[dict[str, float]]:
    """Three steps with a NaN and an infinity in the first; what was reported."""
    probe, transport = probe_and_transport(run_id="mirrored", trackers=trackers)
    probe.log({"loss": math.nan, "kl": math.inf})
    run_steps(TinyLoop(), probe, 3, first=7)
    finish(probe)
    return [dict(report.scalars) for report in reports(transport)]
