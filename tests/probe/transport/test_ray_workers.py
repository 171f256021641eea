"""What Ray does to the side process of a worker that it kills, on a real Ray."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from isentrope.transport.spool_folder import find_spool_folders
from isentrope.transport.sync import SyncOutcome, sync_spools
from tests.probe.transport.fake_telemetry import FakeTelemetry, free_port

KILLED_BY_RAY = """
import os, sys, time, ray

ray.init(num_cpus=1, include_dashboard=False, logging_level="ERROR", log_to_driver=False)

@ray.remote
class Worker:
    def train(self):
        import isentrope
        probe = isentrope.Probe("killed")
        probe.log({"reward/mean": 1.0})
        probe.step(1)
        while probe._transport.statistics().spooled < 2: time.sleep(0.01)
        self.probe = probe
        return os.getpid(), probe._transport._supervisor.pid

def runs(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False

worker = Worker.remote()
own, shipper = ray.get(worker.train.remote())
ray.kill(worker)
while runs(own): time.sleep(0.1)
time.sleep(0.5)
print(runs(shipper))
"""


@pytest.mark.slow
@pytest.mark.parametrize("kills_children", [True, False])
def test_ray_kills_the_side_process_unless_it_is_started_not_to(tmp_path: Path, kills_children: bool) -> None:
    server = FakeTelemetry(free_port())
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ISENTROPE_")} | {
        "ISENTROPE_HOME": str(tmp_path),
        "ISENTROPE_GRPC": server.target,
        "RAY_kill_child_processes_on_worker_exit": "1" if kills_children else "0",
    }
    ran = subprocess.run(
        [sys.executable, "-c", KILLED_BY_RAY], env=environment, capture_output=True, text=True, timeout=100, check=True
    )
    assert ran.stdout.split()[-1] == str(not kills_children)
    assert len(find_spool_folders(tmp_path)) == 1  # the server was away
    server.start()
    try:
        if kills_children:
            (result,) = sync_spools(find_spool_folders(tmp_path), target=None, give_up_after_seconds=20.0)
            assert result.outcome is SyncOutcome.DELIVERED
        end = time.monotonic() + 30.0
        while find_spool_folders(tmp_path) and time.monotonic() < end:
            time.sleep(0.1)
        # The start and the step.
        assert len(server.payloads) >= 2
        assert find_spool_folders(tmp_path) == []
    finally:
        server.stop()
