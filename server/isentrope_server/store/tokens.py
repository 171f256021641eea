"""Access tokens: only their hashes are kept."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, insert, select, update

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
        )
    )


def all_tokens(connection: Connection) -> list[StoredToken]:
    """Every token, revoked ones too, oldest first."""
    rows = connection.execute(select(tokens).order_by(tokens.c.created_at, tokens.c.id))
    return [StoredToken(**row._mapping) for row in rows]


def revoke(connection: Connection, token_id: str, now: float) -> bool:
    """True when the token was in force until now."""
    result = connection.execute(
        update(tokens).where(tokens.c.id == token_id, tokens.c.revoked_at.is_(None)).values(revoked_at=now)
    )
    return result.rowcount == 1
