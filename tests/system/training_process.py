"""A training process reduced to what matters here: a loop that reports each step and obeys its control.

    python -m tests.system.training_process RUN_ID STEPS STEP_SECONDS

Prints `step N` after each report is put, and at the end one JSON line of measurements. ISENTROPE_* says where to.
"""

from __future__ import annotations

import json
import os
import sys
import time

from isentrope.control import ControlState
from isentrope.transport.spool import open_transport
from isentrope.transport.transport import Transport
from isentrope_wire import environment
from isentrope_wire.control import Control
from isentrope_wire.reports import ControlSnapshot, RunFinished, RunStarted, StepReport

CAPABILITIES = ("method:none", "method:clip_v")
NUMBERS_IN_A_REPORT = 60


class ReportingLoop:
    """Puts one report per step, as the probe does, and measures how long it was kept."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        initial = ControlSnapshot(version=0, control=Control(), author="run", requested_at=time.time())
        self._control = ControlState(initial, CAPABILITIES)
        self.longest_put_seconds = 0.0
        self.longest_boundary_seconds = 0.0

    def step(self, step: int) -> None:
        report = StepReport(
            step=step,
            recorded_at=time.time(),
            scalars={"entropy/mean": float(step)} | {f"filler/{i}": 0.5 * i for i in range(NUMBERS_IN_A_REPORT)},
            control_version=self._control.active.version,
            outcomes=self._control.outcomes_at(step),
        )
        start = time.perf_counter()
        self._transport.put(lambda: report)
        put = time.perf_counter()
        self._control.reported(step, sent=True)
        self._control.decide(self._transport.desired_control(), now=time.time())
        boundary = time.perf_counter()
        self.longest_put_seconds = max(self.longest_put_seconds, put - start)
        self.longest_boundary_seconds = max(self.longest_boundary_seconds, boundary - put)

    def finish(self, step: int) -> float:
        """Say goodbye; returns how long that took, in seconds."""
        goodbye = RunFinished(
            status="finished", finished_at=time.time(), step=step, outcomes=self._control.pending_outcomes
        )
        start = time.perf_counter()
        self._transport.put(lambda: goodbye)
        self._transport.close()
        return time.perf_counter() - start


def main() -> None:
    run_id, steps, step_seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    run = RunStarted(
        run_id=run_id,
        incarnation=f"life-{os.getpid()}",
        rank=0,
        world_size=1,
        name=run_id,
        project="system",
        started_at=time.time(),
        probe_version="0.1.0",
        capabilities=CAPABILITIES,
        planned_steps=steps,
    )
    transport = open_transport(
        run, mode="online", home=environment.home(), grpc_target=environment.grpc_target(), token=None
    )
    loop = ReportingLoop(transport)
    for step in range(steps):
        loop.step(step)
        print("step", step, flush=True)
        time.sleep(step_seconds)
    close_seconds = loop.finish(steps - 1)
    statistics = transport.statistics()
    measured = {
        "longest_put_seconds": loop.longest_put_seconds,
        "longest_boundary_seconds": loop.longest_boundary_seconds,
        "close_seconds": close_seconds,
        "accepted": statistics.accepted,
        "dropped": statistics.dropped,
        "imported": [name for name in ("grpc", "socket", "httpx", "torch") if name in sys.modules],
        "sockets": _open_sockets(),
    }
    print(json.dumps(measured), flush=True)


def _open_sockets() -> list[str]:
    names = (f"/proc/self/fd/{descriptor}" for descriptor in os.listdir("/proc/self/fd"))
    return [target for name in names if os.path.islink(name) and (target := os.readlink(name)).startswith("socket:")]


if __name__ == "__main__":
    main()
