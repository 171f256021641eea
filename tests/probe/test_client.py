"""The REST client against a real server."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from isentrope.client.client import Client
from isentrope.client.connection import ApiError
from isentrope.transport.shipper import ShipperSettings, ship
from isentrope_wire import environment
from isentrope_wire.errors import IsentropeError
from tests.system.running_server import RunningServer, free_port
from tests.system.spool_of_a_run import leave_spool

RUN = "client-run"


@pytest.fixture(scope="module")
def client(server: RunningServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A client of a server that has one run of ten steps."""
    folder = leave_spool(
        tmp_path_factory.mktemp("spool"), RUN, steps=10, grpc_target=server.grpc_target
    )
    status = ship(folder, ShipperSettings(drain_seconds=10.0), find_token=lambda: server.token)
    assert status is not None
    assert status.acked_through == 11
    with Client(server.url, server.token) as a_client:
        yield a_client


def test_metrics_are_columns_of_one_length_where_missing_is_none_and_nan_is_nan(
    client: Client,
) -> None:
    columns = client.metrics(
        RUN, ["entropy/mean", "reward/mean", "probe/seconds"], from_step=2, to_step=4
    )
    assert list(columns) == ["step", "entropy/mean", "reward/mean", "probe/seconds"]
    assert columns["step"] == [2, 3, 4]
    assert columns["entropy/mean"] == pytest.approx([1 / 3, 1 / 4, 1 / 5])
    assert columns["reward/mean"] == [0.02, None, 0.04]
    assert math.isnan(columns["probe/seconds"][1])


def test_errors_have_the_servers_status_code_and_message(
    client: Client, server: RunningServer
) -> None:
    with pytest.raises(ApiError, match="nobody") as unknown_run:
        client.run("nobody")
    with Client(server.url, "wrong") as stranger, pytest.raises(ApiError) as unknown_token:
        stranger.runs()
    assert (unknown_run.value.status, unknown_run.value.code) == (404, "not_found")
    assert (unknown_token.value.status, unknown_token.value.code) == (401, "unauthenticated")
    assert isinstance(unknown_token.value, IsentropeError)


def test_no_server_is_a_connection_error_without_status() -> None:
    with (
        Client(f"http://127.0.0.1:{free_port()}", "t") as client,
        pytest.raises(ApiError) as raised,
    ):
        client.runs()
    assert isinstance(raised.value, ConnectionError)
    assert (raised.value.status, raised.value.code) == (None, "unreachable")
    assert "isentrope up" in str(raised.value)


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


def test_a_token_in_a_file_is_read_again_and_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "token"
    monkeypatch.setenv("ISENTROPE_HOME", str(tmp_path))
    monkeypatch.setenv("ISENTROPE_TOKEN", "of-the-variable")
    monkeypatch.setenv("ISENTROPE_TOKEN_FILE", str(file))
    assert (environment.token(), environment.token_source()) == (
        "of-the-variable",
        "ISENTROPE_TOKEN",
    )
    for token in ("first", "rotated"):
        file.write_text(f"{token}\n")
        assert (environment.token(), environment.token_source()) == (token, str(file))
