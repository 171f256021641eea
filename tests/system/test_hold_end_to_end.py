"""A hold, thresholds beside it, and its end: pushed by a person to a run of real processes, each takes effect as told."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.system.running_server import RunningServer
from tests.system.test_control_reaches_the_loop import ROOT, history_item, push, step_of, wait_for

pytestmark = pytest.mark.slow

HOLD = {"target_entropy": 3.5, "max_change_per_step": 0.05}
ACTING = {"slewing", "holding", "limit"}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    with RunningServer(tmp_path / "home") as running:
        yield running


@pytest.fixture
def api(server: RunningServer) -> Iterator[httpx.Client]:
    headers = {"Authorization": f"Bearer {server.token}"}
    with httpx.Client(base_url=f"{server.url}/api/v1", headers=headers, timeout=10) as client:
        yield client


@pytest.fixture
def run_id(server: RunningServer) -> Iterator[str]:
    command = [sys.executable, "-m", "tests.system.held_loop", "100000", "0.05"]
    loop = subprocess.Popen(command, cwd=ROOT, env=server.environment, stdout=subprocess.PIPE, text=True)
    assert loop.stdout is not None
    yield loop.stdout.readline().strip()
    loop.kill()
    loop.wait()


def report_after(api: httpx.Client, run_id: str, version: int, steps: int) -> dict[str, Any]:
    """The report of the step that comes `steps` after the one at which this version took effect."""
    item = wait_for(lambda: (i := history_item(api, run_id, version))["state"] == "APPLIED" and i, 60)
    step = item["applied_step"] + steps
    wait_for(lambda: step_of(api, run_id) >= step, 60)
    report: dict[str, Any] = api.get(f"/runs/{run_id}/steps/{step}").json()
    assert report["control_version"] == version
    return report


@pytest.mark.timeout(300)
def test_a_hold_goes_on_under_pushed_thresholds_and_ends_when_it_is_pushed_off(api: httpx.Client, run_id: str) -> None:
    # By then enough predictions have met their observation.
    wait_for(lambda: step_of(api, run_id) >= 15, 60)

    assert push(api, run_id, {"method": "none", "hold": HOLD, "reason": "hold it"}).is_success
    held = report_after(api, run_id, 1, 5)
    assert held["labels"]["hold/state"] in ACTING
    assert (held["labels"]["control/method"], held["scalars"]["hold/target"]) == ("clip_v", 3.5)

    thresholds: dict[str, object] = {"method": "clip_v", "mu_low": 0.77, "mu_high": 0.77, "scope": "all"}
    assert push(api, run_id, {**thresholds, "hold": HOLD, "reason": "to fall back to"}).is_success
    for steps in (0, 3):
        report = report_after(api, run_id, 2, steps)
        assert report["labels"]["hold/state"] in ACTING
        assert report["scalars"]["control/mu_low"] == report["scalars"]["hold/mu"] != 0.77
    assert api.get(f"/runs/{run_id}/control").json()["mu_low"] == 0.77

    assert push(api, run_id, {**thresholds, "reason": "by hand again"}).is_success
    for steps in (0, 3):
        report = report_after(api, run_id, 3, steps)
        assert not {name for name in (*report["labels"], *report["scalars"]) if name.startswith("hold/")}
        assert (report["labels"]["control/method"], report["labels"]["control/scope"]) == ("clip_v", "all")
        assert report["scalars"]["clip/fraction"] > 0
    assert [history_item(api, run_id, version)["author"] for version in (1, 2, 3)] == ["owner"] * 3
