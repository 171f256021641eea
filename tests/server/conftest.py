"""One server for the tests that share, a maker for those that need their own, and both databases.

A test that uses `server`, `make_server` or `database_url` runs on SQLite and on PostgreSQL. A file whose tests are about
one of them, or about neither, says so: `DATABASES = ("sqlite",)`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.server.in_thread import ServerInThread
from tests.server.postgresql import PostgreSQL

MakeServer = Callable[..., ServerInThread]

DATABASES = ("sqlite", "postgresql")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "database_kind" in metafunc.fixturenames:
        kinds = getattr(metafunc.module, "DATABASES", DATABASES)
        metafunc.parametrize("database_kind", kinds, indirect=True, scope="session")


@pytest.fixture(scope="session")
def database_kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="session")
def postgresql() -> Iterator[PostgreSQL]:
    """One real PostgreSQL for all tests, each with a database of its own."""
    with PostgreSQL() as running:
        yield running


@pytest.fixture
def database_url(database_kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of a database of the test's own: without tables on SQLite, with all of them on PostgreSQL."""
    if database_kind == "sqlite":
        yield f"sqlite:///{tmp_path / 'test.db'}"
        return
    postgresql: PostgreSQL = request.getfixturevalue("postgresql")
    with postgresql.new_database() as url:
        yield url


@pytest.fixture(scope="session")
def server(
    database_kind: str, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[ServerInThread]:
    """Shared: every test brings a run of its own."""
    with ExitStack() as stack:
        settings: dict[str, Any] = {}
        if database_kind == "postgresql":
            postgresql: PostgreSQL = request.getfixturevalue("postgresql")
            settings["database_url"] = stack.enter_context(postgresql.new_database())
        home = tmp_path_factory.mktemp("shared") / "home"
        yield stack.enter_context(ServerInThread(home, heartbeat_seconds=0.3, **settings))


@pytest.fixture
def make_server(tmp_path: Path, database_kind: str, database_url: str) -> Iterator[MakeServer]:
    """Starts a server with settings of its own: `make_server(control_ttl_seconds=1)`."""
    with ExitStack() as stack:

        def make(home: Path | None = None, **settings: object) -> ServerInThread:
            given = {"database_url": database_url} if database_kind == "postgresql" else {}
            return stack.enter_context(ServerInThread(home or tmp_path / "home", **(given | settings)))

        yield make
