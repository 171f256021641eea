"""Every failure answers with the one error body, and the list of runs shows what it should."""

from __future__ import annotations

import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from fastapi import Response
from sqlalchemy import text

from isentrope.client import calls
from isentrope.client.client import Client
from isentrope.client.connection import ApiError
from isentrope_server.api import metrics, runs
from isentrope_server.api.responses import json_answer
from isentrope_wire.numbers import Answer
from isentrope_wire.reports import RunFinished, ScoreHistogram
from tests.server.conftest import MakeServer
from tests.server.in_thread import ServerInThread
from tests.server.rank import Rank, age, step_report
from tests.system.running_server import wait_for


def error_of(answer: httpx.Response) -> dict[str, Any]:
    body = answer.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"code", "message", "details"}
    assert body["error"]["message"]
    error: dict[str, Any] = body["error"]
    return error


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/api/v1/nothing", 404, "not_found"),
        ("GET", "/api/v1", 404, "not_found"),
        ("POST", "/api/v1/nothing/at/all", 404, "not_found"),
        ("GET", "/nothing", 404, "not_found"),
        ("GET", "/redoc", 404, "not_found"),
        ("GET", "/api/v1/runs/unknown", 404, "not_found"),
        ("GET", "/api/v1/runs/unknown/control", 404, "not_found"),
        ("GET", "/api/v1/runs/unknown/law", 404, "not_found"),
        ("POST", "/api/v1/runs", 405, "method_not_allowed"),
        ("DELETE", "/api/v1/runs/unknown/control", 405, "method_not_allowed"),
        ("POST", "/healthz", 405, "method_not_allowed"),
        ("GET", "/api/v1/runs?limit=0", 422, "invalid_request"),
        ("GET", "/api/v1/runs?limit=many", 422, "invalid_request"),
        ("GET", "/api/v1/runs?status=happy", 422, "invalid_request"),
        ("GET", "/api/v1/runs?cursor=***", 400, "bad_cursor"),
        ("GET", "/api/v1/runs?q=a%00b", 422, "invalid_request"),
        ("GET", "/api/v1/runs?sort=config.%00", 422, "invalid_request"),
    ],
)
def test_failures_have_one_shape(
    server: ServerInThread, method: str, path: str, status: int, code: str
) -> None:
    answer = server.http.request(method, path)
    assert (answer.status_code, error_of(answer)["code"]) == (status, code)
    if status == 405:
        assert answer.headers["allow"]


def test_series_without_a_name_are_refused(server: ServerInThread) -> None:
    answer = server.http.get(f"{Rank(server).path}/metrics/series")
    assert (answer.status_code, error_of(answer)["code"]) == (422, "invalid_request")
    assert "name" in error_of(answer)["message"]


def test_a_page_cannot_hide_unknown_addresses_of_the_api(make_server: MakeServer) -> None:
    server = make_server(dashboard=True)
    assert error_of(server.http.get("/api/v1/nothing"))["code"] == "not_found"
    assert error_of(server.http.get("/api/v1/runs/unknown/what-if"))["code"] == "not_found"
    assert server.http.get("/runs/any").headers["content-type"].startswith("text/html")
    for path in ("/docs/nothing", "/redoc", "/any/page"):
        answer = server.http.get(path)
        assert (answer.status_code, error_of(answer)["code"]) == (404, "not_found")


def test_bodies_are_limited_without_content_length(server: ServerInThread, rank: Rank) -> None:
    headers = {"If-Match": '"0"', "Content-Type": "application/json"}
    large = b'{"reason": "' + b"x" * (1 << 20) + b'"}'
    announced = server.http.put(f"{rank.path}/control", content=large, headers=headers)
    unannounced = server.http.put(
        f"{rank.path}/control", content=iter([large[: 1 << 19], large[1 << 19 :]]), headers=headers
    )
    for answer in (announced, unannounced):
        assert (answer.status_code, error_of(answer)["code"]) == (413, "body_too_large")


