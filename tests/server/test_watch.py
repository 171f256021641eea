"""`isentrope watch`: the frame of made answers, one frame of a stored run, and the live view in a
pseudo-terminal."""

from __future__ import annotations

import json
import math
import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from io import StringIO
from unittest.mock import Mock

import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from isentrope.cli import frame as commands
from isentrope.cli.watch import Look, _draw_until_quit, frame
from isentrope.client.client import Client
from isentrope.client.connection import ApiError
from isentrope_wire.answers import HealthLevel, Status
from isentrope_wire.control import Control
from isentrope_wire.diagnosis.health import Measured, diagnose
from tests.dashboard.made_answers import gap, run_detail
from tests.server.in_thread import ServerInThread
from tests.server.rank import Rank, step_report
from tests.system.running_server import clean_environment
from tests.wire.test_diagnosis import collapse, last, run, sums
from tests.wire.test_verdict import judge

COLLAPSED = diagnose(run(collapse, 41, last=last(), parts={41: {"change/negative_low": -0.3}}))
MEASURED = {
    "entropy/predicted_change": -0.002,
    "entropy/observed_change": math.nan,
    "reward/mean": 0.25,
    "clip/fraction": 0.125,
}
SERIES = {
    "entropy/mean": {step: 1.0 - step / 100 for step in range(41)} | {41: math.nan},
    "entropy/observed_change": {step: -0.01 + step / 1e4 for step in range(41)},
}
LOOK = Look(
    run=run_detail(step=41, planned_steps=150), diagnosis=COLLAPSED, latest=MEASURED, series=SERIES
)
NO_STEP = Look(run=run_detail(), diagnosis=diagnose(Measured()))


def text_of(look: Look, *, width: int = 120, height: int | None = 40, note: str = "") -> str:
    """The frame as a terminal of this size shows it."""
    console = Console(width=width, color_system=None, highlight=False)
    with console.capture() as captured:
        console.print(frame(look, width=width, height=height, note=note))
    return captured.get()


@pytest.mark.parametrize(
    ("level", "word"),
    [
        ("no_data", "No data yet"),
        ("healthy", "Healthy"),
        ("watch", "Watch"),
        ("act", "Act"),
        ("holding", "Holding"),
    ],
)
def test_the_health_line_is_that_of_the_diagnosis(level: str, word: str) -> None:
    look = replace(LOOK, diagnosis=replace(COLLAPSED, level=HealthLevel(level)))
    assert f"{word}  {COLLAPSED.message}" in text_of(look, width=160)
    assert "Silent  " in text_of(
        replace(look, run=run_detail(step=41, status=Status.SILENT)), width=160
    )


def test_a_frame_shows_what_was_measured() -> None:
    look = replace(LOOK, gaps=[gap(3, 4, "disk full"), gap(9, 9, "disk full")])
    shown = " ".join(text_of(look, width=160).split())
    for words in (
        f"Act {COLLAPSED.message}",
        "Cause: Unlikely tokens, punished, make 100 % of the pull.",
        "Suggested: Clip_V µ 1.0 would stop it: clips 15.0 %, ΔH −0.0",
        "step 41/150 records lost 3",
        "entropy 0.2263, early level 0.5707 share lost 60.3 %",
        "predicted −0.002 observed nan",
        "reward 0.25 clipped 12.5 %",
        "control none version 0 APPLIED",
    ):
        assert words in shown
    assert "Verdict" not in shown


VERDICT = judge(-0.002, 0.002)
ERROR = "Traceback (most recent call last):\n  File x\nValueError: bad batch"


