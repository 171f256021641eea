"""The Python client has a call for every address of the API, and each asks the right one."""

from __future__ import annotations

import contextlib
import inspect
import math
import time
from collections.abc import Callable
from typing import Any

import pytest

from isentrope.client import calls
from isentrope.client.calls import Call
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

CALLS: dict[tuple[str, str], Call[Any]] = {
    ("GET", f"{API_PREFIX}/runs"): calls.runs(),
    ("GET", f"{API_PREFIX}/run-counts"): calls.run_counts(),
    ("GET", _RUN_PATH): calls.run(RUN),
    ("PATCH", _RUN_PATH): calls.edit_run(RUN, notes="seen", tags=["a"]),
    ("DELETE", _RUN_PATH): calls.delete_run("over"),
    ("GET", f"{_RUN_PATH}/diagnosis"): calls.diagnosis(RUN),
    ("GET", f"{_RUN_PATH}/checks"): calls.checks(RUN),
    ("GET", f"{_RUN_PATH}/metrics"): calls.latest(RUN),
    ("GET", f"{_RUN_PATH}/metrics/series"): calls.series(RUN, "x"),
    ("GET", f"{_RUN_PATH}/steps/{{step}}"): calls.step(RUN, 0),
    ("GET", f"{_RUN_PATH}/histograms/{{name}}"): calls.histograms(RUN, "entropy/token"),
    ("GET", f"{_RUN_PATH}/tokens"): calls.tokens(RUN),
    ("GET", f"{_RUN_PATH}/tokens/recurring"): calls.recurring_tokens(RUN),
    ("GET", f"{_RUN_PATH}/rollouts"): calls.rollouts(RUN),
    ("GET", f"{_RUN_PATH}/alerts"): calls.alerts(RUN),
    ("PUT", f"{_RUN_PATH}/alerts/{{alert_id}}/acknowledgement"): calls.acknowledge(RUN, "1.0"),
    ("GET", f"{_RUN_PATH}/gaps"): calls.gaps(RUN),
    ("GET", f"{_RUN_PATH}/law"): calls.law(RUN),
    ("GET", f"{_RUN_PATH}/control"): calls.control(RUN),
    ("PUT", f"{_RUN_PATH}/control"): calls.set_control(RUN, Control(), if_version=0),
    ("POST", f"{_RUN_PATH}/control/preview"): calls.preview(RUN, Control()),
    ("POST", f"{_RUN_PATH}/outlook"): calls.outlook(RUN, Control()),
    ("GET", f"{_RUN_PATH}/control/history"): calls.control_history(RUN),
    ("GET", f"{_RUN_PATH}/export"): calls.export(RUN, format="csv"),
    ("POST", f"{_RUN_PATH}/link"): calls.create_link(RUN),
    ("GET", f"{API_PREFIX}/me"): calls.me(),
    ("GET", f"{API_PREFIX}/access-tokens"): calls.access_tokens(),
    ("GET", f"{API_PREFIX}/notify"): calls.destinations(),
    ("POST", f"{API_PREFIX}/notify/test"): calls.test_destinations(),
    ("POST", f"{API_PREFIX}/access-tokens"): calls.create_access_token("ingest"),
    ("DELETE", f"{API_PREFIX}/access-tokens/{{token_id}}"): calls.revoke_access_token("nothing"),
    ("GET", f"{API_PREFIX}/audit"): calls.audit(),
}


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


def test_every_address_has_its_call() -> None:
    paths = create_app(Settings(dashboard=False)).openapi()["paths"]
    described = {
        (verb.upper(), path)
        for path, verbs in paths.items()
        for verb in verbs
        if path.startswith(API_PREFIX)
    }
    assert described == set(CALLS)


@pytest.mark.parametrize("address", CALLS, ids=" ".join)
def test_each_call_asks_its_address(covered: ServerInThread, address: tuple[str, str]) -> None:
    with Client(covered.url, covered.owner_token) as client:
        before = asked(covered).get(address, 0)
        with contextlib.suppress(ApiError):
            client.ask(CALLS[address])
        assert asked(covered)[address] == before + 1


@pytest.mark.parametrize(
    ("method", "path"),
    [
        (Client.runs, f"{API_PREFIX}/runs"),
        (Client.series, f"{_RUN_PATH}/metrics/series"),
        (Client.export, f"{_RUN_PATH}/export"),
        (Client.law, f"{_RUN_PATH}/law"),
    ],
)
def test_a_method_takes_what_its_address_takes(method: Callable[..., object], path: str) -> None:
    described = create_app(Settings(dashboard=False)).openapi()["paths"][path]["get"]["parameters"]
    names = {parameter["name"] for parameter in described if parameter["in"] == "query"}
    # Pages are turned by the client.
    assert names - {"name", "cursor"} <= set(inspect.signature(method).parameters)


def test_a_limit_is_kept_over_pages(
    covered: ServerInThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("isentrope.client.connection._PAGE_ITEMS", 2)
    with Client(covered.url, covered.owner_token) as client:
        for number in range(5):
            client.ask(calls.edit_run(RUN, notes=f"note {number}"))
        notes = [entry.change["new"]["notes"] for entry in client.items(calls.audit(), 5)]
        assert notes == [f"note {number}" for number in (4, 3, 2, 1, 0)]
        assert len(list(client.items(calls.audit(), 3))) == 3
        assert len(list(client.items(calls.audit()))) > 5
        assert len(client.runs(limit=1)) == 1


def test_newest_values_and_what_is_new_come_as_they_were_asked_for(
    rank: Rank, client: Client
) -> None:
    for step in range(10):
        rank.report(step, x=float(step), bad=float("nan"))
    latest = {item.name: (item.step, item.value) for item in client.latest(rank.run_id)}
    assert latest["x"] == (9, 9.0)
    assert math.isnan(latest["bad"][1])
    answer = client.series(rank.run_id, "x", from_step=2, to_step=7, points=3)
    assert (answer.series["x"].min, answer.series["x"].step) == ([2.0, 4.0, 6.0], [3, 5, 7])
    assert client.series(rank.run_id, "x", since=answer.cursor).series["x"].step == []
