"""What all parts of a running server share: settings, database, writer, hub, tokens; and their work
in the background."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from isentrope_server.errors import StartupError
from isentrope_server.home import locked_database, locked_home, make_private_file
from isentrope_server.live import Hub, Notifications
from isentrope_server.security.tokens import (
    GOOD_OWNER_TOKEN,
    MAKE_A_TOKEN,
    TokenBook,
    ensure_owner_token,
)
from isentrope_server.settings import Settings
from isentrope_server.store.acknowledged import Acknowledged
from isentrope_server.store.database import (
    POSTGRESQL,
    Database,
    UnusableDatabase,
    check_file_system,
    refuses_file_writes,
    upgrade,
    write_in_a_line,
)
from isentrope_server.store.sqlite_file import DamagedFile, check_sound
from isentrope_server.store.writer import Transaction, Writer, WriterStopped

_T = TypeVar("_T")
_log = logging.getLogger(__name__)

EXPORTS_AT_ONCE = 2
"""Each holds some 1 000 reports in memory while it is written; others wait for their turn."""


@dataclass(slots=True, kw_only=True)
class Backend:
    """What routes and gRPC methods use."""

    settings: Settings
    database: Database
    writer: Writer
    hub: Hub
    tokens: TokenBook
    owner_token: str
    acknowledged: Acknowledged
    notifications: Notifications | None
    """None: no other server can share the database."""
    exporting: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(EXPORTS_AT_ONCE))
    """Held while an export is written."""
    exporting_of: defaultdict[str, asyncio.Semaphore] = field(
        default_factory=lambda: defaultdict(lambda: asyncio.Semaphore(1))
    )
    """By token, taken first: slow readers make only themselves wait."""

    @property
    def on_duty(self) -> bool:
        """Whether this server does the work of one server at a time: ending expired controls,
        packing, removing."""
        return self.notifications is None or self.notifications.on_duty

    async def write(
        self, work: Callable[[Transaction], _T], *, rows: int = 1, run_id: str | None = None
    ) -> _T:
        """Do work in a transaction on the writer's thread; return its result after COMMIT.
        Cancelling the caller does not cancel the work. `rows` is about how many it writes; `run_id`
        the only run it writes to, so that other servers may write to other runs, None:
        anything."""
        return await asyncio.shield(
            asyncio.wrap_future(self.writer.submit(work, rows=rows, run_id=run_id))
        )

    async def read(self, query: Callable[[Connection], _T]) -> _T:
        """Run a query in a thread, on a connection that can't write."""
        return await asyncio.to_thread(self._read_now, query)

    def _read_now(self, query: Callable[[Connection], _T]) -> _T:
        with self.database.reading() as connection:
            return query(connection)

    async def reload_tokens(self) -> None:
        """Read the tokens from the store; call it after a change."""
        await self.read(self.tokens.reload)


@asynccontextmanager
async def open_backend(settings: Settings) -> AsyncIterator[Backend]:
    """Lock the home, migrate the database, start the writer; stop and unlock at the end. The
    message of a StartupError is the one sentence to show."""
    database = Database(settings.resolved_database_url)
    with (
        locked_home(settings.home, settings.local_url, settings.local_grpc),
        locked_database(database.file),
    ):
        hub = Hub(asyncio.get_running_loop())
        tokens = TokenBook()
        notifications = None
        if database.is_shared:
            notifications = Notifications(database, hub, tokens.reload)
        if notifications is None:
            writer = Writer(database.writing_engine, hub.publish)
        else:
            writer = Writer(database.writing_engine, lambda events: None, notifications.announce)
        try:
            await asyncio.to_thread(_migrate, database, settings)
            writer.start()
            with _failures_in_a_sentence(settings):
                owner_token = await asyncio.wrap_future(
                    writer.submit(lambda t: _open_tokens(t, tokens, settings))
                )
                if notifications is not None:
                    notifications.start()
                acknowledged = Acknowledged(settings.home)
                with database.reading() as connection:
                    acknowledged.load(connection)
            backend = Backend(
                settings=settings,
                database=database,
                writer=writer,
                hub=hub,
                tokens=tokens,
                owner_token=owner_token,
                acknowledged=acknowledged,
                notifications=notifications,
            )
            try:
                yield backend
            finally:
                hub.close()
                acknowledged.save()
        finally:
            if writer.alive:
                await asyncio.to_thread(writer.stop)
            if notifications is not None:
                await asyncio.to_thread(notifications.stop)
            database.close()


