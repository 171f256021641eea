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
from isentrope.client.proxies import is_exempt
from isentrope.transport.shipper import ShipperSettings, ship
from isentrope_wire import environment
from isentrope_wire.errors import ConfigurationError, IsentropeError
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


PROXY_VARIABLES = ("http_proxy", "https_proxy", "all_proxy", "grpc_proxy", "no_proxy")


@pytest.fixture
def without_proxies(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in PROXY_VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    return monkeypatch


@pytest.mark.parametrize(
    ("address", "no_proxy", "exempt"),
    [
        ("http://10.1.2.3:7070", "10.0.0.0/8", True),
        ("10.1.2.3:7071", "localhost, 10.0.0.0/8", True),
        ("http://10.1.2.3", "10.1.2.4,10.1.2.30", False),
        ("http://10.1.2.3", "10.1.2.3", True),
        ("http://11.1.2.3", "10.0.0.0/8,fe80::/10", False),
        ("https://[fd00::7]:7070", "fd00::/8", True),
        ("[fd00::7]:7071", "fd00::7", True),
        ("[fd00::7]:7071", "[fd00::7]:7071", True),
        ("[fd00::7]:7071", "[fd00::7]:7070", False),
        ("http://[fe00::7]", "fd00::/8", False),
        ("http://[::ffff:10.1.2.3]", "10.0.0.0/8", True),
        ("http://head.cluster.example", "cluster.example", True),
        ("http://head.cluster.example", ".Cluster.Example", True),
        ("http://head.cluster.example", "*.cluster.example", True),
        ("http://Head.cluster.example.", "head.cluster.example", True),
        ("http://badcluster.example", "cluster.example", False),
        ("http://head:7070", "head:7070", True),
        ("head:7071", "head:7070", False),
        ("http://head", "head:80", True),
        ("http://head:7070", "other *", True),
        ("http://head:7070", "", False),
        ("http://head:7070", ",,::/x,[,a:b:c,//:,:", False),
        ("http://[::1]:7070", "", True),
        ("localhost:7071", "", True),
        ("http://head:port", "*", False),
    ],
)
def test_hosts_that_no_proxy_names(
    without_proxies: pytest.MonkeyPatch, address: str, no_proxy: str, exempt: bool
) -> None:
    for name in ("no_proxy", "NO_PROXY"):
        without_proxies.setenv(name, no_proxy)
        assert is_exempt(address) is exempt
        without_proxies.delenv(name)


@pytest.mark.parametrize(
    "proxy",
    [
        "socks5://10.0.0.1:9",
        "socks://10.0.0.1:9/",
        "ftp://x",
        "://",
        "http://",
        "http://[::",
        "http://a:b",
        "\x01",
    ],
)
def test_a_useless_proxy_is_one_sentence(without_proxies: pytest.MonkeyPatch, proxy: str) -> None:
    without_proxies.setenv("ALL_PROXY", proxy)
    with pytest.raises(ConfigurationError, match=r"^ALL_PROXY .*NO_PROXY\.$"):
        Client("http://head:7070", "t")
    without_proxies.setenv("NO_PROXY", "head,fe80::/10")
    Client("http://head:7070", "t").close()


def test_a_proxys_password_is_not_shown(without_proxies: pytest.MonkeyPatch) -> None:
    without_proxies.setenv("HTTP_PROXY", f"http://me:secret@127.0.0.1:{free_port()}")
    with Client("http://head:7070", "t") as client, pytest.raises(ApiError) as raised:
        client.runs()
    assert "The proxy http://127.0.0.1:" in str(raised.value)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize("url", ["http://head:port", "http://[::", "head:7070"])
def test_an_address_that_is_none_is_said(url: str) -> None:
    with pytest.raises(ApiError, match="is no address of a server"), Client(url, "t") as client:
        client.runs()


def test_a_token_in_a_file_is_read_again_and_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "token"
    monkeypatch.setenv("ISENTROPE_HOME", str(tmp_path))
    monkeypatch.setenv("ISENTROPE_TOKEN", "of-the-variable")
    monkeypatch.setenv("ISENTROPE_TOKEN_FILE", str(file))
    for content in (None, "\n"):
        if content is not None:
            file.write_text(content)
        with pytest.raises(ConfigurationError, match=f"ISENTROPE_TOKEN_FILE names {file}"):
            environment.token()
    for token in ("first", "rotated"):
        file.write_text(f"{token}\n")
        assert (environment.token(), environment.token_source()) == (token, str(file))


def test_run_is_shown_as_the_server_diagnoses_it(client: Client) -> None:
    view = client.show(RUN)
    columns = client.metrics(RUN, "entropy/mean")
    assert view.entropies == dict(zip(columns["step"], columns["entropy/mean"], strict=True))
    assert client.diagnosis(RUN).message in str(view)
    assert f"{client.url}/runs/{RUN}" in view._repr_html_()
