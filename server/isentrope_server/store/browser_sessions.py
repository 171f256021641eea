"""Browsers that logged in: each holds a random id of which only the hash is kept, and whose token it stands for."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from sqlalchemy import Connection, delete, insert, select

from isentrope_server.store.tables import browser_sessions, session_cookie

SESSIONS_OF_A_TOKEN = 100
"""The oldest make room: servers hold all of them in memory, and whoever has a token could begin one after the other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSession:
    """A session without its id."""

    session_hash: bytes
    token_id: str
    created_at: float
    expires_at: float


def cookie_suffix(connection: Connection) -> str:
    """What the name of the cookie ends in: the same for all servers on one database, another for every other.

    The first server to start makes it, in a transaction that no other server's runs beside.
    """
    known = connection.execute(select(session_cookie.c.suffix)).scalar_one_or_none()
    if known is not None:
        return str(known)
    suffix = secrets.token_hex(4)
    connection.execute(insert(session_cookie).values(key=1, suffix=suffix))
    return suffix


def add(connection: Connection, session: StoredSession) -> None:
    """Keep one more, and no longer those that have expired or are too many of its token."""
    connection.execute(delete(browser_sessions).where(browser_sessions.c.expires_at <= session.created_at))
    surplus = (
        select(browser_sessions.c.session_hash)
        .where(browser_sessions.c.token_id == session.token_id)
        .order_by(browser_sessions.c.created_at.desc())
        .offset(SESSIONS_OF_A_TOKEN - 1)
    )
    for session_hash in connection.execute(surplus).scalars().all():
        end(connection, session_hash)
    connection.execute(
        insert(browser_sessions).values(
            session_hash=session.session_hash,
            token_id=session.token_id,
            created_at=session.created_at,
            expires_at=session.expires_at,
        )
    )


def not_expired(connection: Connection, now: float) -> list[StoredSession]:
    """Those of revoked tokens too, should there be any: it is the tokens that say who may come in."""
    rows = connection.execute(select(browser_sessions).where(browser_sessions.c.expires_at > now))
    return [StoredSession(**row._mapping) for row in rows]


def end(connection: Connection, session_hash: bytes) -> None:
    """Safe to repeat."""
    connection.execute(delete(browser_sessions).where(browser_sessions.c.session_hash == session_hash))


def end_of_token(connection: Connection, token_id: str) -> None:
    connection.execute(delete(browser_sessions).where(browser_sessions.c.token_id == token_id))
