"""From PUT to the step at which it is active, through real processes: server, shipper, training loop with a probe."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.system.running_server import RunningServer, wait_for

ROOT = Path(__file__).parents[2]


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

        item: dict[str, Any] = wait_for(look, 60, f"version {version} is applied")
        return item


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
    wait_for(lambda: loop.step >= 1, 60, "the step is known")
    pushed_at = loop.push(method="clip_v", mu_low=1, mu_high=1, scope="all", reason="entropy is falling")
    item = loop.applied(1)
    # The step that runs while the PUT arrives can't change any more: it is pushed_at + 1.
    assert item["applied_step"] <= pushed_at + 1 + 2
    assert (item["method"], item["mu_low"], item["mu_high"], item["reason"]) == ("clip_v", 1, 1, "entropy is falling")
    active = loop.get("/control").json()["active"]
    assert (active["version"], active["mu_high"]) == (1, 1.0)
    wait_for(lambda: loop.step >= item["applied_step"], 60, "the step is known")
    series = loop.get("/metrics/series", name="clip/fraction").json()["series"]["clip/fraction"]
    clipped = dict(zip(series["step"], series["value"], strict=True))
    assert clipped[item["applied_step"] - 1] == 0.0
    assert clipped[item["applied_step"]] > 0.0