def test_run_shows_its_state(make_server: MakeServer) -> None:
    server = make_server()
    finished, failed, ended, silent = (
        Rank(server, run_id=s) for s in ("finished", "failed", "ended", "silent")
    )
    finished.send(RunFinished(status="finished", finished_at=time.time()))
    failed.send(RunFinished(status="failed", finished_at=time.time(), error="out of memory"))
    ended.send(RunFinished(status="ended", finished_at=time.time()))
    silent.report(3, x=1.0)
    age(server, silent, seconds=61)
    running = Rank(server, run_id="running")
    running.report(7, x=1.0)
    runs = {item["id"]: item for item in server.http.get("/api/v1/runs").json()["items"]}
    assert all(run["status"] == name for name, run in runs.items())
    assert (runs["running"]["step"], runs["silent"]["step"], runs["finished"]["step"]) == (
        7,
        3,
        None,
    )
    for status in runs:
        listed = server.http.get("/api/v1/runs", params={"status": status}).json()["items"]
        assert [item["id"] for item in listed] == [status]


def test_a_configuration_that_is_no_json_does_not_hide_the_run(server: ServerInThread) -> None:
    rank = Rank(
        server,
        config={"rate": float("inf"), "half": "\ud800", "nested": [{"x": float("nan")}], "n": 3},
    )
    assert server.http.get(rank.path).json()["config"] == {
        "rate": "Infinity",
        "half": "?",
        "nested": [{"x": "NaN"}],
        "n": 3,
    }


def test_people_write_tags_and_notes(server: ServerInThread, rank: Rank) -> None:
    edited = server.http.patch(
        rank.path, json={"tags": ["good"], "notes": "Look at step 40."}
    ).json()
    assert (edited["tags"], edited["notes"]) == (["good"], "Look at step 40.")
    assert server.http.patch(rank.path, json={"notes": ""}).json()["tags"] == ["good"]
    assert server.http.patch(rank.path, json={"project": "other"}).status_code == 422


def test_a_renamed_run_keeps_its_name_when_it_is_resumed(
    server: ServerInThread, client: Client
) -> None:
    rank = Rank(server, name="grpo-7", started_at=1.0)
    assert client.ask(calls.edit_run(rank.run_id, name="seed 3, long")).name == "seed 3, long"
    entry = next(client.items(calls.audit())).change
    assert (entry["old"]["name"], entry["new"]) == ("grpo-7", {"name": "seed 3, long"})
    Rank(server, run_id=rank.run_id, name="grpo-7", incarnation="second", started_at=2.0)
    assert client.run(rank.run_id).name == "seed 3, long"
    assert [run.id for run in client.runs(q="SEED 3, l")] == [rank.run_id]
    for name in ("", "x" * 501):
        with pytest.raises(ApiError) as refused:
            client.ask(calls.edit_run(rank.run_id, name=name))
        assert refused.value.status == 422


def test_of_many_deletions_of_a_run_one_happens_and_the_others_find_nothing(
    server: ServerInThread, rank: Rank
) -> None:
    still_reporting = server.http.delete(rank.path)
    assert (still_reporting.status_code, error_of(still_reporting)["code"]) == (409, "conflict")
    rank.send(RunFinished(status="finished", finished_at=time.time()))
    with ThreadPoolExecutor(8) as pool:
        statuses = list(pool.map(lambda _: server.http.delete(rank.path).status_code, range(8)))
    assert sorted(statuses) == [204] + [404] * 7


def test_health_is_open_and_figures_are_not(server: ServerInThread) -> None:
    Rank(server).report(0, x=1.0)
    with server.client() as anonymous:
        assert anonymous.get("/healthz").json() == {"status": "ok"}
        assert anonymous.get("/readyz").json() == {"status": "ready"}
        assert anonymous.get("/metrics").status_code == 401
        # What balancers and uptime monitors ask with.
        assert anonymous.head("/readyz").status_code == 200
        assert anonymous.head("/api/v1/runs").status_code == 401
    listed = server.http.head("/api/v1/runs")
    assert (listed.status_code, listed.content) == (200, b"")
    assert server.http.get("/metrics").status_code == 200


