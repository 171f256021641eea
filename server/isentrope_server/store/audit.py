"""The audit trail: who changed what. Each entry's hash covers the one before, so that a missing one shows."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from sqlalchemy import Connection, insert, select

from isentrope_server.store.tables import audit


def record(
    connection: Connection, *, at: float, actor: str, action: str, subject: str, change: Mapping[str, object]
) -> None:
    """Add an entry in the transaction that makes the change.

    Args:
        actor: name of the token, `probe rank N` or `server`.
        action: e.g. `control.requested`.
        subject: e.g. `runs/RUN/control/3`.
        change: what is different now, old and new where both exist.
    """
    previous = connection.execute(select(audit.c.chain_hash).order_by(audit.c.key.desc()).limit(1)).scalar()
    connection.execute(
        insert(audit).values(
            at=at,
            actor=actor,
            action=action,
            subject=subject,
            change=dict(change),
            chain_hash=_chained(previous or b"", at, actor, action, subject, change),
        )
    )


def first_broken_link(connection: Connection) -> int | None:
    """The key of the first entry whose hash doesn't fit; None when the chain is whole."""
    previous = b""
    for row in connection.execute(select(audit).order_by(audit.c.key)):
        if _chained(previous, row.at, row.actor, row.action, row.subject, row.change) != bytes(row.chain_hash):
            return int(row.key)
        previous = bytes(row.chain_hash)
    return None


def _chained(previous: bytes, at: float, actor: str, action: str, subject: str, change: Mapping[str, object]) -> bytes:
    entry = json.dumps([at, actor, action, subject, dict(change)], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(previous + entry.encode()).digest()
