"""Access tokens, of which only hashes are stored; the key of browsers' sessions; the audit
trail."""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, func, insert, or_, select, update

from isentrope_server.store.database import build_answer
from isentrope_server.store.tables import audit, session_key, tokens
from isentrope_wire.answers import AccessToken, AuditEntry, CreatedToken, Restored, TokenScope

_GRANTS: dict[TokenScope, frozenset[TokenScope]] = {
    TokenScope.READ: frozenset({TokenScope.READ}),
    TokenScope.INGEST: frozenset({TokenScope.INGEST}),
    TokenScope.CONTROL: frozenset({TokenScope.READ, TokenScope.CONTROL}),
    TokenScope.ADMIN: frozenset(TokenScope),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """The holder of an active token, or of a browser's session that began with one."""

    token_id: str
    name: str
    """Shown as the author of every change made with the token."""
    scope: TokenScope
    is_owner: bool = False
    """Whether it is the owner's token of a server's home."""
    run_id: str | None = None
    """The one run that a link shows; None: all runs."""

    def may(self, wanted: TokenScope) -> bool:
        return wanted in _GRANTS[self.scope]


def secret_hash(secret: str) -> bytes:
    """SHA-256: secrets are 256 random bits, so a slow hash would not help."""
    return hashlib.sha256(secret.encode()).digest()


def add_token(
    connection: Connection,
    name: str,
    scope: TokenScope,
    *,
    secret: str | None = None,
    is_owner: bool = False,
) -> CreatedToken:
    """Make and store a token, with a random secret unless one is given; only the returned object
    has it."""
    made = CreatedToken(
        id=secrets.token_hex(4),
        name=name,
        scope=scope,
        created_at=time.time(),
        revoked_at=None,
        last_used_at=None,
        token=secret or f"ise_{secrets.token_urlsafe(32)}",
    )
    connection.execute(
        insert(tokens).values(
            id=made.id,
            name=name,
            scope=scope,
            token_hash=secret_hash(made.token),
            created_at=made.created_at,
            is_owner=is_owner,
        )
    )
    return made


def all_tokens(connection: Connection) -> list[AccessToken]:
    """Every token, revoked ones too, oldest first."""
    rows = connection.execute(select(tokens).order_by(tokens.c.created_at, tokens.c.id))
    return [build_answer(AccessToken, row) for row in rows]


def active_principals(connection: Connection) -> dict[bytes, Principal]:
    """The holders of tokens that are not revoked, by the hash of their secret."""
    return {
        bytes(row.token_hash): Principal(
            token_id=row.id, name=row.name, scope=TokenScope(row.scope), is_owner=row.is_owner
        )
        for row in connection.execute(select(tokens).where(tokens.c.revoked_at.is_(None)))
    }


def revoked_names(connection: Connection) -> dict[bytes, str]:
    """The names of tokens that were revoked, by the hash of their secret."""
    rows = connection.execute(
        select(tokens.c.token_hash, tokens.c.name).where(tokens.c.revoked_at.is_not(None))
    )
    return {bytes(row.token_hash): row.name for row in rows}


def is_known_secret(connection: Connection, secret: str) -> bool:
    """Whether a token, active or revoked, has this secret."""
    found = connection.execute(
        select(tokens.c.id).where(tokens.c.token_hash == secret_hash(secret))
    )
    return found.first() is not None


def revoke_token(connection: Connection, token_id: str, now: float) -> bool:
    """Return whether the token was active until now."""
    result = connection.execute(
        update(tokens)
        .where(tokens.c.id == token_id, tokens.c.revoked_at.is_(None))
        .values(revoked_at=now)
    )
    return result.rowcount == 1


def note_token_use(connection: Connection, last_used_at: Mapping[str, float]) -> None:
    """Note when tokens were used, by id. A later time that another server noted stays."""
    for token_id, at in last_used_at.items():
        connection.execute(
            update(tokens)
            .where(tokens.c.id == token_id, func.coalesce(tokens.c.last_used_at, 0) < at)
            .values(last_used_at=at)
        )


def ensure_session_key(connection: Connection) -> bytes:
    """Return the key that signs browsers' cookies: the same for all servers on one database. The
    first server to start makes it, in a transaction that excludes other servers."""
    known = connection.execute(select(session_key.c.secret)).scalar_one_or_none()
    if known is not None:
        return bytes(known)
    made = secrets.token_bytes(32)
    connection.execute(insert(session_key).values(key=1, secret=made))
    return made


def record_audit(
    connection: Connection,
    by: Principal | str,
    action: str,
    subject: str,
    change: Mapping[str, object],
    at: float,
) -> None:
    """Add an entry in the transaction that makes the change, e.g. `control.requested` of
    `runs/RUN/control/3`. `by` is a token's holder, `rank N` or `server`; `change` is what is
    different now, old and new where both exist."""
    if isinstance(by, str):
        actor, token_id = (by, None)
    else:
        actor, token_id = (by.name, by.token_id)
    connection.execute(
        insert(audit).values(
            at=at,
            actor=actor,
            action=action,
            subject=subject,
            change=dict(change),
            token_id=token_id,
        )
    )


TAKEN = "run.taken"
"""Action of the entry of an attempt that may be another experiment."""


def attempt_subject(run_id: str, incarnation: str) -> str:
    return f"runs/{run_id}/attempts/{incarnation}"


def taken_by(connection: Connection, run_id: str, incarnation: str) -> Mapping[str, Any]:
    """What an attempt found otherwise than it describes it; empty where nothing."""
    entry = select(audit.c.change).where(
        audit.c.action == TAKEN, audit.c.subject == attempt_subject(run_id, incarnation)
    )
    change: Mapping[str, Any] = connection.execute(entry.limit(1)).scalar_one_or_none() or {}
    return change


RESTORED, DATABASE = "database.restored", "database"
"""Action and subject of a restore's entry."""


def newest_restore(connection: Connection) -> Restored | None:
    query = select(audit.c.at, audit.c.change).where(
        audit.c.subject == DATABASE, audit.c.action == RESTORED
    )
    row = connection.execute(query.order_by(audit.c.key.desc()).limit(1)).one_or_none()
    if row is None:
        return None
    return Restored(at=row.at, newest_report_at=row.change["newest_report_at"])


def audit_page(
    connection: Connection, *, before: Sequence[int] | None, limit: int, run_id: str | None = None
) -> list[AuditEntry]:
    """Entries, newest first; with a run only those about it and its control."""
    query = select(audit, audit.c.key.label("number")).order_by(audit.c.key.desc()).limit(limit)
    if run_id is not None:
        subject = f"runs/{run_id}"
        query = query.where(
            or_(
                audit.c.subject == subject,
                audit.c.subject.startswith(f"{subject}/", autoescape=True),
            )
        )
    if before is not None:
        query = query.where(audit.c.key < before[0])
    return [build_answer(AuditEntry, row) for row in connection.execute(query)]
