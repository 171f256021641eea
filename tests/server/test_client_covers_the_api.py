"""The Python client has a method for every address of the API, and each asks the right one."""

from __future__ import annotations

import contextlib
import inspect
import io
import math
import time
from collections.abc import Callable
from typing import Any

import pytest

from isentrope.client.client import Client
from isentrope.client.connection import ApiError
from isentrope_server.app import API_PREFIX, create_app
from isentrope_server.settings import Settings
from isentrope_wire.control import Control
from isentrope_wire.reports import RunFinished
from tests.server.in_thread import ServerInThread
from tests.server.rank import Rank

RUN = "covered"
_RUN_PATH = f"{API_PREFIX}/runs/{{run_id}}"

METHODS: dict[tuple[str, str], Callable[[Client], object]] = {
    ("GET", f"{API_PREFIX}/runs"): lambda client: client.runs(),
    ("GET", f"{API_PREFIX}/run-counts"): lambda client: client.run_counts(),
    ("GET", _RUN_PATH): lambda client: client.run(RUN),
    ("PATCH", _RUN_PATH): lambda client: client.edit_run(RUN, notes="seen", tags=["a"]),
    ("DELETE", _RUN_PATH): lambda client: client.delete_run("over"),
    ("GET", f"{_RUN_PATH}/diagnosis"): lambda client: client.diagnosis(RUN),
    ("GET", f"{_RUN_PATH}/metrics"): lambda client: client.metric_names(RUN),
    ("GET", f"{_RUN_PATH}/metrics/series"): lambda client: client.metrics(RUN, "x"),
    ("GET", f"{_RUN_PATH}/steps/{{step}}"): lambda client: client.step(RUN, 0),
    ("GET", f"{_RUN_PATH}/histograms/{{name}}"): lambda client: client.histograms(RUN, "entropy/token"),
    ("GET", f"{_RUN_PATH}/tokens"): lambda client: client.tokens(RUN),
    ("GET", f"{_RUN_PATH}/tokens/recurring"): lambda client: client.recurring_tokens(RUN),
    ("GET", f"{_RUN_PATH}/rollouts"): lambda client: client.rollouts(RUN),
    ("GET", f"{_RUN_PATH}/alerts"): lambda client: client.alerts(RUN),
    ("GET", f"{_RUN_PATH}/gaps"): lambda client: client.gaps(RUN),
    ("GET", f"{_RUN_PATH}/law"): lambda client: client.law(RUN),
    ("GET", f"{_RUN_PATH}/what-if"): lambda client: client.what_if(RUN),
    ("GET", f"{_RUN_PATH}/control"): lambda client: client.control(RUN),
    ("PUT", f"{_RUN_PATH}/control"): lambda client: client.set_control(RUN, method="none"),
    ("POST", f"{_RUN_PATH}/control/preview"): lambda client: client.preview(RUN, Control()),
    ("GET", f"{_RUN_PATH}/control/history"): lambda client: client.control_history(RUN),
    ("GET", f"{_RUN_PATH}/export"): lambda client: client.export(RUN, io.BytesIO(), format="csv"),
    ("GET", f"{API_PREFIX}/me"): lambda client: client.me(),
    ("GET", f"{API_PREFIX}/access-tokens"): lambda client: client.access_tokens(),
    ("GET", f"{API_PREFIX}/notify"): lambda client: client.destinations(),
    ("POST", f"{API_PREFIX}/notify/test"): lambda client: client.test_destinations(),
    ("POST", f"{API_PREFIX}/access-tokens"): lambda client: client.create_access_token("ingest"),
    ("DELETE", f"{API_PREFIX}/access-tokens/{{token_id}}"): lambda client: client.revoke_access_token("nothing"),
    ("GET", f"{API_PREFIX}/audit"): lambda client: client.audit(),
}
_LIVE = ("GET", f"{_RUN_PATH}/live")


@pytest.fixture(scope="module")
def covered(server: ServerInThread) -> ServerInThread:
    rank = Rank(server, run_id=RUN)
    rank.report(0, x=1.0)
    Rank(server, run_id="over").send(RunFinished(status="finished", finished_at=time.time()))
    return server


