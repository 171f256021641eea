"""Quarantine: what came and can't be used, kept with the reason."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, func, insert, select

from isentrope_server.store.tables import LARGEST_INTEGER, quarantine
from isentrope_wire.codec import payload_hash
from isentrope_wire.messages import Record, RunFinished, StepReport

ROWS_OF_A_STREAM = 1_000
BYTES_OF_A_STREAM = 32 << 20
"""Twice the largest push."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """A record that can't be used, and why."""

    record: Record
    code: str
    message: str
    told: StepReport | RunFinished | None = None
    """What it holds, where what it says of controls counts all the same."""


def keep(connection: Connection, stream_key: int, refused: Sequence[Refused], now: float) -> None:
    """Store refused records byte for byte; one that is sent again is kept once.

    Of one stream so many are kept that what is wrong can be found out. Those that have no room are passed over: whoever
    sent them was told of each.
    """
    by_identity: dict[_Identity, Refused] = {}
    for item in refused:
        by_identity.setdefault(_identity(item), item)
    if not by_identity:
        return
    known = _known(connection, stream_key, {seq for seq, _, _ in by_identity})
    new = {identity: item for identity, item in by_identity.items() if identity not in known}
    rows = [
        {
            "stream_key": stream_key,
            "seq": seq,
            "content_hash": content_hash,
            "claimed_hash": item.record.payload_hash,
            "payload": item.record.payload,
            "code": code,
            "message": item.message,
            "received_at": now,
        }
        for (seq, content_hash, code), item in _with_room(connection, stream_key, new).items()
    ]
    if rows:
        connection.execute(insert(quarantine), rows)


def count(connection: Connection) -> int:
    return connection.execute(select(func.count()).select_from(quarantine)).scalar_one()


def storable(seq: int) -> int:
    """The seq, or the largest number a database holds where it is beyond."""
    return min(seq, LARGEST_INTEGER)


_Identity = tuple[int, bytes, str]
"""seq, hash of the payload as it came, code: what comes with the same ones is the same record sent again."""


def _identity(item: Refused) -> _Identity:
    return storable(item.record.seq), payload_hash(item.record.payload), item.code


def _known(connection: Connection, stream_key: int, seqs: Collection[int]) -> set[_Identity]:
    found = connection.execute(
        select(quarantine.c.seq, quarantine.c.content_hash, quarantine.c.code).where(
            quarantine.c.stream_key == stream_key, quarantine.c.seq.in_(seqs)
        )
    )
    return {(seq, bytes(content_hash), code) for seq, content_hash, code in found}


def _with_room(connection: Connection, stream_key: int, new: Mapping[_Identity, Refused]) -> dict[_Identity, Refused]:
    if not new:
        return {}
    kept = select(
        func.count(),
        func.coalesce(func.sum(func.length(quarantine.c.payload) + func.length(quarantine.c.claimed_hash)), 0),
    ).where(quarantine.c.stream_key == stream_key)
    rows, size = connection.execute(kept).one()
    fitting: dict[_Identity, Refused] = {}
    for identity, item in new.items():
        size += len(item.record.payload) + len(item.record.payload_hash)
        if rows + len(fitting) >= ROWS_OF_A_STREAM or size > BYTES_OF_A_STREAM:
            break
        fitting[identity] = item
    return fitting
