"""Keeps the book of tokens true beside the requests: what other servers revoked, and when each token was used."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sqlalchemy.exc import SQLAlchemyError

from isentrope_server.backend import Backend
from isentrope_server.background import attempt
from isentrope_server.store import tokens
from isentrope_server.store.writer import WriterStopped

_log = logging.getLogger(__name__)

RELOAD_SECONDS = 1.0
"""How long a token that another server on the same database revoked may go on."""
NOTE_USES_SECONDS = 5.0
"""Each note is a COMMIT; `last_used_at` is true to within so much."""


@asynccontextmanager
async def kept_book(backend: Backend) -> AsyncIterator[None]:
    """Keep it while the block runs, and note the last uses at its end."""
    keeping = asyncio.create_task(_keep(backend))
    try:
        yield
    finally:
        keeping.cancel()
        await note_uses(backend)


async def reload_tokens(backend: Backend) -> None:
    """Read the tokens anew: call it after a change. Streams of those that are gone end."""
    await backend.read(backend.tokens.reload)


async def note_uses(backend: Backend) -> None:
    """Write down when tokens were used since the last call."""
    uses = backend.tokens.take_uses()
    if not uses:
        return
    try:
        await backend.write(lambda transaction: tokens.used(transaction.connection, uses))
    except (SQLAlchemyError, WriterStopped) as error:
        _log.warning("When tokens were last used could not be noted: %s", error)


async def _keep(backend: Backend) -> None:
    elapsed_seconds = 0.0
    while True:
        await asyncio.sleep(RELOAD_SECONDS)
        elapsed_seconds += RELOAD_SECONDS
        await attempt(reload_tokens(backend), what="Reading the tokens anew")
        if elapsed_seconds >= NOTE_USES_SECONDS:
            elapsed_seconds = 0.0
            await attempt(note_uses(backend), what="Noting when tokens were used")