def asked(server: ServerInThread) -> dict[tuple[str, str], float]:
    """How often each address was asked, by method and template."""
    counted: dict[tuple[str, str], float] = {}
    for line in server.http.get("/metrics").text.splitlines():
        name, _, rest = line.partition("{")
        if name == "isentrope_http_request_seconds_count":
            labels: dict[str, str] = dict(
                pair.split("=", 1) for pair in rest.partition("} ")[0].replace('"', "").split(",")
            )
            key = (labels["method"], labels["route"].replace(":path", ""))
            counted[key] = counted.get(key, 0) + float(rest.rpartition(" ")[2])
    return counted


def test_every_address_has_its_method() -> None:
    paths = create_app(Settings(dashboard=False)).openapi()["paths"]
    described = {(verb.upper(), path) for path, verbs in paths.items() for verb in verbs if path.startswith(API_PREFIX)}
    assert described == set(METHODS) | {_LIVE}


@pytest.mark.parametrize("address", METHODS, ids=" ".join)
def test_each_method_asks_its_address(covered: ServerInThread, address: tuple[str, str]) -> None:
    with Client(covered.url, covered.owner_token) as client:
        before = asked(covered).get(address, 0)
        with contextlib.suppress(ApiError):
            METHODS[address](client)
        assert asked(covered)[address] == before + 1


ASKED_FOR_BY_ITSELF = {"cursor", "last-event-id"}
"""Pages are turned by the client; a reader that returns to a live stream passes `since`."""
OTHER_NAMES = {"name": "names", "run": "run_id"}


def test_each_method_takes_what_its_address_takes() -> None:
    """In the query: the parts of a body are arguments of other names."""
    paths = create_app(Settings(dashboard=False)).openapi()["paths"]
    missing = []
    for (verb, path), method in {**METHODS, _LIVE: lambda client: client.live(RUN)}.items():
        described = {
            parameter["name"]
            for parameter in paths[path][verb.lower()].get("parameters", [])
            if parameter["in"] == "query"
        }
        taken = taken_by(method) | ({"since"} if path.endswith("/series") else set())
        missing += [
            f"{path}: {name}"
            for name in described - ASKED_FOR_BY_ITSELF
            if name not in taken and OTHER_NAMES.get(name) not in taken
        ]
    assert missing == []


def taken_by(call: Callable[[Client], object]) -> set[str]:
    """The parameters of the client's method that a lambda calls."""
    (name,) = (name for name in call.__code__.co_names if hasattr(Client, name))
    return set(inspect.signature(getattr(Client, name)).parameters)


def test_a_limit_is_kept_over_pages(covered: ServerInThread, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("isentrope.client.connection._PAGE_ITEMS", 2)
    with Client(covered.url, covered.owner_token) as client:
        for number in range(5):
            client.edit_run(RUN, notes=f"note {number}")
        notes = [entry.change["new"]["notes"] for entry in client.audit(limit=5)]
        assert notes == [f"note {number}" for number in (4, 3, 2, 1, 0)]
        assert len(client.audit(limit=3)) == 3
        assert len(client.audit()) > 5
        assert len(client.runs(limit=1)) == 1


def test_newest_values_and_what_is_new_come_as_they_were_asked_for(server: ServerInThread) -> None:
    rank = Rank(server)
    for step in range(10):
        rank.report(step, x=float(step), bad=float("nan"))
    with Client(server.url, server.owner_token) as client:
        latest = {item.name: (item.step, item.value) for item in client.latest(rank.run_id)}
        assert latest["x"] == (9, 9.0)
        assert math.isnan(latest["bad"][1])
        answer = client.series(rank.run_id, "x", from_step=2, to_step=7, points=3)
        assert (answer.series["x"].min, answer.series["x"].step) == ([2.0, 4.0, 6.0], [3, 5, 7])
        assert client.series(rank.run_id, "x", since=answer.cursor).series["x"].step == []


def test_live_events_come_as_they_are_committed(server: ServerInThread) -> None:
    rank = Rank(server)
    rank.report(0, x=1.0)
    with Client(server.url, server.owner_token) as client:
        before = client.series(rank.run_id, "x")
        assert before.reset
        rank.report(1, x=float("nan"))
        events = client.live(rank.run_id, since=before.cursor)
        first: Any = next(events)
        assert (first.kind, first.data.step, list(first.data.scalars)) == ("step", 1, ["x"])
        assert math.isnan(first.data.scalars["x"])
        new = client.series(rank.run_id, "x", since=before.cursor)
        assert (new.series["x"].step, new.reset) == ([1], False)
        events.close()  # type: ignore[attr-defined]
        with pytest.raises(ApiError):
            next(client.live("unknown"))
