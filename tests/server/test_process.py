"""The process: how it starts, what it reports when it can't, how it ends."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner, Result

from isentrope.cli import frame
from isentrope_server import commands, serving
from isentrope_server.home import running_server_url
from isentrope_server.settings import Settings


def environment(home: Path, **more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ISENTROPE_")}
    return kept | {"ISENTROPE_HOME": str(home), "ISENTROPE_DASHBOARD": "false"} | more


def call(*arguments: str, home: Path, **more: str) -> Result:
    """`isentrope ...` in this process: for what ends by itself."""
    unset: dict[str, str | None] = {
        name: None for name in os.environ if name.startswith("ISENTROPE_")
    }
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
        url = process.stdout.readline().strip()
        yield process, url, (home / "owner-token").read_text().strip()
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


@pytest.mark.parametrize("terminal", [True, False])
def test_the_address_that_logs_in_is_shown_on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, terminal: bool
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    commands._announce(Settings(token=None), "http://127.0.0.1:7070/?token=secret", 7071)
    shown = capsys.readouterr()
    assert shown.out == (
        "http://127.0.0.1:7070/?token=secret\n" if terminal else "http://127.0.0.1:7070\n"
    )
    assert "secret" not in shown.err


def test_it_answers_logs_with_time_level_and_logger_and_ends_on_sigterm(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with up(home, ISENTROPE_TOKEN="too-short") as (process, url, token):
        assert httpx.get(f"{url}/healthz", trust_env=False).status_code == 200
        assert (token, "token=" in url) == ("too-short", False)
        assert process.stderr is not None
        warning = (
            r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d+ WARNING isentrope_server.backend: The owner's"
            r" token has only 9 "
        )
        assert re.match(warning, process.stderr.readline())
        assert (home / "owner-token").stat().st_mode & 0o777 == 0o600
        assert (home / "isentrope.db").stat().st_mode & 0o077 == 0
        assert running_server_url(home) == url
        created = call("token", "create", "--scope", "read", "--json", home=home)
        reader = json.loads(created.stdout)["token"]
        bearer = {"Authorization": f"Bearer {reader}"}
        assert httpx.get(f"{url}/api/v1/runs", headers=bearer, trust_env=False).status_code == 200
        second = call("up", "--http-port", url.rpartition(":")[2], "--grpc-port", "0", home=home)
        assert second.exit_code == 2
        # And not that its port is in use.
        assert f"(process {process.pid}, {url})" in one_sentence(second)
        assert "ISENTROPE_HOME" in second.stderr
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=20) == 0
        assert running_server_url(home) is None
        assert process.stderr is not None
        lines = process.stderr.read().splitlines()
        assert lines[-1].endswith(f"Log in with the token in {home / 'owner-token'}:")
        assert not any(token in line for line in lines)
        assert lines[-2].startswith(
            f"For trainers and commands: export ISENTROPE_URL={url} ISENTROPE_GRPC=127.0.0.1:"
        )
        assert len(lines) == 2
    listed = json.loads(call("token", "list", "--json", home=home).stdout)
    assert [(item["name"], item["scope"]) for item in listed] == [
        ("owner", "admin"),
        ("read", "read"),
    ]
    assert call("token", "revoke", listed[1]["id"], home=home).exit_code == 0
    again = call("token", "revoke", listed[1]["id"], home=home)
    assert again.exit_code == 1
    assert listed[1]["id"] in one_sentence(again)


def test_log_lines_are_json_objects_where_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def serve(*_: object, **__: object) -> None:
        logging.getLogger("isentrope_server.some").error(
            "It %s.", "broke", exc_info=ValueError("for a reason")
        )

    monkeypatch.setattr(serving, "serve", serve)
    monkeypatch.setattr(logging.root, "handlers", [])
    line = json.loads(one_sentence(call("up", home=tmp_path, ISENTROPE_LOG_JSON="1")))
    assert abs(datetime.fromisoformat(line["time"]).timestamp() - time.time()) < 60
    assert (line["level"], line["logger"]) == ("ERROR", "isentrope_server.some")
    assert line["message"] == "It broke.\nValueError: for a reason"


def refused_start(home: Path, **variables: str) -> str:
    """The sentence of a server that doesn't start."""
    result = call(
        "up", home=home, **{"ISENTROPE_HTTP_PORT": "0", "ISENTROPE_GRPC_PORT": "0"} | variables
    )
    assert result.exit_code == 2
    assert "secret:" not in result.stderr
    return one_sentence(result)


def test_a_line_break_behind_a_token_is_left_out() -> None:
    assert Settings(token="made-by-echo\n").token == "made-by-echo"


def test_a_token_that_anybody_could_guess_is_refused(tmp_path: Path) -> None:
    remedy = 'python -c "import secrets; print(secrets.token_urlsafe(32))"'
    assert remedy in refused_start(tmp_path / "home", ISENTROPE_TOKEN="a")


@pytest.mark.parametrize("option", ["--http-port", "--grpc-port"])
def test_a_port_in_use_is_named_with_its_option(tmp_path: Path, option: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        variable = f"ISENTROPE_{option[2:].replace('-', '_').upper()}"
        sentence = refused_start(tmp_path / "home", **{variable: port})
    assert f"port {port}" in sentence
    assert option in sentence
    assert not (tmp_path / "home").exists(), "a server that can't start leaves nothing behind"


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"HOST": "999.1.1.1", "INSECURE_I_KNOW": "1"}, ("999.1.1.1", "--host")),
        ({"HOST": "192.0.2.1", "INSECURE_I_KNOW": "1"}, ("192.0.2.1", "--host")),
        ({"HTTP_PORT": "17345", "GRPC_PORT": "17345"}, ("both 17345",)),
        ({"HTTP_PORT": "seventy"}, ("ISENTROPE_HTTP_PORT",)),
        # As Kubernetes sets it for a Service isentrope-http; the other setting is refused.
        (
            {"HTTP_PORT": "tcp://10.0.0.1:80", "HOST": "192.0.2.1", "INSECURE_I_KNOW": "1"},
            ("--host",),
        ),
        ({"DATABASE_URL": "bogus://user:secret:@host/x"}, ("ISENTROPE_DATABASE_URL",)),
        ({"DATABASE_URL": "notaurl:secret:"}, ("ISENTROPE_DATABASE_URL",)),
        ({"ALLOWED_HOSTS": "not-json"}, ("allowed_hosts",)),
        ({"DATABASE_URL": "sqlite://"}, ("ISENTROPE_DATABASE_URL", "needs a file")),
        ({"PUBLIC_URL": "hub.example"}, ("ISENTROPE_PUBLIC_URL", "https://")),
        ({"SECRETS_DIR": "/no/such/folder"}, ("ISENTROPE_SECRETS_DIR",)),
    ],
)
def test_a_setting_that_cannot_be_used_is_named(
    tmp_path: Path, variables: dict[str, str], words: tuple[str, ...]
) -> None:
    sentence = refused_start(
        tmp_path / "home", **{f"ISENTROPE_{name}": value for name, value in variables.items()}
    )
    assert all(word in sentence for word in words)
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize("home", ["", "isentrope.db"])
def test_a_file_that_is_no_home_or_no_database_is_named(tmp_path: Path, home: str) -> None:
    path = tmp_path / "home" / home
    path.parent.mkdir(exist_ok=True)
    path.write_text("This is a letter to a friend, and no database at all. " * 50)
    assert str(path) in refused_start(tmp_path / "home")
