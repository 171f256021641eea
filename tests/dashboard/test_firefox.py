"""A second engine: the way from the fall to the applied control in Firefox, where it is installed.

Playwright's driver asks Debian's Firefox for a command that it does not have; this speaks WebDriver
BiDi, which every Firefox has, itself."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import ClientConnection, connect

from tests.dashboard.conftest import Site

FIREFOX = os.environ.get("FIREFOX") or shutil.which("firefox-esr") or shutil.which("firefox")
pytestmark = [
    pytest.mark.long,
    pytest.mark.browser,
    pytest.mark.skipif(FIREFOX is None, reason="no firefox on the PATH, and FIREFOX names none"),
]
LONGEST = 60.0


class Firefox:
    """One page of a headless Firefox, and the errors of its console."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self.errors: list[str] = []
        self.command("session.new", capabilities={})
        self.command("session.subscribe", events=["log.entryAdded"])
        self.page = self.command("browsingContext.create", type="tab")["context"]
        self.command(
            "browsingContext.setViewport",
            context=self.page,
            viewport={"width": 1440, "height": 900},
        )

    def command(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self._numbers)
        self._socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            answer = json.loads(self._socket.recv(timeout=LONGEST))
            if answer.get("method") == "log.entryAdded" and answer["params"]["level"] == "error":
                self.errors.append(f"{answer['params']['type']}: {answer['params']['text']}")
            if answer.get("id") == number:
                assert answer["type"] == "success", answer
                result: dict[str, Any] = answer["result"]
                return result

    def open(self, address: str) -> None:
        """The page, once it is there: what is left too early logs its aborted requests."""
        self.command("browsingContext.navigate", context=self.page, url=address, wait="complete")
        self.wait_for("main.page:not(.waiting)", r"\w")
        time.sleep(1)

    def read(self, script: str) -> Any:
        """The value of an expression; text, a number or null."""
        answer = self.command(
            "script.evaluate",
            expression=script,
            target={"context": self.page},
            awaitPromise=False,
        )
        assert answer["type"] == "success", answer
        return answer["result"].get("value")

    def wait_for(self, place: str, pattern: str) -> None:
        """Until the text, or the value, of an element fits."""
        script = f"(e => e && (e.value ?? e.textContent))(document.querySelector({place!r}))"
        end, words = time.monotonic() + LONGEST, None
        while time.monotonic() < end:
            words = self.read(script)
            if re.search(pattern, words or ""):
                return
            time.sleep(0.1)
        raise AssertionError(f"{place} has {words!r}, not {pattern!r}")

    def _point(self, *actions: dict[str, Any]) -> None:
        mouse = {"type": "pointer", "id": "mouse", "actions": list(actions)}
        self.command("input.performActions", context=self.page, actions=[mouse])

    def drag(self, place: str, pixels: int) -> None:
        """Press the mouse on the middle of an element, move it so far and let go; 0 is a click."""
        script = (
            f"(e => (e.scrollIntoView({{block: 'nearest'}}), (b => `${{b.x + b.width / 2}} "
            f"${{b.y + b.height / 2}}`)(e.getBoundingClientRect())))"
            f"(document.querySelector({place!r}))"
        )
        x, y = (round(float(part)) for part in self.read(script).split())
        moves = (
            [{"type": "pointerMove", "x": x + pixels, "y": y, "duration": 200}] if pixels else []
        )
        self._point(
            {"type": "pointerMove", "x": x, "y": y},
            {"type": "pointerDown", "button": 0},
            *moves,
            {"type": "pointerUp", "button": 0},
        )

    def click(self, place: str) -> None:
        self.drag(place, 0)


@pytest.fixture
def firefox(tmp_path: Path) -> Iterator[Firefox]:
    assert FIREFOX is not None
    command = [FIREFOX, "--headless", "--no-remote", "--profile", str(tmp_path)]
    process = subprocess.Popen(
        [*command, "--remote-debugging-port", "0"], stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    try:
        said = next(line for line in process.stderr if "BiDi listening on" in line)
        with connect(f"{said.split()[-1]}/session", max_size=None) as socket:
            yield Firefox(socket)
    finally:
        process.terminate()
        process.wait(30)


def test_a_fall_is_seen_explained_and_steered(site: Site, firefox: Firefox) -> None:
    run = site.run(60)
    firefox.open(f"{site.url}/?token={site.server.owner_token}")
    firefox.open(f"{site.url}/runs/{run}")
    firefox.wait_for(".health .why", r"has lost \d+")
    firefox.wait_for("#chart-entropy .js-plotly-plot", "as now")
    firefox.click(".health a")
    firefox.wait_for(".token", r"\w")
    firefox.open(f"{site.url}/runs/{run}")
    firefox.wait_for(".health .cure", "would s")
    firefox.click("#try")
    firefox.wait_for("#control-method", "Clip_V")
    firefox.wait_for("#control-numbers", r"\d%?.*nats a step")
    firefox.wait_for(".handle.low .pill", r"\d")
    before = float(firefox.read("document.querySelector('#control-mu-low').value"))
    firefox.drag(".handle.low .pill", 30)
    firefox.wait_for("#control-mu-low", rf"^(?!{before:g}$)")
    firefox.wait_for("#control-status", "Not pushed")
    after = float(firefox.read("document.querySelector('#control-mu-low').value"))
    assert 0 < after < before
    firefox.click("#control-push")
    firefox.wait_for("[data-version='1'][data-state='PENDING']", "Pushed")
    assert site.client.control(run).mu_low == after
    site.apply(run, 1)
    firefox.wait_for("[data-version='1'][data-state='APPLIED']", "step 61")
    firefox.open(f"{site.url}/")
    firefox.wait_for("#runs .ag-row", "recorded")
    assert firefox.errors == []
