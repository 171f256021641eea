"""The process: how it starts, what it reports when it can't, how it ends."""

from __future__ import annotations

import json
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import httpx
import pytest
from click.testing import CliRunner, Result

from isentrope.cli import frame
from isentrope_server.home import running_server_url
from isentrope_wire.codec import record_of, record_to_pb, run_started_to_pb
from isentrope_wire.reports import PROTOCOL_VERSION, RunStarted, StepReport
from isentrope_wire.v1 import telemetry_pb2 as pb
from isentrope_wire.v1.telemetry_pb2_grpc import TelemetryStub


def environment(home: Path, **more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ISENTROPE_")}
    return kept | {"ISENTROPE_HOME": str(home), "ISENTROPE_DASHBOARD": "false"} | more


def call(*arguments: str, home: Path, **more: str) -> Result:
    """`isentrope ...` in this process: for what ends by itself."""
    unset: dict[str, str | None] = {name: None for name in os.environ if name.startswith("ISENTROPE_")}
    return CliRunner().invoke(frame.main, arguments, env=unset | environment(home, **more))


@contextmanager
def up(home: Path, **more: str) -> Iterator[tuple[subprocess.Popen[str], str, str]]:
    """A running server: (process, url, token)."""
    process = subprocess.Popen(
        [sys.executable, "-m", "isentrope", "up", "--http-port", "0", "--grpc-port", "0"],
        env=environment(home, **more),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        url, _, token = process.stdout.readline().strip().partition("/?token=")
        yield process, url, token
    finally:
        process.kill()
        process.communicate(timeout=30)


def grpc_port(process: subprocess.Popen[str]) -> int:
    """As the server prints it on stderr."""
    assert process.stderr is not None
    for line in process.stderr:
        if found := re.search(r"gRPC port (\d+)", line):
            return int(found[1])
    raise AssertionError("The server never printed the port for reports.")


def one_sentence(result: Result) -> str:
    assert result.stdout == ""
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1, result.stderr
    return lines[0]


def test_it_prints_the_address_that_logs_in_and_ends_on_sigterm(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with up(home) as (process, url, token):
        assert httpx.get(f"{url}/healthz", trust_env=False).status_code == 200
        assert httpx.get(f"{url}/?token={token}", trust_env=False).status_code == 303
        assert (home / "owner-token").read_text().strip() == token
        assert (home / "owner-token").stat().st_mode & 0o777 == 0o600
        assert (home / "isentrope.db").stat().st_mode & 0o077 == 0
        assert running_server_url(home) == url
        created = call("token", "create", "--scope", "read", "--json", home=home)
        reader = json.loads(created.stdout)["token"]
        bearer = {"Authorization": f"Bearer {reader}"}
        assert httpx.get(f"{url}/api/v1/runs", headers=bearer, trust_env=False).status_code == 200
        second = call("up", "--http-port", "0", "--grpc-port", "0", home=home)
        assert second.exit_code == 2
        assert f"(process {process.pid}, {url})" in one_sentence(second)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=20) == 0
        assert running_server_url(home) is None
        assert process.stderr is not None
        lines = process.stderr.read().splitlines()
        assert lines[-1].endswith("Log in with:")
        assert lines[-2].startswith(f"For trainers and commands: export ISENTROPE_URL={url} ISENTROPE_GRPC=127.0.0.1:")
        assert all(line.startswith("Note: ") for line in lines[:-2])
    listed = json.loads(call("token", "list", "--json", home=home).stdout)
    assert [(item["name"], item["scope"]) for item in listed] == [("owner", "admin"), ("read", "read")]
    assert call("token", "revoke", listed[1]["id"], home=home).exit_code == 0
    again = call("token", "revoke", listed[1]["id"], home=home)
    assert again.exit_code == 1
    assert listed[1]["id"] in one_sentence(again)


@pytest.mark.slow
def test_second_server_names_the_first_and_not_its_ports(tmp_path: Path) -> None:
    with up(tmp_path) as (process, url, _):
        taken = grpc_port(process)
        port = url.rpartition(":")[2]
        second = call("up", "--http-port", port, "--grpc-port", str(taken), home=tmp_path)
    assert second.exit_code == 2
    assert f"(process {process.pid}, {url})" in one_sentence(second)
    assert "`isentrope train`" in second.stderr


@pytest.mark.slow
def test_what_was_acknowledged_survives_a_kill(tmp_path: Path) -> None:
    started = RunStarted(
        run_id="r", incarnation="a", rank=0, world_size=1, name="", project="", started_at=1.0, probe_version="0"
    )
    hello = pb.HelloRequest(run=run_started_to_pb(started), protocol_version=PROTOCOL_VERSION)
    pushes = [
        pb.PushRequest(run_id="r", incarnation="a", rank=0, records=[record_to_pb(record_of(seq, report))])
        for seq in range(1, 21)
        if (report := StepReport(step=seq, recorded_at=1.0, scalars={"x": float(seq)}))
    ]
    with up(tmp_path) as (process, _, token), grpc.insecure_channel(f"127.0.0.1:{grpc_port(process)}") as channel:
        stub, metadata = TelemetryStub(channel), (("authorization", f"Bearer {token}"),)
        stub.Hello(hello, metadata=metadata, timeout=10)
        replies = [stub.Push(push, metadata=metadata, timeout=10) for push in pushes]
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=10)
    assert [reply.acked_through for reply in replies] == list(range(1, 21))
    with up(tmp_path) as (process, url, token), grpc.insecure_channel(f"127.0.0.1:{grpc_port(process)}") as channel:
        assert TelemetryStub(channel).Hello(hello, metadata=metadata, timeout=10).acked_through == 20
        bearer = {"Authorization": f"Bearer {token}"}
        answer = httpx.get(f"{url}/api/v1/runs/r/metrics/series?name=x", headers=bearer, trust_env=False).json()
    assert answer["series"]["x"]["value"] == [float(seq) for seq in range(1, 21)]


@pytest.mark.slow
def test_a_chosen_token_becomes_the_owners_at_the_first_start(tmp_path: Path) -> None:
    chosen = secrets.token_urlsafe(32)
    with up(tmp_path, ISENTROPE_TOKEN=chosen) as (_, url, token):
        assert token == chosen
        bearer = {"Authorization": f"Bearer {chosen}"}
        assert httpx.get(f"{url}/api/v1/access-tokens", headers=bearer, trust_env=False).status_code == 200


def test_a_token_that_anybody_could_guess_is_one_sentence_and_status_2(tmp_path: Path) -> None:
    result = call("up", "--http-port", "0", "--grpc-port", "0", home=tmp_path / "home", ISENTROPE_TOKEN="a")
    assert result.exit_code == 2
    assert 'python -c "import secrets; print(secrets.token_urlsafe(32))"' in one_sentence(result)


@pytest.mark.parametrize("option", ["--http-port", "--grpc-port"])
def test_a_port_in_use_is_one_sentence_and_status_2(tmp_path: Path, option: str) -> None:
    ports = {"--http-port": "0", "--grpc-port": "0"}
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ports[option] = str(taken.getsockname()[1])
        result = call("up", *(word for pair in ports.items() for word in pair), home=tmp_path / "home")
    assert result.exit_code == 2
    assert f"port {ports[option]}" in one_sentence(result)
    assert option in result.stderr
    assert not (tmp_path / "home").exists(), "a server that can't start leaves nothing behind"


@pytest.mark.parametrize("host", ["999.1.1.1", "192.0.2.1"])
def test_an_address_that_is_not_this_machines_points_to_the_host_option(tmp_path: Path, host: str) -> None:
    ports = ("--http-port", "0", "--grpc-port", "0")
    result = call("up", "--host", host, *ports, home=tmp_path / "home", ISENTROPE_INSECURE_I_KNOW="1")
    assert result.exit_code == 2
    assert host in one_sentence(result)
    assert "--host" in result.stderr
    assert "port" not in result.stderr
    assert not (tmp_path / "home").exists()


def test_one_port_for_both_is_refused_as_that(tmp_path: Path) -> None:
    result = call("up", "--http-port", "17345", "--grpc-port", "17345", home=tmp_path / "home")
    assert result.exit_code == 2
    assert "17345" in one_sentence(result)
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("ISENTROPE_DATABASE_URL", "bogus://user:secret@host/x"),
        ("ISENTROPE_DATABASE_URL", "notaurl:secret"),
        ("ISENTROPE_ALLOWED_HOSTS", "not-json"),
    ],
)
def test_a_variable_that_cannot_be_used_is_one_sentence_and_status_2(tmp_path: Path, variable: str, value: str) -> None:
    result = call("up", "--http-port", "0", "--grpc-port", "0", home=tmp_path / "home", **{variable: value})
    assert result.exit_code == 2
    assert variable.removeprefix("ISENTROPE_").lower() in one_sentence(result).lower()
    assert "secret" not in result.stderr
    assert not (tmp_path / "home").exists()


def test_a_home_that_cannot_be_used_is_one_sentence_and_status_2(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = call("up", "--http-port", "0", "--grpc-port", "0", home=tmp_path / "file")
    assert result.exit_code == 2
    assert str(tmp_path / "file") in one_sentence(result)


def test_a_database_that_is_none_is_one_sentence_and_status_2(tmp_path: Path) -> None:
    (tmp_path / "isentrope.db").write_text("This is a letter to a friend, and no database at all. " * 50)
    result = call("up", "--http-port", "0", "--grpc-port", "0", home=tmp_path)
    assert result.exit_code == 2
    assert str(tmp_path / "isentrope.db") in one_sentence(result)


def test_a_setting_that_cannot_be_used_is_one_sentence_and_status_2(tmp_path: Path) -> None:
    result = call("up", home=tmp_path, ISENTROPE_HTTP_PORT="seventy")
    assert result.exit_code == 2
    assert "ISENTROPE_HTTP_PORT" in one_sentence(result)


def test_help_imports_neither_web_framework_nor_grpc() -> None:
    code = (
        "import sys, isentrope_server.commands; "
        "print([m for m in ('fastapi', 'grpc', 'sqlalchemy', 'uvicorn', 'pydantic', 'numpy') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
