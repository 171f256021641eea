"""`isentrope watch`: the frame of made answers, one frame of a stored run, and the live view in a pseudo-terminal."""

from __future__ import annotations

import json
import math
import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from io import StringIO
from typing import Any, cast

import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from isentrope.cli import frame as commands
from isentrope.cli.watch import Health, Look, Numbers, RunReader, _draw_until_quit, frame, numbers_of
from isentrope.client.calls import Call
from isentrope.client.client import Client
from isentrope.client.connection import ApiError
from isentrope_wire import reports
from isentrope_wire.answers import Alert, AlertCause, Status
from isentrope_wire.control import Control
from isentrope_wire.control_answers import State
from isentrope_wire.reports import AlertLevel
from tests.dashboard.made_answers import alert, gap, run_control, run_detail, version
from tests.server.in_thread import ServerInThread
from tests.server.rank import Rank, step_report
from tests.system.running_server import clean_environment

SUGGESTED = Control(method="clip_v", mu_low=1.0, mu_high=1.5, scope="decreasing")
CAUSE = AlertCause(quadrant="change/negative_low", mechanism=None, changes={}, message="Tokens with A < 0 pull most.")
COLLAPSE: Alert = replace(
    alert(40, "collapse", "Entropy has lost 52 %", AlertLevel.ACT), cause=CAUSE, suggestion=SUGGESTED.to_document()
)
MEASURED = {
    "entropy/mean": 0.48,
    "entropy/share_lost": 0.52,
    "entropy/predicted_change": -0.002,
    "entropy/observed_change": math.nan,
    "reward/mean": 0.25,
    "clip/fraction": 0.125,
}
LOOK = Look(run=run_detail(step=41, planned_steps=150), latest=MEASURED, early_level=1.0)


def text_of(numbers: Numbers, *, width: int = 120, height: int | None = 40, note: str = "") -> str:
    """The frame as a terminal of this size shows it."""
    console = Console(width=width, color_system=None, highlight=False)
    entropies = {step: 1.0 - step / 100 for step in range(41)} | {41: math.nan}
    series = {"entropy/mean": entropies, "entropy/observed_change": {step: -0.01 + step / 1e4 for step in range(41)}}
    with console.capture() as captured:
        console.print(frame(numbers, series, width=width, height=height, note=note))
    return captured.get()


@pytest.mark.parametrize(
    ("look", "health"),
    [
        (LOOK, Health.HEALTHY),
        (replace(LOOK, alerts=[alert(3, "prediction", "R² fell"), alert(2, "explosion", "Rises")]), Health.WATCH),
        (replace(LOOK, alerts=[COLLAPSE, alert(2, "collapse", "Lost a quarter")]), Health.ACT),
        (replace(LOOK, run=run_detail(step=41, status=Status.SILENT)), Health.WATCH),
        (replace(LOOK, latest={"entropy/mean": math.nan}), Health.WATCH),
        (Look(run=run_detail()), Health.NO_DATA),
    ],
    ids=["healthy", "watch", "act", "silent", "nan", "no data"],
)
def test_health_is_that_of_the_newest_alert(look: Look, health: Health) -> None:
    numbers = numbers_of(look)
    assert numbers.health == health
    assert f"{health}  {numbers.message}" in text_of(numbers)


def test_a_frame_shows_what_was_measured() -> None:
    look = replace(LOOK, alerts=[COLLAPSE], gaps=[gap(3, 4, "disk full"), gap(9, 9, "disk full")])
    shown = " ".join(text_of(numbers_of(look)).split())
    for words in (
        "Entropy has lost 52 % (step 40)",
        "Cause: Tokens with A < 0 pull most.",
        "Suggested: clip_v µ⁻ 1 µ⁺ 1.5 scope decreasing",
        "step 41/150 records lost 3",
        "entropy 0.48, early level 1 share lost 52.0%",
        "predicted -0.002 observed nan",
        "reward 0.25 clipped 12.5%",
        "control none version 0 APPLIED",
    ):
        assert words in shown


def test_a_failed_run_shows_its_error() -> None:
    error = "Traceback (most recent call last):\n  File x\nValueError: bad batch"
    look = replace(LOOK, run=run_detail(step=41, status=Status.FAILED, error=error))
    assert "failed: ValueError: bad batch " in text_of(numbers_of(look))


def test_what_was_not_measured_is_a_dash() -> None:
    shown = " ".join(text_of(numbers_of(Look(run=run_detail()))).split())
    assert "status running last report never" in shown
    assert "entropy - share lost -" in shown


@pytest.mark.parametrize(("width", "height"), [(80, 24), (100, 30), (120, 40), (200, 60), (30, 8)])
def test_a_frame_fits_its_terminal(width: int, height: int) -> None:
    lines = text_of(numbers_of(LOOK), width=width, height=height).splitlines()
    assert max(map(len, lines)) <= width
    assert len(lines) <= max(height, 20)


def test_a_suggestion_that_is_requested_is_not_offered_again() -> None:
    requested = version(3, "PENDING", SUGGESTED)
    for newest, offered in ((requested, False), (replace(requested, state=State.REJECTED), True)):
        look = replace(LOOK, run=run_detail(step=41, control=run_control(newest, None)), alerts=[COLLAPSE])
        assert (numbers_of(look).suggestion is not None) == offered


def test_a_hostile_name_is_printed_harmlessly() -> None:
    shown = text_of(numbers_of(replace(LOOK, run=run_detail(step=1, name="a\x1b[2Jb [red]c"))))
    assert "\x1b" not in shown
    assert "a\\u001b[2Jb [red]c" in shown


