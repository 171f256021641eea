"""One server for the tests that share, a maker for those that need their own, and both databases.

A test that uses `server`, `make_server` or `database_url` runs on SQLite. A file about the store,
about what many do at once or about migrations says `DATABASES = ("sqlite", "postgresql")`; its
tests on PostgreSQL belong to the full suite."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import pytest

from isentrope.client.client import Client
from isentrope_server.store.database import Database, upgrade
from tests.server.compaction import NEVER
from tests.server.in_thread import ServerInThread
from tests.server.postgresql import PostgreSQL
from tests.server.rank import Rank

MakeServer = Callable[..., ServerInThread]
SharedServer = Callable[..., AbstractContextManager[ServerInThread]]

_DATABASES = {"sqlite": "sqlite", "postgresql": pytest.param("postgresql", marks=pytest.mark.slow)}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "database_kind" in metafunc.fixturenames:
        kinds = [_DATABASES[name] for name in getattr(metafunc.module, "DATABASES", ("sqlite",))]
        metafunc.parametrize("database_kind", kinds, indirect=True, scope="session")


@pytest.fixture(scope="session")
def database_kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="session")
def postgresql() -> Iterator[PostgreSQL]:
    """One real PostgreSQL for all tests, each with a database of its own."""
    with PostgreSQL() as running:
        yield running


@pytest.fixture(scope="session")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An SQLite file with all tables and no rows: a new server begins with a copy of it, as on
    PostgreSQL."""
    path = tmp_path_factory.mktemp("migrated") / "isentrope.db"
    path.touch(mode=0o600)
    database = Database(f"sqlite:///{path}")
    with database.writing_engine.begin() as connection:
        upgrade(connection)
    database.close()
    return path


def furnish(home: Path, migrated: Path) -> Path:
    """A home with a database in it, unless it has one."""
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not (home / migrated.name).exists():
        shutil.copy(migrated, home)
    return home


@pytest.fixture
def database_url(
    database_kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[str]:
    """The URL of a database of the test's own: without tables on SQLite, with all of them on
    PostgreSQL."""
    if database_kind == "sqlite":
        yield f"sqlite:///{tmp_path / 'test.db'}"
        return
    postgresql: PostgreSQL = request.getfixturevalue("postgresql")
    with postgresql.new_database() as url:
        yield url


@pytest.fixture(scope="session")
def shared_server(
    database_kind: str,
    migrated: Path,
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
) -> SharedServer:
    """A server for more than one test, on a database of its own: `with
    shared_server(heartbeat_seconds=0.3) as server`."""

    @contextmanager
    def running(**settings: object) -> Iterator[ServerInThread]:
        with ExitStack() as stack:
            if database_kind == "postgresql":
                postgresql: PostgreSQL = request.getfixturevalue("postgresql")
                settings["database_url"] = stack.enter_context(postgresql.new_database())
            home = furnish(tmp_path_factory.mktemp("shared") / "home", migrated)
            yield stack.enter_context(ServerInThread(home, **settings))

    return running


@pytest.fixture(scope="session")
def server(shared_server: SharedServer) -> Iterator[ServerInThread]:
    """Of all tests: every test brings a run of its own."""
    with shared_server(heartbeat_seconds=0.3) as running:
        yield running


@pytest.fixture
def rank(server: ServerInThread) -> Rank:
    """The first rank of a new run."""
    return Rank(server)


@pytest.fixture
def client(server: ServerInThread) -> Iterator[Client]:
    """The owner's."""
    with Client(server.url, server.owner_token) as client:
        yield client


@pytest.fixture(scope="module")
def still_server(shared_server: SharedServer) -> Iterator[ServerInThread]:
    """Of the tests of a file; it does its housekeeping on request."""
    with shared_server(housekeeping_interval_seconds=NEVER) as running:
        yield running


@pytest.fixture(scope="module")
def with_pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerInThread]:
    """A server with its dashboard: Dash adds routes of its own."""
    with ServerInThread(tmp_path_factory.mktemp("pages") / "home", dashboard=True) as running:
        yield running


@pytest.fixture
def make_server(
    tmp_path: Path, database_kind: str, database_url: str, migrated: Path
) -> Iterator[MakeServer]:
    """Starts a server with settings of its own: `make_server(control_ttl_seconds=1)`."""
    with ExitStack() as stack:

        def make(home: Path | None = None, **settings: object) -> ServerInThread:
            given = {"database_url": database_url} if database_kind == "postgresql" else {}
            furnished = furnish(home or tmp_path / "home", migrated)
            return stack.enter_context(ServerInThread(furnished, **(given | settings)))

        yield make


@pytest.fixture
def still(make_server: MakeServer) -> ServerInThread:
    """A server of the test's own that does its housekeeping on request."""
    return make_server(housekeeping_interval_seconds=NEVER)
