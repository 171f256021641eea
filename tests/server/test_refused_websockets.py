"""A refused WebSocket gets 403 and leaves no line in uvicorn's log."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from tests.server.in_thread import ServerInThread


@pytest.fixture(scope="module")
def with_pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerInThread]:
    with ServerInThread(tmp_path_factory.mktemp("pages") / "home", dashboard=True) as running:
        yield running


@pytest.fixture
def logged() -> Iterator[list[logging.LogRecord]]:
    """What uvicorn says; it doesn't hand its lines on."""
    records: list[logging.LogRecord] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            records.append(record)

    logger, keep = logging.getLogger("uvicorn.error"), Keep()
    logger.addHandler(keep)
    yield records
    logger.removeHandler(keep)


@pytest.mark.parametrize("token", ["wrong", "ingest", "read"])
def test_a_refused_websocket_costs_no_line_in_the_log(
    with_pages: ServerInThread, logged: list[logging.LogRecord], token: str
) -> None:
    secret = token if token == "wrong" else with_pages.token(token)
    address = with_pages.url.replace("http", "ws") + "/_dash-ws-callback"
    with pytest.raises(InvalidStatus) as refused:
        # From no page of this server's: a reader is refused by that.
        connect(address, additional_headers={"Authorization": f"Bearer {secret}"}, proxy=None)
    assert refused.value.response.status_code == 403
    assert with_pages.http.get("/healthz").status_code == 200
    assert not logged
