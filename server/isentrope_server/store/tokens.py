"""Access tokens: only their hashes are kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import Connection, func, insert, select, update

from isentrope_server.store import browser_sessions
from isentrope_server.store.tables import tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredToken:
    """A token without its secret."""

    id: str
    name: str
    """Stands as the author beside every change made with it."""
    scope: str
    token_hash: bytes
    created_at: float
    revoked_at: float | None
    is_owner: bool
    run: str | None = None
    """An ingest token's only run, by id or name; None: any."""
    project: str | None = None
    """An ingest token's only project; None: any."""
    last_used_at: float | None = None
    """To within some seconds; None: never."""


def add(connection: Connection, token: StoredToken) -> None:
    connection.execute(
        insert(tokens).values(
            id=token.id,
            name=token.name,
            scope=token.scope,
            token_hash=token.token_hash,
            created_at=token.created_at,
            revoked_at=token.revoked_at,
            is_owner=token.is_owner,
            run=token.run,
            project=token.project,
            last_used_at=token.last_used_at,
        )
    )


def all_tokens(connection: Connection) -> list[StoredToken]:
    """Every token, revoked ones too, oldest first."""
    rows = connection.execute(select(tokens).order_by(tokens.c.created_at, tokens.c.id))
    return [StoredToken(**row._mapping) for row in rows]


def revoke(connection: Connection, token_id: str, now: float) -> bool:
    """True when the token was in force until now. Its sessions are gone."""
    result = connection.execute(
        update(tokens).where(tokens.c.id == token_id, tokens.c.revoked_at.is_(None)).values(revoked_at=now)
    )
    browser_sessions.end_of_token(connection, token_id)
    return result.rowcount == 1


def used(connection: Connection, last_used_at: Mapping[str, float]) -> None:
    """Note when tokens were used, by id. A later time that another server noted stays."""
    for token_id, at in last_used_at.items():
        connection.execute(
            update(tokens)
            .where(tokens.c.id == token_id, func.coalesce(tokens.c.last_used_at, 0) < at)
            .values(last_used_at=at)
        )
