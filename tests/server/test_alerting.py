"""Alerts are sent once to each destination, over real HTTP, and nothing waits for it."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar

import pytest
from click.testing import CliRunner
from pydantic import ValidationError

from isentrope.cli.frame import main
from isentrope_server import alerting
from isentrope_server.settings import Settings
from isentrope_server.store.reports import notices
from isentrope_wire.control import Control
from isentrope_wire.reports import Alert, AlertCause, AlertLevel, RunFinished, StepReport
from tests.server.in_thread import ServerInThread
from tests.server.rank import Rank
from tests.system.running_server import wait_for

WATCH, ACT = AlertLevel.WATCH, AlertLevel.ACT


class Receiver(BaseHTTPRequestHandler):
    """Takes what a webhook gets; refuses the first `refusals` of them."""

    taken: ClassVar[list[dict[str, Any]]]
    refusals: ClassVar[int]
    requests: ClassVar[int]

    def do_POST(self) -> None:
        kind = type(self)
        content = self.rfile.read(int(self.headers["Content-Length"]))
        kind.requests += 1
        refused = kind.requests <= kind.refusals
        if not refused:
            kind.taken.append(json.loads(content))
            assert self.path == "/hook?team=a"
        self.send_response(503 if refused else 200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Receiver]]:
    monkeypatch.setattr(alerting, "_SECONDS_BETWEEN_LOOKS", 0.02)
    kind = type("Receiver", (Receiver,), {"taken": [], "refusals": 0, "requests": 0})
    with ThreadingHTTPServer(("127.0.0.1", 0), kind) as http:
        kind.url = f"http://127.0.0.1:{http.server_port}/hook?team=a"  # type: ignore[attr-defined]
        thread = Thread(target=http.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield kind
        http.shutdown()


def server_for(receiver: type[Receiver], home: Path, **settings: object) -> ServerInThread:
    url: str = receiver.url  # type: ignore[attr-defined]
    return ServerInThread(home, notify=(url,), **settings)


def send(rank: Rank, step: int, *alerts: Alert, age: float = 0.0) -> None:
    rank.send(
        StepReport(
            step=step, recorded_at=time.time() - age, scalars={"entropy/mean": 1.0}, alerts=alerts
        )
    )


def alert(kind: str = "collapse", level: AlertLevel = WATCH, **known: Any) -> Alert:
    return Alert(kind=kind, level=level, message=f"{kind} it is", **known)


def titles_of(receiver: type[Receiver], count: int) -> list[str]:
    """Titles of what it took, once there are so many, and a little later."""
    wait_for(lambda: len(receiver.taken) >= count)
    time.sleep(0.1)
    return sorted(message["title"] for message in receiver.taken)


def test_each_alert_is_sent_once(receiver: type[Receiver], tmp_path: Path) -> None:
    with server_for(receiver, tmp_path, public_url="https://entropy.example/") as server:
        rank = Rank(server)
        cause = AlertCause(
            quadrant="change/negative_low",
            mechanism=None,
            changes={},
            message="unlikely tokens fall.",
        )
        control = Control(method="clip_v", mu_low=3.0, scope="decreasing")
        send(rank, 1, alert(cause=cause, suggestion=control))
        send(rank, 2, alert(), alert("not_finite", ACT))
        send(rank, 3, alert(level=ACT))
        send(rank, 90, alert(level=ACT))  # a further halving
        titles = titles_of(receiver, 5)
        name = server.http.get(rank.path).json()["name"]
    assert titles == [
        f"Act: Collapse in {name}, step 3",
        f"Act: Collapse in {name}, step 90",
        f"Act: NaN or infinite values in {name}, step 2",
        f"Watch: Collapse in {name}, step 1",
        f"Watch: Collapse in {name}, step 2",
    ]
    first = next(message for message in receiver.taken if message["title"].endswith("step 1"))
    assert first["type"] == "warning"
    assert first["message"].split("\n") == [
        "collapse it is",
        "unlikely tokens fall.",
        (
            f"Suggested: isentrope control {rank.run_id} --method clip_v --mu-low 3.0 --scope"
            " decreasing"
        ),
        f"https://entropy.example/runs/{rank.run_id}",
    ]


def test_harm_is_sent_with_the_command_that_reverts(
    receiver: type[Receiver], tmp_path: Path
) -> None:
    with server_for(receiver, tmp_path) as server:
        rank = Rank(server)
        send(rank, 1, alert("overshoot", ACT, suggestion=Control()))
        assert titles_of(receiver, 1)
    lines = receiver.taken[0]["message"].split("\n")
    assert f"Suggested: isentrope control {rank.run_id} --revert" in lines


def test_a_restart_sends_nothing_again(receiver: type[Receiver], tmp_path: Path) -> None:
    with server_for(receiver, tmp_path) as server:
        rank = Rank(server)
        send(rank, 1, alert())
        assert len(titles_of(receiver, 1)) == 1
    with server_for(receiver, tmp_path) as server:
        again = Rank(server, run_id=rank.run_id, incarnation="second", started_at=time.time())
        send(again, 1, alert())
        send(again, 2, alert(level=ACT))
        assert [title.split()[0] for title in titles_of(receiver, 2)] == ["Act:", "Watch:"]


def test_a_refused_notice_is_tried_again_and_given_up_in_the_end(
    receiver: type[Receiver], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notices, "PAUSE_SECONDS", 0.05)
    receiver.refusals = notices.MOST_ATTEMPTS + 1
    with server_for(receiver, tmp_path) as server:
        rank = Rank(server)
        send(rank, 1, alert())
        wait_for(lambda: receiver.requests >= notices.MOST_ATTEMPTS)
        time.sleep(0.3)
        assert receiver.requests == notices.MOST_ATTEMPTS
        # The next one is refused once, and then taken.
        send(rank, 2, alert("explosion"))
        assert [title.split()[1] for title in titles_of(receiver, 1)] == ["Explosion"]


def test_a_test_is_sent_and_answered_without_the_address(
    receiver: type[Receiver], tmp_path: Path
) -> None:
    with server_for(receiver, tmp_path) as server:
        assert server.http.get("/api/v1/notify").json()["items"] == [
            {"service": "json", "delivered": None}
        ]
        assert server.http.post("/api/v1/notify/test").json()["items"] == [
            {"service": "json", "delivered": True}
        ]
        assert [message["title"] for message in receiver.taken] == ["Isentrope: a test"]
        receiver.refusals = 99
        assert server.http.post("/api/v1/notify/test").json()["items"][0]["delivered"] is False


def test_old_alerts_and_those_of_deleted_runs_are_not_sent(
    receiver: type[Receiver], tmp_path: Path
) -> None:
    with ServerInThread(tmp_path) as server:
        old, deleted, new = Rank(server), Rank(server), Rank(server)
        send(old, 1, alert(), age=7 * 3600.0)
        send(deleted, 1, alert())
        deleted.send(RunFinished(status="finished", finished_at=time.time()))
        assert server.http.delete(deleted.path).is_success
        send(new, 1, alert("self_check", ACT))
    with server_for(receiver, tmp_path):
        assert [title.split()[1] for title in titles_of(receiver, 1)] == ["Tokens"]


@pytest.mark.parametrize("ahead", [-8 * 3600.0, 8 * 3600.0])
def test_a_wrong_clock_sends_what_is_new(
    ahead: float, receiver: type[Receiver], tmp_path: Path
) -> None:
    now = time.time()
    with server_for(receiver, tmp_path) as server:
        rank = Rank(server, started_at=now + ahead, sent_at=now + ahead)
        send(rank, 1, alert("collapse"), age=7 * 3600.0 - ahead)
        send(rank, 2, alert("self_check", ACT), age=-ahead)
        assert [title.split()[1] for title in titles_of(receiver, 1)] == ["Tokens"]
        found = server.http.get(f"{rank.path}/alerts").json()["items"]
    assert [one["recorded_at"] - now for one in found] == pytest.approx([0, -7 * 3600], abs=30)


def test_reports_are_stored_while_a_destination_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alerting, "_SECONDS_BETWEEN_LOOKS", 0.02)
    with (
        ThreadingHTTPServer(("127.0.0.1", 0), Receiver) as silent,  # accepts, and never answers
        ServerInThread(
            tmp_path, notify=(f"json://127.0.0.1:{silent.server_port}/?rto=1",)
        ) as server,
    ):
        rank = Rank(server)
        send(rank, 1, alert())
        begin = time.monotonic()
        for step in range(2, 12):
            send(rank, step, alert(level=ACT))
        assert time.monotonic() - begin < 2
        assert server.http.get(rank.path).json()["step"] == 11


def test_destinations_are_separated_by_commas_that_a_scheme_follows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(
        "ISENTROPE_NOTIFY",
        "json://a.example/x, slack://T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ/#a,#b,",
    )
    assert Settings().notify == (
        "json://a.example/x",
        "slack://T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ/#a,#b",
    )
    monkeypatch.delenv("ISENTROPE_NOTIFY")
    assert Settings().notify == ()


def test_an_unreadable_address_is_refused_unseen(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValidationError, match="got 'nonsense'"):
        Settings(notify=("nonsense://user:secret@host",))
    monkeypatch.setenv("ISENTROPE_NOTIFY", "nonsense://user:secret@host")
    result = CliRunner().invoke(main, ["up"])
    assert result.output.startswith("Error: ISENTROPE_NOTIFY can't be used"), result.output
    result = CliRunner().invoke(main, ["up", "--notify", "nonsense://user:secret@host"])
    assert result.exit_code == 2
    assert result.output.startswith("Error: --notify can't be used"), result.output
    assert "secret" not in result.output


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ("https://user:word@host:81/a/b", "jsons://user:word@host:81/a/b"),
        ("http://host/hook?key=a%20b&x=", "json://host/hook?-key=a+b&-x="),
        ("https://hooks.slack.com/services/T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ", None),
    ],
)
def test_a_pasted_webhook_address_is_read(given: str, read: str | None) -> None:
    """One that Apprise knows, such as Slack's, is left to it."""
    assert Settings(notify=(given,)).notify == (read or given,)


def test_without_apprise_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "apprise", None)
    with pytest.raises(ValidationError, match=r"\[notify\]"):
        Settings(notify=("json://host/",))
    assert Settings().notify == ()
