"""What a server's database holds, read past the server: SQLite or PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from sqlalchemy import Connection, create_engine, text
from sqlalchemy.pool import NullPool

from isentrope_server.store.rows import payload_hashes


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRecord:
    seq: int
    payload_hash: bytes
    kind: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredGap:
    first_seq: int
    last_seq: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredStream:
    """One rank of one incarnation."""

    acked_through: int
    records: tuple[StoredRecord, ...]
    gaps: tuple[StoredGap, ...]
    quarantined: tuple[tuple[int, str], ...]
    """Sequence number and code of what is kept aside."""

    @property
    def by_seq(self) -> Mapping[int, StoredRecord]:
        return {record.seq: record for record in self.records}

    def covering(self, seq: int) -> StoredGap | None:
        return next((gap for gap in self.gaps if gap.first_seq <= seq <= gap.last_seq), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredControl:
    version: int
    state: str
    applied_step: int | None
    ends: int
    """How often it was ended, by the audit trail."""


class StoredTruth:
    """Opens the database again for each question: the server under test may have been killed in
    between."""

    def __init__(self, database_url: str) -> None:
        """
        Args:
            database_url: SQLAlchemy URL; of SQLite without a running server the file must be
                writable, for its WAL.
        """
        self._url = database_url

    def streams(self, run_id: str) -> dict[tuple[str, int], StoredStream]:
        """The streams of a run by incarnation and rank."""
        with self._reading() as connection:
            found = connection.execute(
                text(
                    "SELECT streams.key, incarnation, rank, acked_through FROM streams "
                    "JOIN runs ON runs.key = streams.run_key WHERE runs.id = :run"
                ),
                {"run": run_id},
            ).all()
            return {
                (row.incarnation, row.rank): _stream(connection, row.key, row.acked_through)
                for row in found
            }

    def controls(self, run_id: str) -> list[StoredControl]:
        """Every version of a run's control, oldest first."""
        with self._reading() as connection:
            rows = connection.execute(
                text(
                    "SELECT version, controls.state, applied_step FROM controls "
                    "JOIN runs ON runs.key = controls.run_key WHERE runs.id = :run ORDER BY version"
                ),
                {"run": run_id},
            ).all()
            return [
                StoredControl(
                    version=row.version,
                    state=row.state,
                    applied_step=row.applied_step,
                    ends=_ends(connection, run_id, row.version),
                )
                for row in rows
            ]

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        engine = create_engine(self._url, poolclass=NullPool)
        try:
            with engine.connect() as connection:
                # All answers to one question are about one moment: a report packed in between is
                # counted once.
                if engine.dialect.name == "sqlite":
                    connection.exec_driver_sql("BEGIN")
                else:
                    connection = connection.execution_options(isolation_level="REPEATABLE READ")
                yield connection
        finally:
            engine.dispose()


def _stream(connection: Connection, key: int, acked_through: int) -> StoredStream:
    rows = connection.execute(
        text("SELECT kind, facts FROM records WHERE stream_key = :key"), {"key": key}
    )
    gaps = connection.execute(
        text(
            "SELECT first_seq, last_seq, reason FROM gaps WHERE stream_key = :key ORDER BY"
            " first_seq"
        ),
        {"key": key},
    )
    aside = connection.execute(
        text("SELECT seq, code FROM quarantine WHERE stream_key = :key"), {"key": key}
    )
    return StoredStream(
        acked_through=acked_through,
        records=tuple(
            StoredRecord(seq=seq, payload_hash=payload_hash, kind=row.kind)
            for row in rows
            for seq, payload_hash in payload_hashes(row.facts).items()
        ),
        gaps=tuple(
            StoredGap(first_seq=row.first_seq, last_seq=row.last_seq, reason=row.reason)
            for row in gaps
        ),
        quarantined=tuple((row.seq, row.code) for row in aside),
    )


def _ends(connection: Connection, run_id: str, version: int) -> int:
    actions = ("applied", "partial", "rejected", "expired", "superseded")
    places = ", ".join(f"'control.{action}'" for action in actions)
    return int(
        connection.execute(
            text(f"SELECT count(*) FROM audit WHERE subject = :subject AND action IN ({places})"),
            {"subject": f"runs/{run_id}/control/{version}"},
        ).scalar_one()
    )
