"""Access tokens, of which only hashes are stored; the key of browsers' sessions; the audit trail.

Each audit entry's hash covers the entry before, so that a changed, missing or moved entry is found; the head holds the
number of entries and the newest hash, so that a cut end is found, too. Whoever can write to the database can rewrite
all of it: keep a hash printed by `isentrope audit verify` elsewhere, and pass it to a later verification.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, func, insert, or_, select, update

from isentrope_server.store.database import hold_what_runs_share
from isentrope_server.store.tables import audit, audit_head, session_key, tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredToken:
    """A token without its secret."""

    id: str
    name: str
    """Shown as the author of every change made with it."""
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


def add_token(connection: Connection, token: StoredToken) -> None:
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


def revoke_token(connection: Connection, token_id: str, now: float) -> bool:
    """Return whether the token was active until now."""
    result = connection.execute(
        update(tokens).where(tokens.c.id == token_id, tokens.c.revoked_at.is_(None)).values(revoked_at=now)
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
    """Return the key that signs browsers' cookies: the same for all servers on one database.

    The first server to start makes it, in a transaction that excludes other servers.
    """
    known = connection.execute(select(session_key.c.secret)).scalar_one_or_none()
    if known is not None:
        return bytes(known)
    made = secrets.token_bytes(32)
    connection.execute(insert(session_key).values(key=1, secret=made))
    return made


_ROWS_AT_ONCE = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """One change, by whom and of what."""

    key: int
    at: float
    actor: str
    action: str
    subject: str
    change: Mapping[str, Any]
    chain_hash: bytes
    token_id: str | None
    """Of the actor's token; names may repeat. None: the server, a rank, or the command line without a server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """Result of checking every entry."""

    entries: int
    head: bytes
    """Hash of the newest entry; empty without entries."""
    broken_at: int | None
    """Key of the first entry whose hash does not match; None when all match."""
    is_cut: bool
    """Entries are missing at the end, or were added past the head."""
    knows_earlier_head: bool | None
    """Whether the given hash is part of the chain; None without one."""

    @property
    def is_whole(self) -> bool:
        return self.broken_at is None and not self.is_cut and self.knows_earlier_head is not False


def record_audit(
    connection: Connection,
    *,
    at: float,
    actor: str,
    action: str,
    subject: str,
    change: Mapping[str, object],
    token_id: str | None = None,
) -> None:
    """Add an entry in the transaction that makes the change.

    Args:
        actor: name of the token, `rank N`, `server` or `command line`.
        action: e.g. `control.requested`.
        subject: e.g. `runs/RUN/control/3`.
        change: what is different now, old and new where both exist.
        token_id: of the token, where one acted.
    """
    # Until COMMIT: two servers on one database must not link to the same entry.
    hold_what_runs_share(connection)
    head = connection.execute(select(audit_head)).one_or_none()
    previous = bytes(head.chain_hash) if head is not None else b""
    # As the columns store them: a hash over other text would not match later.
    actor, subject = (text.replace("\0", "\ufffd") for text in (actor, subject))
    chain_hash = _chained(previous, at, actor, action, subject, change, token_id)
    connection.execute(
        insert(audit).values(
            at=at,
            actor=actor,
            action=action,
            subject=subject,
            change=dict(change),
            chain_hash=chain_hash,
            token_id=token_id,
        )
    )
    if head is None:
        connection.execute(insert(audit_head).values(key=1, entries=1, chain_hash=chain_hash))
    else:
        connection.execute(update(audit_head).values(entries=audit_head.c.entries + 1, chain_hash=chain_hash))


def audit_page(
    connection: Connection, *, before_key: int | None, limit: int, run_id: str | None = None
) -> list[AuditEntry]:
    """Entries, newest first; with a run only those about it and its control."""
    query = select(audit).order_by(audit.c.key.desc()).limit(limit)
    if run_id is not None:
        subject = f"runs/{run_id}"
        query = query.where(or_(audit.c.subject == subject, audit.c.subject.startswith(f"{subject}/", autoescape=True)))
    if before_key is not None:
        query = query.where(audit.c.key < before_key)
    return [_entry(dict(row._mapping)) for row in connection.execute(query)]


def verify_audit(connection: Connection, *, earlier_head: bytes | None = None) -> Verification:
    """Read every entry and check its hash, in one transaction.

    Args:
        earlier_head: a hash printed by an earlier verification; checked to be part of the chain.
    """
    previous, entries, broken_at, knows_earlier = b"", 0, None, earlier_head == b""
    rows = connection.execution_options(yield_per=_ROWS_AT_ONCE).execute(select(audit).order_by(audit.c.key))
    for row in rows:
        entries += 1
        if broken_at is None and _chained(
            previous, row.at, row.actor, row.action, row.subject, row.change, row.token_id
        ) != bytes(row.chain_hash):
            broken_at = int(row.key)
        previous = bytes(row.chain_hash)
        knows_earlier = knows_earlier or previous == earlier_head
    head = connection.execute(select(audit_head)).one_or_none()
    expected = (0, b"") if head is None else (head.entries, bytes(head.chain_hash))
    return Verification(
        entries=entries,
        head=previous,
        broken_at=broken_at,
        is_cut=expected != (entries, previous),
        knows_earlier_head=None if earlier_head is None else knows_earlier,
    )


def _entry(values: Mapping[str, Any]) -> AuditEntry:
    return AuditEntry(**{**values, "chain_hash": bytes(values["chain_hash"])})


def _chained(
    previous: bytes,
    at: float,
    actor: str,
    action: str,
    subject: str,
    change: Mapping[str, object],
    token_id: str | None,
) -> bytes:
    entry = json.dumps([at, actor, action, subject, dict(change), token_id], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(previous + entry.encode()).digest()
