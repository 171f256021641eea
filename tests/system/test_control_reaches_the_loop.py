"""From PUT to the step it is in force, through real processes: server, shipper, training loop."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.system.running_server import RunningServer

ROOT = Path(__file__).parents[2]


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
def start_loop(server: RunningServer) -> Iterator[Callable[[int, float], tuple[str, subprocess.Popen[str]]]]:
    loops: list[subprocess.Popen[str]] = []

    def start(steps: int, seconds_per_step: float) -> tuple[str, subprocess.Popen[str]]:
        loop = subprocess.Popen(
            [sys.executable, "-m", "tests.system.observed_loop", str(steps), str(seconds_per_step)],
            cwd=ROOT,
            env=server.environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        loops.append(loop)
        assert loop.stdout is not None
        return loop.stdout.readline().strip(), loop

    yield start
    for loop in loops:
        loop.kill()
        loop.wait()


def wait_for(what: Callable[[], Any], seconds: float = 30.0) -> Any:
    """The first truthy answer of `what`; fails when there is none in time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        answer = what()
        if answer:
            return answer
        time.sleep(0.05)
    raise AssertionError(f"waited {seconds} s in vain")


def step_of(api: httpx.Client, run_id: str) -> int:
    answer = api.get(f"/runs/{run_id}")
    return -1 if answer.status_code == 404 or answer.json()["step"] is None else int(answer.json()["step"])


def history_item(api: httpx.Client, run_id: str, version: int) -> dict[str, Any]:
    items: list[dict[str, Any]] = api.get(f"/runs/{run_id}/control/history").json()["items"]
    return next(item for item in items if item["version"] == version)


def push(api: httpx.Client, run_id: str, document: dict[str, object]) -> httpx.Response:
    etag = api.get(f"/runs/{run_id}/control").headers["etag"]
    return api.put(f"/runs/{run_id}/control", json=document, headers={"If-Match": etag})


def test_a_control_pushed_in_mid_run_is_applied_within_two_steps_and_acknowledged_with_its_step(
    api: httpx.Client, start_loop: Callable[[int, float], tuple[str, subprocess.Popen[str]]]
) -> None:
    run_id, loop = start_loop(60, 0.8)  # so that on a busy machine, too, a step lasts longer than the way to it
    wait_for(lambda: step_of(api, run_id) >= 1)
    answer = push(
        api, run_id, {"method": "clip_v", "mu_low": 1, "mu_high": 1, "scope": "all", "reason": "entropy is falling"}
    )
    assert answer.is_success, answer.text
    step_when_pushed = step_of(api, run_id)
    item = wait_for(lambda: (i := history_item(api, run_id, 1))["state"] == "APPLIED" and i)
    # The step that runs while the PUT arrives can't change any more: it is step_when_pushed + 1.
    assert item["applied_step"] <= step_when_pushed + 1 + 2
    assert (item["method"], item["mu_low"], item["mu_high"], item["reason"]) == ("clip_v", 1, 1, "entropy is falling")
    in_force = api.get(f"/runs/{run_id}/control").json()["in_force"]
    assert (in_force["version"], in_force["mu_high"]) == (1, 1.0)
    wait_for(lambda: step_of(api, run_id) >= item["applied_step"])
    series = api.get(f"/runs/{run_id}/metrics/series", params={"name": "clip/fraction"}).json()["series"]
    clipped = dict(zip(series["clip/fraction"]["step"], series["clip/fraction"]["value"], strict=True))
    assert clipped[item["applied_step"] - 1] == 0.0
    assert clipped[item["applied_step"]] > 0.0
    loop.kill()


@pytest.mark.slow
def test_what_the_probe_cannot_do_is_refused_at_the_door_and_changes_nothing(
    api: httpx.Client, start_loop: Callable[[int, float], tuple[str, subprocess.Popen[str]]]
) -> None:
    run_id, loop = start_loop(40, 0.1)
    wait_for(lambda: step_of(api, run_id) >= 1)
    answer = push(api, run_id, {"method": "clip_cov", "hold": {"target_entropy": 0.5}})
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "unprocessable")
    assert api.get(f"/runs/{run_id}/control").json()["version"] == 0
    loop.kill()


@pytest.mark.slow
def test_a_frozen_and_then_killed_server_neither_stops_the_loop_nor_loses_or_doubles_a_report(
    server: RunningServer,
    api: httpx.Client,
    start_loop: Callable[[int, float], tuple[str, subprocess.Popen[str]]],
) -> None:
    run_id, loop = start_loop(80, 0.05)
    wait_for(lambda: step_of(api, run_id) >= 10)
    server.freeze()
    time.sleep(1.0)
    server.kill()
    out, _ = loop.communicate(timeout=60)  # the loop ends although nobody listens
    assert loop.returncode == 0
    # A loop that waits for the server would wait until the server is started again, further below.
    assert float(out.split("longest wait ")[1]) < 5.0
    server.start()
    wait_for(lambda: step_of(api, run_id) == 79)
    series = api.get(f"/runs/{run_id}/metrics/series", params={"name": ["reward/mean", "entropy/mean"]}).json()[
        "series"
    ]
    for name in ("reward/mean", "entropy/mean"):
        assert series[name]["step"] == list(range(80))
    assert api.get(f"/runs/{run_id}").json()["status"] == "finished"