def not_ready(server: ServerInThread) -> str:
    """The cause a server gives, once it has noticed."""
    with server.client() as anonymous:
        answer = wait_for(lambda: None if (found := anonymous.get("/readyz")).is_success else found)
    assert (answer.status_code, error_of(answer)["code"]) == (503, "not_ready")
    return str(error_of(answer)["details"]["cause"])


def test_readiness_fails_when_nothing_can_be_stored(make_server: MakeServer) -> None:
    server = make_server()
    server.backend.writer.stop()
    assert not_ready(server) == "writer_stopped"
    refused = server.http.post("/api/v1/access-tokens", json={"scope": "read"})
    assert (refused.status_code, error_of(refused)["code"]) == (503, "store_unavailable")


def test_readiness_fails_while_the_writer_is_stuck_and_comes_back(
    make_server: MakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("isentrope_server.api.health.WRITER_SECONDS", 0.2)
    server = make_server()
    go_on = threading.Event()
    stuck = server.backend.writer.submit(lambda _: go_on.wait(20))
    assert not_ready(server) == "writer_stuck"
    go_on.set()
    stuck.result(timeout=20)
    time.sleep(0.6)
    assert server.http.get("/readyz").status_code == 200


def test_readiness_fails_when_another_version_migrated_the_database(
    make_server: MakeServer,
) -> None:
    server = make_server()
    version = text("UPDATE alembic_version SET version_num = 'later'")
    server.backend.writer.submit(lambda t: t.connection.execute(version)).result(timeout=10)
    assert not_ready(server) == "schema_differs"


def test_a_name_in_place_of_an_id_is_answered_with_the_id_of_its_newest_run(
    server: ServerInThread,
) -> None:
    older, newer, gone = (Rank(server, name="so called") for _ in range(3))
    gone.send(RunFinished(status="finished", finished_at=2.0))
    assert server.http.delete(gone.path).status_code == 204
    answer = server.http.get("/api/v1/runs/so called/control")
    assert (answer.status_code, error_of(answer)["code"]) == (404, "not_found")
    assert error_of(answer)["details"] == {
        "run_id": "so called",
        "newest_of_that_name": newer.run_id,
    }
    assert older.run_id not in answer.text


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ("/metrics/series?name=x&form_step=2", ["query.form_step", "from_step"]),
        ("/law?colour=blue", ["query.colour", "points"]),
        ("?limit=3", ["query.limit"]),
        ("/metrics/series?name=x&since_=x", ["query.since_", "since"]),
    ],
)
def test_unknown_parameter_is_refused_with_the_nearest(
    server: ServerInThread, asked: str, named: list[str]
) -> None:
    rank = Rank(server)
    rank.report(0, x=1.0)
    answer = server.http.get(f"{rank.path}{asked}")
    assert (answer.status_code, error_of(answer)["code"]) == (422, "invalid_request")
    message = error_of(answer)["message"]
    assert [
        name for name in named if re.search(rf"(?<![\w.]){re.escape(name)}(?!\w)", message)
    ] == named


@pytest.mark.parametrize(
    ("module", "path"),
    [
        (metrics, "{run}/metrics/series?name=x"),
        (metrics, "{run}/histograms/h"),
        (runs, "/api/v1/runs"),
    ],
    ids=["series", "histograms", "runs"],
)
def test_answers_are_encoded_where_they_are_read(
    server: ServerInThread, rank: Rank, monkeypatch: pytest.MonkeyPatch, module: object, path: str
) -> None:
    rank.send(
        step_report(
            3, {"x": 1.5}, histograms=[ScoreHistogram(name="h", low=0.0, high=1.0, counts=(1, 2))]
        )
    )
    threads: list[threading.Thread] = []

    def noted(document: Answer) -> Response:
        threads.append(threading.current_thread())
        return json_answer(document)

    monkeypatch.setattr(module, "json_answer", noted)
    assert server.http.get(path.format(run=rank.path)).status_code == 200
    assert len(threads) == 1
    assert threads[0] is not server._thread