@pytest.mark.parametrize(
    ("look", "words"),
    [
        (
            replace(LOOK, diagnosis=replace(COLLAPSED, verdict=VERDICT)),
            f"Verdict: version 3: {VERDICT.message} (promised 0.0002)",
        ),
        (
            replace(LOOK, run=run_detail(step=41, status=Status.FAILED, error=ERROR)),
            "status failed: ValueError: bad batch last",
        ),
        (replace(LOOK, run=run_detail(step=1, name="a\x1b[2Jb [red]c")), "a\\u001b[2Jb [red]c"),
        (NO_STEP, "status running last report never"),
        (NO_STEP, "entropy - share lost -"),
    ],
)
def test_a_frame_names_what_there_is_in_words(look: Look, words: str) -> None:
    shown = text_of(look, width=160)
    assert words in " ".join(shown.split())
    assert "\x1b" not in shown


@pytest.mark.parametrize(("width", "height"), [(80, 24), (100, 30), (120, 40), (200, 60), (30, 8)])
def test_a_frame_fits_its_terminal(width: int, height: int) -> None:
    lines = text_of(LOOK, width=width, height=height).splitlines()
    assert max(map(len, lines)) <= width
    assert len(lines) <= max(height, 30)


@pytest.fixture
def watched(server: ServerInThread) -> Rank:
    """40 steps in which 2.5 % of the entropy is lost each, with a cure in the last."""
    rank = Rank(server)
    for step in range(1, 41):
        scalars = {"entropy/mean": collapse(step), "reward/mean": math.nan, "entropy/gain": 0.15}
        rank.send(replace(step_report(step, scalars), what_if=sums(-4.0) if step == 40 else None))
    return rank


def command_line(server: ServerInThread, *arguments: str) -> Result:
    environment = {"ISENTROPE_URL": server.url, "ISENTROPE_TOKEN": server.owner_token}
    return CliRunner().invoke(commands.main, ["watch", *arguments], env=environment)


def test_without_a_terminal_one_frame_is_printed(server: ServerInThread, watched: Rank) -> None:
    result = command_line(server, watched.run_id)
    assert (result.exit_code, result.stderr) == (0, "")
    assert "Act  Entropy has lost 59 % and falls: to 0." in " ".join(
        result.stdout.replace("│", "").split("\n")
    ).replace("   ", " ")
    assert "Entropy, nats  ⠤ entropy" in result.stdout
    assert "\x1b" not in result.stdout


def test_numbers_are_printed_as_json(server: ServerInThread, watched: Rank) -> None:
    numbers = json.loads(command_line(server, watched.run_id, "--json").stdout)
    diagnosis = numbers["diagnosis"]
    assert (diagnosis["level"], numbers["latest"]["reward/mean"], numbers["run"]["step"]) == (
        "act",
        "NaN",
        40,
    )
    assert diagnosis["early_level"] == pytest.approx(collapse(2))
    assert diagnosis["suggestion"]["control"]["mu_high"] == 1.0


class Terminal:
    """The command in a pseudo-terminal of 120 x 40."""

    def __init__(self, process: subprocess.Popen[bytes], descriptor: int) -> None:
        self.process = process
        self.shown = ""
        self._descriptor = descriptor

    def press(self, keys: str) -> None:
        os.write(self._descriptor, keys.encode())

    def wait_for(self, words: str) -> None:
        """Read until these words came since the last wait."""
        end = time.monotonic() + 60
        while words not in self.shown:
            assert time.monotonic() < end, f"{words!r} did not come: {self.shown[-3000:]!r}"
            if select.select([self._descriptor], [], [], 0.1)[0]:
                self.shown += os.read(self._descriptor, 65536).decode(errors="replace")
        self.shown = self.shown.partition(words)[2]