def _migrate(database: Database, settings: Settings) -> None:
    with _failures_in_a_sentence(settings):
        if database.file is not None:
            check_file_system(database.file)
            make_private_file(database.file)
            check_sound(database.file)
        if database.opened_file is not None:
            database.opened_file.opened()
        with database.writing_engine.begin() as connection:
            upgrade(connection)


@contextmanager
def _failures_in_a_sentence(settings: Settings) -> Iterator[None]:
    try:
        yield
    except DamagedFile as error:
        raise StartupError(
            f"The database {settings.database_name} is damaged: {error}. Bring back a backup with"
            " `isentrope restore FILE`; it keeps the damaged file under another name."
        ) from error
    except UnusableDatabase as error:
        raise StartupError(
            f"The database {settings.database_name} can't be used: {error}, or set"
            " ISENTROPE_HOME or ISENTROPE_DATABASE_URL to another place."
        ) from error
    except (SQLAlchemyError, sqlite3.Error, OSError) as error:
        cause = str(getattr(error, "orig", None) or error).strip().replace("\n", " ")
        what = f"The database {settings.database_name} can't be opened: {cause}."
        if refuses_file_writes(error):
            raise StartupError(
                f"{what} Its disk takes no writes: it is full, mounted read only, over a quota, or "
                "failing. Make room or mend it, then start again; trainers keep their reports."
            ) from error
        raise StartupError(
            f"{what} Check the file and its permissions, or set ISENTROPE_HOME or "
            "ISENTROPE_DATABASE_URL."
        ) from error


def _open_tokens(transaction: Transaction, tokens: TokenBook, settings: Settings) -> str:
    is_shared = transaction.connection.dialect.name == POSTGRESQL
    owner_token = ensure_owner_token(
        transaction, settings.owner_token_file, settings.token, is_shared=is_shared
    )
    tokens.reload(transaction.connection)
    if len(owner_token) < GOOD_OWNER_TOKEN:
        _log.warning(
            "The owner's token has only %d characters and could be guessed. Use one with at least"
            " %d, made with %s.",
            len(owner_token),
            GOOD_OWNER_TOKEN,
            MAKE_A_TOKEN,
        )
    if settings.token is not None and tokens.find_by_secret(settings.token) is None:
        _log.warning(
            "ISENTROPE_TOKEN is ignored: it is only used at a home's first start, and this home has"
            " another token."
        )
    return owner_token


@asynccontextmanager
async def run_in_background(*work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run endless work while the block runs; it is cancelled at the end, and what it does then is
    waited for."""
    tasks = [asyncio.create_task(one) for one in work]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


async def attempt(work: Coroutine[Any, Any, _T], *, what: str) -> _T | None:
    """Await work; log a failure, which would end a task and be reported nowhere. Returns the work's
    result; None after a failure. `what` begins the log line: "Packing" becomes "Packing failed
    ...". Cancelling the caller cancels the work."""
    outcome: _T | BaseException = (await asyncio.gather(work, return_exceptions=True))[0]
    if not isinstance(outcome, BaseException):
        return outcome
    if isinstance(outcome, SQLAlchemyError | WriterStopped):
        _log.error("%s failed, next try in a moment: %s", what, write_in_a_line(outcome))
    else:
        # Unexpected: the traceback is needed.
        _log.error("%s failed, next try in a moment: %r", what, outcome, exc_info=outcome)
    return None


RETRY_SECONDS = 60.0


class RetryPauses:
    """Keeps work that failed from being tried again for a minute: a stream whose reports can't be
    packed would otherwise be read, and its traceback logged, every two seconds."""

    def __init__(self) -> None:
        self._until: dict[int, float] = {}

    def is_paused(self, key: int) -> bool:
        """Whether the work with this key failed less than a minute ago."""
        return time.monotonic() < self._until.get(key, 0.0)

    async def attempt(self, key: int, work: Coroutine[Any, Any, _T], *, what: str) -> _T | None:
        """As `attempt`, of work that returns something."""
        outcome = await attempt(work, what=what)
        if outcome is None:
            self._until[key] = time.monotonic() + RETRY_SECONDS
        return outcome
