"""A token chosen by hand becomes the owner's where it can't be guessed."""

from __future__ import annotations

from pathlib import Path

import pytest

from isentrope_server.errors import StartupError
from isentrope_server.security.tokens import ensure_owner_token
from tests.server.conftest import MakeServer


@pytest.mark.parametrize("length", [4, 31])
def test_a_short_owner_s_token_is_warned_of(
    make_server: MakeServer, caplog: pytest.LogCaptureFixture, length: int
) -> None:
    server = make_server(token="t" * length)
    assert server.http.get("/api/v1/access-tokens").status_code == 200
    (warning,) = [record for record in caplog.records if record.name == "isentrope_server.backend"]
    assert length in (warning.args or ())


@pytest.mark.parametrize("token", [None, "t" * 32])
def test_a_long_one_and_one_the_server_made_are_not(
    make_server: MakeServer, caplog: pytest.LogCaptureFixture, token: str | None
) -> None:
    make_server(token=token)
    assert not [record for record in caplog.records if record.name == "isentrope_server.backend"]


def test_refused_token_keeps_the_owner_s(make_server: MakeServer, tmp_path: Path) -> None:
    server = make_server()
    refused = server.backend.writer.submit(lambda t: ensure_owner_token(t, tmp_path / "gone", "123"))
    with pytest.raises(StartupError, match=r"4 .*32.* 3"):
        refused.result(10)
    assert not (tmp_path / "gone").exists()
    server.backend.writer.submit(lambda t: server.backend.tokens.reload(t.connection)).result(10)
    assert server.http.get("/api/v1/access-tokens").status_code == 200