@contextmanager
def watching(server: ServerInThread, run_id: str) -> Iterator[Terminal]:
    ours, theirs = pty.openpty()
    environment = clean_environment() | {
        "ISENTROPE_URL": server.url,
        "ISENTROPE_TOKEN": server.owner_token,
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "isentrope", "watch", run_id],
        env=environment | {"TERM": "xterm-256color", "COLUMNS": "120", "LINES": "40"},
        stdin=theirs, stdout=theirs, stderr=theirs,
    )  # fmt: skip
    os.close(theirs)
    try:
        yield Terminal(process, ours)
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def test_the_suggestion_is_pushed_after_a_confirmation(
    server: ServerInThread, watched: Rank
) -> None:
    with (
        watching(server, watched.run_id) as terminal,
        Client(server.url, server.owner_token) as client,
    ):
        terminal.wait_for("q quits")
        terminal.press("p")
        terminal.wait_for("Push clip_v µ⁻ 1 µ⁺ 1 scope decreasing? y/n")
        terminal.press("n")
        terminal.wait_for("Nothing was pushed.")
        assert client.control(watched.run_id).version == 0
        # A control that changed meanwhile is never overwritten.
        terminal.press("p")
        terminal.wait_for("y/n")
        client.set_control(watched.run_id, method="clip_b", mu_low=2.0, reason="another person")
        terminal.press("y")
        terminal.wait_for("the control changed meanwhile")
        terminal.press("p")
        terminal.wait_for("y/n")
        terminal.press("y")
        terminal.wait_for("Pushed version 2")
        pushed, other = client.control_history(watched.run_id)[:2]
        assert (pushed.version, pushed.mu_high, pushed.scope) == (2, 1.0, "decreasing")
        assert "Entropy has lost 59 %" in pushed.reason
        assert (other.version, other.method) == (1, "clip_b")
        terminal.press("q")
        assert terminal.process.wait(timeout=30) == 0


def _warned(warnings: list[str]) -> list[str]:
    return [f"warning: {warning}" for warning in warnings]


def test_a_suggestion_is_previewed_and_then_pushed(server: ServerInThread, watched: Rank) -> None:
    environment = {"ISENTROPE_URL": server.url, "ISENTROPE_TOKEN": server.owner_token}

    def control(*options: str) -> Result:
        arguments = ["control", watched.run_id, *options]
        return CliRunner().invoke(commands.main, arguments, env=environment)

    with Client(server.url, server.owner_token) as client:
        preview = control("--suggested", "--dry-run")
        assert (preview.exit_code, preview.stderr) == (0, "")
        assert client.control(watched.run_id).version == 0
        wanted = Control(method="clip_v", mu_low=1.0, mu_high=1.0, scope="decreasing")
        lines = preview.stdout.splitlines()
        assert lines[0] == "preview: clip_v µ⁻ 1 µ⁺ 1 scope decreasing"
        said = client.preview(watched.run_id, wanted)
        # Each number once.
        assert said.message.startswith("Clips 15.0 %: ΔH ")
        assert lines[1:] == [said.message, *_warned(said.warnings), "Nothing was pushed."]
        pushed = control("--suggested", "--reason", "as suggested")
        assert (pushed.exit_code, pushed.stderr) == (0, "")
        newest = client.control(watched.run_id)
        assert (newest.version, newest.mu_low, newest.scope, newest.reason) == (
            1,
            1.0,
            "decreasing",
            "as suggested",
        )
        again = control("--suggested")
        assert again.exit_code == 1
        assert f"No control is suggested for run {watched.run_id}. Entropy has" in again.output


def test_a_lost_server_is_shown_and_waited_for(
    server: ServerInThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("isentrope.cli.watch._REFRESH_SECONDS", 0.0)
    console = Console(file=StringIO(), force_terminal=True, width=120, height=40)
    back = replace(LOOK, latest={"reward/mean": 0.123})
    keys = iter(["", "", "q"])
    with Client(server.url, server.owner_token) as client:
        read = Mock(side_effect=[ApiError("gives no answer", None, "unreachable"), back])
        _draw_until_quit(client, LOOK, read, console, lambda seconds: next(keys))
        drawn = console.file.getvalue()  # type: ignore[attr-defined]
        lost = drawn.index("Server lost, trying again: gives no answer")
        assert "Server lost" not in drawn[drawn.index("0.123") :]
        assert lost < drawn.index("0.123")
        # A run that was deleted does not come back.
        deleted = Mock(side_effect=ApiError("no such run", 404, "not_found"))
        with pytest.raises(ApiError, match="no such run"):
            _draw_until_quit(client, LOOK, deleted, console, lambda seconds: "")
