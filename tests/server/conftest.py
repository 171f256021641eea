"""One server for the tests that share, and a maker for those that need their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.server.in_thread import ServerInThread

MakeServer = Callable[..., ServerInThread]


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerInThread]:
    """Shared: every test brings a run of its own."""
    with ServerInThread(tmp_path_factory.mktemp("shared") / "home", heartbeat_seconds=0.3) as running:
        yield running


@pytest.fixture
def make_server(tmp_path: Path) -> Iterator[MakeServer]:
    """Starts a server with settings of its own: `make_server(control_ttl_seconds=1)`."""
    with ExitStack() as stack:

        def make(home: Path | None = None, **settings: object) -> ServerInThread:
            return stack.enter_context(ServerInThread(home or tmp_path / "home", **settings))

        yield make
