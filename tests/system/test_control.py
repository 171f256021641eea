"""From a push to the step at which it is active, through real processes: server, shipper, training
loop with a probe."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import isentrope
from tests.system.running_server import RunningServer, wait_for

ROOT = Path(__file__).parents[2]
# So long that on a busy machine, too, a step lasts longer than the way to it.
LOOP = [sys.executable, "-m", "tests.system.observed_loop", "60", "0.8"]


def test_control_is_applied_within_two_steps(tmp_path: Path) -> None:
    with (
        RunningServer(tmp_path / "home") as server,
        isentrope.Client(server.url, server.token) as client,
        subprocess.Popen(
            LOOP, cwd=ROOT, env=server.environment, stdout=subprocess.PIPE, text=True
        ) as loop,
    ):
        assert loop.stdout is not None
        run = loop.stdout.readline().strip()

        def is_known(step: int) -> bool:
            return any(one.id == run and (one.step or 0) >= step for one in client.runs())

        wait_for(lambda: is_known(1), 60, "the step is known")
        asked = {
            "method": "clip_v",
            "mu_low": 1.0,
            "mu_high": 1.0,
            "scope": "all",
            "reason": "entropy is falling",
        }
        client.set_control(run, **asked)  # type: ignore[arg-type]
        pushed_at = client.run(run).step
        item = client.wait_for_control(run, 1)
        applied_step = item.applied_step
        assert pushed_at is not None
        assert applied_step is not None
        # The step that runs while the push arrives can't change any more: it is pushed_at + 1.
        assert applied_step <= pushed_at + 1 + 2
        assert {name: getattr(item, name) for name in asked} == asked
        active = client.control(run).active
        assert active is not None
        assert (active.version, active.mu_high) == (1, 1.0)
        wait_for(lambda: is_known(applied_step), 60, "the step is known")
        series = client.metrics(run, ["clip/fraction"])
        clipped = dict(zip(series["step"], series["clip/fraction"], strict=True))
        assert clipped[applied_step - 1] == 0.0
        assert clipped[applied_step] > 0.0
        loop.kill()
