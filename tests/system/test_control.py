"""From PUT to the step at which it is active, through real processes: server, shipper, training loop with a probe."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.system.running_server import RunningServer

ROOT = Path(__file__).parents[2]
HOLD = {"target_entropy": 3.0, "max_change_per_step": 0.05}
ACTING = {"approaching", "slewing", "holding", "limit"}


def wait_for(what: Callable[[], Any], seconds: float = 60.0) -> Any:
    """The first truthy answer of `what`; fails when there is none in time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if answer := what():
            return answer
        time.sleep(0.05)
    raise AssertionError(f"waited {seconds} s in vain")


@dataclass(frozen=True, slots=True)
class Loop:
    """A training process, and its run as the server knows it."""

    process: subprocess.Popen[str]
    run_id: str
    api: httpx.Client

    def get(self, path: str = "", **parameters: Any) -> httpx.Response:
        return self.api.get(f"/runs/{self.run_id}{path}", params=parameters)

    @property
    def step(self) -> int:
        """The newest step that the server knows; -1: none."""
        answer = self.get()
        return -1 if answer.status_code == 404 or answer.json()["step"] is None else int(answer.json()["step"])

    def push(self, **document: object) -> int:
        """Push on the newest version; returns the step that was known then."""
        etag = self.get("/control").headers["etag"]
        answer = self.api.put(f"/runs/{self.run_id}/control", json=document, headers={"If-Match": etag})
        assert answer.is_success, answer.text
        return self.step

    def applied(self, version: int) -> dict[str, Any]:
        """This version's line of the history once it is applied."""

        def look() -> dict[str, Any] | None:
            items: list[dict[str, Any]] = self.get("/control/history").json()["items"]
            return next((item for item in items if (item["version"], item["state"]) == (version, "APPLIED")), None)

        item: dict[str, Any] = wait_for(look)
        return item

    def report_after(self, version: int, steps: int) -> dict[str, Any]:
        """The report of the step that comes `steps` after the one at which this version became active."""
        step = self.applied(version)["applied_step"] + steps
        wait_for(lambda: self.step >= step)
        report: dict[str, Any] = self.get(f"/steps/{step}").json()
        assert report["control_version"] == version
        return report


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    with RunningServer(tmp_path / "home") as running:
        yield running


@pytest.fixture
def loop(server: RunningServer, request: pytest.FixtureRequest) -> Iterator[Loop]:
    """Parametrised with its number of steps and the seconds between two."""
    command = [sys.executable, "-m", "tests.system.observed_loop", *map(str, request.param)]
    process = subprocess.Popen(command, cwd=ROOT, env=server.environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    headers = {"Authorization": f"Bearer {server.token}"}
    with httpx.Client(base_url=f"{server.url}/api/v1", headers=headers, timeout=10) as api:
        yield Loop(process, process.stdout.readline().strip(), api)
    process.kill()
    process.wait()


# So long that on a busy machine, too, a step lasts longer than the way to it.
@pytest.mark.parametrize("loop", [(60, 0.8)], indirect=True)
def test_control_is_applied_within_two_steps(loop: Loop) -> None:
    wait_for(lambda: loop.step >= 1)
    pushed_at = loop.push(method="clip_v", mu_low=1, mu_high=1, scope="all", reason="entropy is falling")
    item = loop.applied(1)
    # The step that runs while the PUT arrives can't change any more: it is pushed_at + 1.
    assert item["applied_step"] <= pushed_at + 1 + 2
    assert (item["method"], item["mu_low"], item["mu_high"], item["reason"]) == ("clip_v", 1, 1, "entropy is falling")
    active = loop.get("/control").json()["active"]
    assert (active["version"], active["mu_high"]) == (1, 1.0)
    wait_for(lambda: loop.step >= item["applied_step"])
    series = loop.get("/metrics/series", name="clip/fraction").json()["series"]["clip/fraction"]
    clipped = dict(zip(series["step"], series["value"], strict=True))
    assert clipped[item["applied_step"] - 1] == 0.0
    assert clipped[item["applied_step"]] > 0.0


@pytest.mark.slow
@pytest.mark.parametrize("loop", [(100_000, 0.05)], indirect=True)
def test_hold_begins_and_ends_when_pushed(loop: Loop) -> None:
    # By then enough predictions have met their observation.
    wait_for(lambda: loop.step >= 15)

    loop.push(method="none", hold=HOLD, reason="hold it")
    held = loop.report_after(1, 5)
    assert held["labels"]["hold/state"] in ACTING
    assert (held["labels"]["control/method"], held["scalars"]["hold/target"]) == ("clip_v", 3.0)

    thresholds: dict[str, object] = {"method": "clip_v", "mu_low": 0.77, "mu_high": 0.77, "scope": "all"}
    loop.push(**thresholds, hold=HOLD, reason="to fall back to")
    for steps in (0, 3):
        report = loop.report_after(2, steps)
        assert report["labels"]["hold/state"] in ACTING
        assert report["scalars"]["control/mu_low"] == report["scalars"]["hold/mu"] != 0.77
    assert loop.get("/control").json()["mu_low"] == 0.77

    loop.push(**thresholds, reason="by hand again")
    for steps in (0, 3):
        report = loop.report_after(3, steps)
        assert not {name for name in (*report["labels"], *report["scalars"]) if name.startswith("hold/")}
        assert (report["labels"]["control/method"], report["labels"]["control/scope"]) == ("clip_v", "all")
        assert report["scalars"]["clip/fraction"] > 0
    assert [loop.applied(version)["author"] for version in (1, 2, 3)] == ["owner"] * 3