@pytest.fixture
def run(server: ServerInThread) -> Rank:
    """Five steps, the last with a collapse alert and its suggestion."""
    rank = Rank(server)
    for step in range(1, 5):
        rank.report(step, entropy__mean=1.0 / step)
    raised = reports.Alert(kind="collapse", level=AlertLevel.ACT, message="Entropy has lost 80 %", suggestion=SUGGESTED)
    rank.send(replace(step_report(5, {"entropy/mean": 0.2, "reward/mean": math.nan}), alerts=(raised,)))
    return rank


def command_line(server: ServerInThread, *arguments: str) -> Result:
    environment = {"ISENTROPE_URL": server.url, "ISENTROPE_TOKEN": server.owner_token}
    return CliRunner().invoke(commands.main, ["watch", *arguments], env=environment)


def test_without_a_terminal_one_frame_is_printed(server: ServerInThread, run: Rank) -> None:
    result = command_line(server, run.run_id)
    assert (result.exit_code, result.stderr) == (0, "")
    assert "Act  Entropy has lost 80 % (step 5)" in result.stdout
    assert "Entropy, nats  ⠤ entropy" in result.stdout
    assert "\x1b" not in result.stdout


def test_numbers_are_printed_as_json(server: ServerInThread, run: Rank) -> None:
    numbers = json.loads(command_line(server, run.run_id, "--json").stdout)
    assert (numbers["health"], numbers["entropy"], numbers["reward"], numbers["step"]) == ("Act", 0.2, "NaN", "5")
    assert numbers["early_level"] == 0.5
    assert numbers["suggestion"]["mu_high"] == 1.5


def test_only_new_points_are_transferred(server: ServerInThread, run: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    with Client(server.url, server.owner_token) as client:
        reader = RunReader(client, run.run_id)
        paths: list[str] = []

        def ask(call: Call[Any]) -> Any:
            paths.append(call.path.rpartition("/")[2])
            return Client.ask(client, call)

        monkeypatch.setattr(client, "ask", ask)
        reader.read()
        assert paths == [run.run_id, "series"]
        run.report(6, entropy__mean=0.1)
        assert numbers_of(reader.read()).entropy == 0.1
        assert list(reader.series["entropy/mean"]) == [1, 2, 3, 4, 5, 6]


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
    environment = clean_environment() | {"ISENTROPE_URL": server.url, "ISENTROPE_TOKEN": server.owner_token}
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


def test_the_suggestion_is_pushed_after_a_confirmation(server: ServerInThread, run: Rank) -> None:
    with watching(server, run.run_id) as terminal, Client(server.url, server.owner_token) as client:
        terminal.wait_for("q quits")
        terminal.press("p")
        terminal.wait_for("Push clip_v µ⁻ 1 µ⁺ 1.5 scope decreasing? y/n")
        terminal.press("n")
        terminal.wait_for("Nothing was pushed.")
        assert client.control(run.run_id).version == 0
        # A control that changed meanwhile is never overwritten.
        terminal.press("p")
        terminal.wait_for("y/n")
        client.set_control(run.run_id, method="clip_b", mu_low=2.0, reason="another person")
        terminal.press("y")
        terminal.wait_for("the control changed meanwhile")
        terminal.press("p")
        terminal.wait_for("y/n")
        terminal.press("y")
        terminal.wait_for("Pushed version 2")
        pushed, other = client.control_history(run.run_id)[:2]
        assert (pushed.version, pushed.mu_high, pushed.scope) == (2, 1.5, "decreasing")
        assert "Entropy has lost 80 %" in pushed.reason
        assert (other.version, other.method) == (1, "clip_b")
        terminal.press("q")
        assert terminal.process.wait(timeout=30) == 0


class Answers:
    """Reads like a `RunReader`, from a list of answers and errors."""

    series: Mapping[str, Mapping[int, float]] = {}

    def __init__(self, *answers: Look | ApiError) -> None:
        self.look = LOOK
        self._answers = list(answers)

    def read(self) -> Look:
        answer = self._answers.pop(0)
        if isinstance(answer, ApiError):
            raise answer
        self.look = answer
        return answer


def test_a_lost_server_is_shown_and_waited_for(server: ServerInThread, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("isentrope.cli.watch._REFRESH_SECONDS", 0.0)
    console = Console(file=StringIO(), force_terminal=True, width=120, height=40)
    back = replace(LOOK, latest={"entropy/mean": 0.123})
    answers = Answers(ApiError("gives no answer", None, "unreachable"), back)
    keys = iter(["", "", "q"])
    with Client(server.url, server.owner_token) as client:
        _draw_until_quit(client, cast(RunReader, answers), console, lambda seconds: next(keys))
        drawn = console.file.getvalue()  # type: ignore[attr-defined]
        lost = drawn.index("Server lost, trying again: gives no answer")
        assert "Server lost" not in drawn[drawn.index("0.123") :]
        assert lost < drawn.index("0.123")
        # A run that was deleted does not come back.
        deleted = cast(RunReader, Answers(ApiError("no such run", 404, "not_found")))
        with pytest.raises(ApiError, match="no such run"):
            _draw_until_quit(client, deleted, console, lambda seconds: "")


def test_a_missing_extra_is_named(server: ServerInThread, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "isentrope.cli.watch")
    monkeypatch.setitem(sys.modules, "plotext", None)
    result = command_line(server, "any")
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (1, "", 1)
    assert "pip install 'isentrope[watch]' (there is no plotext)" in result.stderr
