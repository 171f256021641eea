"""What every part of a running server shares: settings, database, writer, hub, tokens."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypeVar

from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from isentrope_server.control.expiry import Grace, sweep
from isentrope_server.errors import StartupError
from isentrope_server.home import locked_home, make_private_file
from isentrope_server.live.hub import Hub
from isentrope_server.security.owner import ensure_owner_token
from isentrope_server.security.tokens import TokenBook
from isentrope_server.settings import Settings
from isentrope_server.store import controls
from isentrope_server.store.database import Database
from isentrope_server.store.migrate import upgrade
from isentrope_server.store.writer import Transaction, Writer

_T = TypeVar("_T")
_log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class Backend:
    """Everything behind the routes and the gRPC methods."""

    settings: Settings
    database: Database
    writer: Writer
    hub: Hub
    tokens: TokenBook
    owner_token: str

    async def write(self, work: Callable[[Transaction], _T], *, rows: int = 1) -> _T:
        """Do `work` on the writer's thread; returns after COMMIT. A caller that goes away doesn't undo it."""
        return await asyncio.shield(asyncio.wrap_future(self.writer.submit(work, rows=rows)))

    async def read(self, query: Callable[[Connection], _T]) -> _T:
        """Run a query in a thread, on a connection that can't write."""
        return await asyncio.to_thread(self._read_now, query)

    def _read_now(self, query: Callable[[Connection], _T]) -> _T:
        with self.database.reading() as connection:
            return query(connection)


@asynccontextmanager
async def open_backend(settings: Settings) -> AsyncIterator[Backend]:
    """Lock the home, bring the database up to date, start the writer; undo it all at the end.

    Raises:
        StartupError: with the one sentence to show.
    """
    with locked_home(settings.home, settings.local_url):
        hub = Hub(asyncio.get_running_loop())
        database = Database(settings.resolved_database_url)
        writer = Writer(database.writing_engine, hub.publish)
        try:
            await asyncio.to_thread(_migrate, database, settings)
            writer.start()
            owner_token, tokens = await asyncio.wrap_future(writer.submit(lambda t: _open_tokens(t, settings)))
            backend = Backend(
                settings=settings, database=database, writer=writer, hub=hub, tokens=tokens, owner_token=owner_token
            )
            sweeping = asyncio.create_task(_sweep_until_cancelled(backend))
            try:
                yield backend
            finally:
                hub.close()
                sweeping.cancel()
        finally:
            if writer.alive:
                await asyncio.to_thread(writer.stop)
            database.close()


def _migrate(database: Database, settings: Settings) -> None:
    try:
        if settings.database_url is None:
            make_private_file(settings.database_file)
        with database.writing_engine.begin() as connection:
            upgrade(connection)
    except (SQLAlchemyError, OSError) as error:
        cause = getattr(error, "orig", None) or error
        raise StartupError(
            f"The database {settings.database_name} can't be opened: {cause}. "
            "Check the file and its permissions, or set ISENTROPE_HOME or ISENTROPE_DATABASE_URL."
        ) from error


def _open_tokens(transaction: Transaction, settings: Settings) -> tuple[str, TokenBook]:
    owner_token = ensure_owner_token(transaction, settings.owner_token_file, settings.token)
    book = TokenBook()
    book.reload(transaction.connection)
    if settings.token is not None and book.of_secret(settings.token) is None:
        _log.warning(
            "ISENTROPE_TOKEN is no token of this home and opens nothing: it counts only at a home's first start."
        )
    return owner_token, book


async def _sweep_until_cancelled(backend: Backend) -> None:
    settings = backend.settings
    grace = Grace(
        answer_seconds=settings.control_answer_grace_seconds, rank_seconds=settings.control_rank_grace_seconds
    )
    while True:
        await asyncio.sleep(settings.sweep_interval_seconds)
        try:
            # Looking costs the writer nothing; most of the time nothing is open.
            if await backend.read(controls.count_open):
                await backend.write(lambda transaction: sweep(transaction, grace, time.time()))
        except SQLAlchemyError as error:
            _log.error("Expired controls could not be ended, next try in a moment: %s", error)
