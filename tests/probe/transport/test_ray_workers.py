"""What a worker that Ray kills has reported still arrives, on a real Ray."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from isentrope.transport.spool_folder import find_spool_folders
from tests.probe.transport.fake_telemetry import FakeTelemetry, free_port

ROOT = Path(__file__).parents[3]
KILLED_BY_RAY = """
import os, time, psutil, ray
from tests.ray_node import started

started(lambda: ray.init(num_cpus=1, include_dashboard=False, logging_level="ERROR", log_to_driver=False))

@ray.remote
class Worker:
    def train(self):
        import isentrope
        self.probe = isentrope.Probe("killed")
        self.probe.log({"reward/mean": 1.0})
        self.probe.step(1)
        while self.probe._transport.statistics().spooled < 2: time.sleep(0.01)
        return psutil.Process().pid, [child.pid for child in psutil.Process().children()]

def running(pids):
    return [pid for pid in pids if psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie"]

worker = Worker.remote()
own, children = ray.get(worker.train.remote())
ray.kill(worker)
while running([own, *children]): time.sleep(0.1)
print(len(children))
"""


@pytest.mark.slow
def test_the_reports_of_a_worker_that_ray_kills_arrive_with_the_server(tmp_path: Path) -> None:
    server = FakeTelemetry(free_port())
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ISENTROPE_")}
    environment |= {"ISENTROPE_HOME": str(tmp_path), "ISENTROPE_GRPC": server.target}
    command = [sys.executable, "-c", KILLED_BY_RAY]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200, check=True, cwd=ROOT)
    assert ran.stdout.splitlines()[-1] == "1"  # Ray has killed the worker, and what it had started
    assert len(find_spool_folders(tmp_path)) == 1  # the server was away
    server.start()
    try:
        end = time.monotonic() + 30.0
        while find_spool_folders(tmp_path) and time.monotonic() < end:
            time.sleep(0.1)
        # The start and the step.
        assert len(server.payloads) >= 2
        assert find_spool_folders(tmp_path) == []
    finally:
        server.stop()
