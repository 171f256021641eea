"""The REST client against a real server."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest

from isentrope.client import calls
from isentrope.client.client import Client
from isentrope.client.connection import ApiError, AsyncClient, ControlConflict
from isentrope.transport.shipper import ShipperSettings, ship
from isentrope_wire.errors import ConfigurationError, IsentropeError
from tests.system.running_server import RunningServer, free_port
from tests.system.spool_of_a_run import leave_spool

RUN = "client-run"


@pytest.fixture(scope="module")
def client(server: RunningServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A client of a server that has one run of ten steps."""
    folder = leave_spool(tmp_path_factory.mktemp("spool"), RUN, steps=10, grpc_target=server.grpc_target)
    status = ship(folder, ShipperSettings(drain_seconds=10.0), find_token=lambda: server.token)
    assert status is not None
    assert status.acked_through == 11
    with Client(server.url, server.token) as a_client:
        yield a_client


def test_runs_are_listed_and_filtered(client: Client) -> None:
    (run,) = client.runs(project="demo", q=RUN)
    assert (run.id, run.name, run.step, run.planned_steps) == (RUN, "countdown", 9, 150)
    assert client.runs(project="no such project") == []


def test_a_run_tells_its_configuration_and_capabilities(client: Client) -> None:
    run = client.run(RUN)
    assert run.config == {"learning_rate": 1e-4}
    assert "method:clip_v" in run.capabilities


def test_metric_names_are_those_reported(client: Client) -> None:
    assert set(client.metric_names(RUN)) == {"entropy/mean", "reward/mean", "probe/seconds"}


def test_metrics_are_columns_of_one_length_where_missing_is_none_and_nan_is_nan(client: Client) -> None:
    columns = client.metrics(RUN, ["entropy/mean", "reward/mean", "probe/seconds"], from_step=2, to_step=4)
    assert list(columns) == ["step", "entropy/mean", "reward/mean", "probe/seconds"]
    assert columns["step"] == [2, 3, 4]
    assert columns["entropy/mean"] == pytest.approx([1 / 3, 1 / 4, 1 / 5])
    assert columns["reward/mean"] == [0.02, None, 0.04]
    assert math.isnan(columns["probe/seconds"][1])


def test_one_name_may_be_given_as_a_word(client: Client) -> None:
    assert client.metrics(RUN, "reward/mean")["step"] == [0, 2, 4, 6, 8]


def test_a_reduced_series_keeps_minima_and_maxima(client: Client) -> None:
    series = client.series(RUN, "entropy/mean", points=2).series["entropy/mean"]
    assert len(series.step) == 2
    assert max(series.max or []) == 1.0
    assert min(series.min or []) == pytest.approx(0.1)


def test_histograms_are_columns_over_steps(client: Client) -> None:
    columns = client.histograms(RUN, "score/discriminator", from_step=4, to_step=5)
    assert columns.step == [4, 5]
    assert columns.counts == [[4, 1, 2, 3], [5, 1, 2, 3]]
    assert (columns.low, columns.high) == ([-1.0, -1.0], [1.0, 1.0])


def test_a_step_is_read_whole(client: Client) -> None:
    step = client.step(RUN, 3)
    assert math.isnan(step.scalars["probe/seconds"])
    assert step.scalars["entropy/mean"] == 0.25


def test_a_control_is_set_upon_the_newest_version_and_stands_in_the_history(client: Client) -> None:
    before = client.control(RUN).version
    item = client.set_control(RUN, method="clip_v", mu_low=1, mu_high=1.5, scope="negative", reason="too fast")
    assert item.version == before + 1
    newest = client.control_history(RUN)[0]
    assert (newest.method, newest.mu_low, newest.mu_high, newest.scope, newest.reason) == (
        "clip_v",
        1.0,
        1.5,
        "negative",
        "too fast",
    )
    assert newest.state in ("PENDING", "DELIVERED")


def test_building_on_an_old_version_is_a_conflict_and_changes_nothing(client: Client) -> None:
    version = client.control(RUN).version
    client.set_control(RUN, method="clip_v", mu_low=2, reason="first")
    with pytest.raises(ControlConflict):
        client.set_control(RUN, method="clip_v", mu_low=3, reason="second", if_version=version)
    assert client.control(RUN).reason == "first"


