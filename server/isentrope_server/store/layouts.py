"""Layouts: which scalar stands at which place of a record's blob."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sqlalchemy import Connection, insert, select, update

from isentrope_server.store.tables import layouts, stream_layouts, streams

Names = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class UsedLayout:
    """A layout one stream has used, and where it did so last."""

    key: int
    names: Names
    stream_key: int
    last_position: int


def names_of(scalars: Mapping[str, float]) -> Names:
    return tuple(sorted(scalars))


def pack(names: Names, scalars: Mapping[str, float]) -> bytes:
    """Little-endian float64 in the order of `names`; NaN and infinities are kept bit for bit."""
    return struct.pack(f"<{len(names)}d", *(scalars[name] for name in names))


def unpack(names: Names, packed: bytes) -> dict[str, float]:
    return dict(zip(names, struct.unpack(f"<{len(names)}d", packed), strict=True))


def intern(connection: Connection, wanted: Iterable[Names]) -> dict[Names, int]:
    """The keys of these layouts; new ones are inserted."""
    by_digest = {_digest(names): names for names in wanted}
    found = connection.execute(select(layouts.c.key, layouts.c.digest).where(layouts.c.digest.in_(by_digest)))
    keys = {by_digest[bytes(digest)]: key for key, digest in found}
    for digest, names in by_digest.items():
        if names not in keys:
            result = connection.execute(
                insert(layouts).values(digest=digest, names=list(names)).returning(layouts.c.key)
            )
            keys[names] = result.scalar_one()
    return keys


def mark_used(connection: Connection, stream_key: int, last_positions: Mapping[int, int]) -> None:
    """Remember where a stream used each layout last, so that names and latest values need no scan."""
    for layout_key, position in last_positions.items():
        place = (stream_layouts.c.stream_key == stream_key, stream_layouts.c.layout_key == layout_key)
        if connection.execute(update(stream_layouts).where(*place).values(last_position=position)).rowcount == 0:
            connection.execute(
                insert(stream_layouts).values(stream_key=stream_key, layout_key=layout_key, last_position=position)
            )


def used_by(connection: Connection, run_key: int) -> list[UsedLayout]:
    """Every layout of every stream of a run."""
    query = (
        select(layouts.c.key, layouts.c.names, stream_layouts.c.stream_key, stream_layouts.c.last_position)
        .join(stream_layouts, stream_layouts.c.layout_key == layouts.c.key)
        .join(streams, streams.c.key == stream_layouts.c.stream_key)
        .where(streams.c.run_key == run_key)
    )
    return [
        UsedLayout(key=key, names=tuple(names), stream_key=stream_key, last_position=position)
        for key, names, stream_key, position in connection.execute(query)
    ]


def _digest(names: Names) -> bytes:
    return hashlib.blake2b(json.dumps(names).encode(), digest_size=16).digest()
