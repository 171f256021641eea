"""A home knows the server that runs with it, so that commands find it on any port."""

from __future__ import annotations

from pathlib import Path

import pytest

from isentrope_server.home import locked_home
from isentrope_wire import environment


def test_commands_find_the_server_of_their_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ISENTROPE_URL", "ISENTROPE_GRPC"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ISENTROPE_HOME", str(tmp_path))
    with locked_home(tmp_path, "http://127.0.0.1:8123", "127.0.0.1:8124"):
        assert (environment.url(), environment.grpc_target()) == ("http://127.0.0.1:8123", "127.0.0.1:8124")
        assert environment.pages_of("127.0.0.1:8124") == "http://127.0.0.1:8123"
        monkeypatch.setenv("ISENTROPE_GRPC", "elsewhere:7071")
        assert (environment.url(), environment.pages_of("elsewhere:7071")) == (environment.DEFAULT_URL, None)
        monkeypatch.delenv("ISENTROPE_GRPC")
    assert (environment.url(), environment.grpc_target()) == (environment.DEFAULT_URL, environment.DEFAULT_GRPC)
