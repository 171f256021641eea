"""What was lost before it reached the server, as the probes' spools say it."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, select

from isentrope_server.store.tables import gaps, streams


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredGap:
    """Records of one rank that will never come."""

    stream_key: int
    incarnation: str
    rank: int
    first_seq: int
    last_seq: int
    reason: str


def newest(connection: Connection, run_key: int, *, before: tuple[int, int] | None, limit: int) -> list[StoredGap]:
    """At most `limit` gaps that came before (stream key, first seq); those of the newest incarnation first."""
    wanted = (
        select(
            gaps.c.stream_key, streams.c.incarnation, streams.c.rank, gaps.c.first_seq, gaps.c.last_seq, gaps.c.reason
        )
        .join(streams, streams.c.key == gaps.c.stream_key)
        .where(streams.c.run_key == run_key)
        .order_by(gaps.c.stream_key.desc(), gaps.c.first_seq.desc())
        .limit(limit)
    )
    if before is not None:
        stream_key, first_seq = before
        earlier = (gaps.c.stream_key < stream_key) | (
            (gaps.c.stream_key == stream_key) & (gaps.c.first_seq < first_seq)
        )
        wanted = wanted.where(earlier)
    return [StoredGap(**row._mapping) for row in connection.execute(wanted)]
