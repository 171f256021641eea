"""Quarantine: what came and can't be used, kept with the reason."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, func, insert, select

from isentrope_server.store.tables import LARGEST_INTEGER, quarantine
from isentrope_wire.codec import payload_hash
from isentrope_wire.messages import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """A record that can't be used, and why."""

    record: Record
    code: str
    message: str


def keep(connection: Connection, stream_key: int, refused: Sequence[Refused], now: float) -> None:
    """Store refused records byte for byte; one that is sent again is kept once."""
    for item in refused:
        content_hash = payload_hash(item.record.payload)
        if not _is_kept(connection, stream_key, item, content_hash):
            connection.execute(
                insert(quarantine).values(
                    stream_key=stream_key,
                    seq=_storable(item.record.seq),
                    content_hash=content_hash,
                    claimed_hash=item.record.payload_hash,
                    payload=item.record.payload,
                    code=item.code,
                    message=item.message,
                    received_at=now,
                )
            )


def count(connection: Connection) -> int:
    return connection.execute(select(func.count()).select_from(quarantine)).scalar_one()


def _is_kept(connection: Connection, stream_key: int, item: Refused, content_hash: bytes) -> bool:
    found = connection.execute(
        select(quarantine.c.key).where(
            quarantine.c.stream_key == stream_key,
            quarantine.c.seq == _storable(item.record.seq),
            quarantine.c.content_hash == content_hash,
            quarantine.c.code == item.code,
        )
    )
    return found.first() is not None


def _storable(seq: int) -> int:
    """The seq, or the largest number a database holds where it is beyond."""
    return min(seq, LARGEST_INTEGER)