def test_a_control_nobody_could_apply_is_not_even_sent(client: Client) -> None:
    version = client.control(RUN).version
    with pytest.raises(ConfigurationError, match="mu_low"):
        client.set_control(RUN, method="clip_v", mu_low=-1)
    assert client.control(RUN).version == version


def test_a_control_the_probe_lacks_is_refused_with_the_servers_reason(client: Client) -> None:
    with pytest.raises(ApiError, match="kl_cov") as refused:
        client.set_control(RUN, method="kl_cov")
    assert (refused.value.status, isinstance(refused.value, ControlConflict)) == (422, False)


def test_waiting_ends_with_the_time_when_no_trainer_answers(client: Client) -> None:
    start = time.monotonic()
    item = client.set_control(RUN, method="clip_b", mu_high=1, wait=True, wait_seconds=0.5)
    assert not item.state.is_final
    assert time.monotonic() - start < 3


def test_waiting_returns_the_terminal_state(client: Client) -> None:
    first = client.set_control(RUN, method="clip_b", mu_high=1)
    client.set_control(RUN, method="clip_b", mu_high=2)
    # The second takes the first one's place; nothing but the second can be applied now.
    item = client.wait_for_control(RUN, first.version, timeout_seconds=5.0)
    assert item.state == "SUPERSEDED"


def test_errors_have_the_servers_status_code_and_message(client: Client, server: RunningServer) -> None:
    with pytest.raises(ApiError, match="nobody") as unknown_run:
        client.run("nobody")
    with Client(server.url, "wrong") as stranger, pytest.raises(ApiError) as unknown_token:
        stranger.runs()
    assert (unknown_run.value.status, unknown_run.value.code) == (404, "not_found")
    assert (unknown_token.value.status, unknown_token.value.code) == (401, "unauthenticated")
    assert isinstance(unknown_token.value, IsentropeError)


def test_no_server_is_a_connection_error_without_status() -> None:
    with Client(f"http://127.0.0.1:{free_port()}", "t") as client, pytest.raises(ApiError) as raised:
        client.runs()
    assert isinstance(raised.value, ConnectionError)
    assert (raised.value.status, raised.value.code) == (None, "unreachable")
    assert "isentrope up" in str(raised.value)


def test_the_asynchronous_client_answers_the_same(client: Client, server: RunningServer) -> None:
    async def ask() -> tuple[object, object]:
        headers = {"Authorization": f"Bearer {server.token}"}
        async with httpx.AsyncClient(base_url=f"{server.url}/api/v1/", headers=headers, trust_env=False) as http:
            api = AsyncClient(http)
            with pytest.raises(ApiError, match="nobody"):
                await api.ask(calls.run("nobody"))
            return await api.ask(calls.step(RUN, 4)), await api.newest(calls.control_history(RUN), 1)

    step, history = asyncio.run(ask())
    assert (step, history) == (client.step(RUN, 4), client.control_history(RUN, limit=1))


class _SomethingElse(BaseHTTPRequestHandler):
    """A web server that is not Isentrope's."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"<html>hello</html>")

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""


def test_another_kind_of_server_is_recognised() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), _SomethingElse) as something_else:
        threading.Thread(target=something_else.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{something_else.server_address[1]}"
        with Client(url, "t") as client, pytest.raises(ApiError) as raised:
            client.runs()
        assert (raised.value.status, raised.value.code) == (200, "unexpected_answer")
        something_else.shutdown()


def test_url_and_token_come_from_the_environment(
    server: RunningServer, client: Client, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ISENTROPE_URL", server.url + "/")
    monkeypatch.delenv("ISENTROPE_TOKEN", raising=False)
    monkeypatch.setenv("ISENTROPE_HOME", str(tmp_path))
    (tmp_path / "owner-token").write_text(server.token + "\n")
    with Client() as from_environment:
        assert from_environment.run(RUN).id == RUN


def test_no_proxy_sees_the_token_for_a_server_on_this_machine(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{free_port()}")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    with Client(server.url, server.token) as client:
        assert isinstance(client.runs(), list)
