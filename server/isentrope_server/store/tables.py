"""The tables and their column types.

A *stream* is what one rank of one incarnation of a run sends: records with rising `seq`. Every
stored record gets the run's next `position` in its transaction, so positions rise in COMMIT order
and serve as cursors.

The reports of a push are one row, and later about a thousand are; `store.rows` describes its
columns. The names of its numbers are its *layout*, of which a run has a handful.

PostgreSQL stores no NUL in text: the replacement character takes its place in both databases, also
in queries. JSON has no NaN and no infinities: their names take their place.
"""

from __future__ import annotations

import json
import re

import sqlalchemy
from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    ColumnElement,
    Dialect,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    UniqueConstraint,
    func,
    text,
)
from sqlalchemy.types import TypeDecorator

from isentrope_wire.numbers import plain_json


class Text(TypeDecorator[str]):
    """Text of any length."""

    cache_ok = True
    impl: type[sqlalchemy.String] = sqlalchemy.Text

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        if value is None:
            return None
        return strip_nul(value)


class String(Text):
    """Text of at most so many characters; PostgreSQL refuses more."""

    cache_ok = True
    impl = sqlalchemy.String


_ESCAPED_NUL = re.compile(r"(?<!\\)((?:\\\\)*)\\u0000")
_STRICT = json.JSONEncoder(allow_nan=False)
"""Made once: every report has a JSON column."""


def json_text(value: object) -> str:
    """A JSON column's text: what is no number to JSON becomes `"NaN"`, `"Infinity"`,
    `"-Infinity"`; NUL, on which PostgreSQL's JSON functions fail, what `strip_nul` gives."""
    try:
        text = _STRICT.encode(value)
    except ValueError:
        text = json.dumps(plain_json(value))
    return _ESCAPED_NUL.sub(r"\1\\ufffd", text)


def strip_nul(text: str) -> str:
    """The text as a text column returns it."""
    return text.replace("\0", "\ufffd")


LARGEST_INTEGER = 2**63 - 1
"""A BIGINT counts no further; the wire's uint64 does."""

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(column_0_N_label)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)

# SQLite numbers rows by itself only for a column declared INTEGER PRIMARY KEY.
_Key = BigInteger().with_variant(Integer, "sqlite")


def _run_key(*, primary_key: bool = False) -> Column[int]:
    return Column(
        "run_key",
        _Key,
        ForeignKey("runs.key", ondelete="CASCADE"),
        nullable=False,
        primary_key=primary_key,
    )


def _stream_key(*, primary_key: bool = False) -> Column[int]:
    reference = ForeignKey("streams.key", ondelete="CASCADE")
    return Column("stream_key", _Key, reference, nullable=False, primary_key=primary_key)


runs = Table(
    "runs",
    metadata,
    Column("key", _Key, primary_key=True),
    Column("id", String(128), nullable=False, unique=True),
    Column("name", Text, nullable=False),  # as the training reports it
    Column("given_name", Text),  # by people, shown in its place; NULL: none
    Column("project", Text, nullable=False, index=True),
    Column(
        "state", String(16), nullable=False
    ),  # running | finished | failed | ended; silence is worked out when read
    Column("step", BigInteger),
    Column("planned_steps", BigInteger),
    Column("created_at", Double, nullable=False),
    Column("last_report_at", Double),
    Column("last_heard_at", Double, nullable=False),
    Column("finished_at", Double),
    Column("error", Text, nullable=False),
    Column("world_size", Integer, nullable=False),
    Column("probe_version", Text, nullable=False),
    Column("capabilities", JSON, nullable=False),
    Column("config", JSON, nullable=False),
    Column("tags", JSON, nullable=False),
    Column("notes", Text, nullable=False),
    Column("control_version", BigInteger, nullable=False),  # active, according to the newest report
    Column("last_position", BigInteger, nullable=False),
    Column(
        "timeline_version", BigInteger, nullable=False
    ),  # rises when another report may be shown for a step
)

shown_name: ColumnElement[str] = func.coalesce(runs.c.given_name, runs.c.name)
"""What a run is called."""

run_digests = Table(
    "run_digests",
    metadata,
    _run_key(primary_key=True),
    Column("attention", Integer, nullable=False),  # place in the list by attention; 0 comes first
    Column("level", String(16), nullable=False),
    Column(
        "status", String(16), nullable=False
    ),  # the rest is of this status and position; status includes silent
    Column("position", BigInteger, nullable=False),
    Column("computed_at", Double, nullable=False),
    Column("digest", JSON(none_as_null=True)),  # isentrope_wire.answers.RunDigest
    Column("basis", JSON(none_as_null=True)),  # isentrope_server.digests.Basis
    Index("ix_run_digests_attention_run_key", "attention", "run_key"),
)

deleted_runs = Table(
    "deleted_runs",
    metadata,
    Column("id", String(128), primary_key=True),
    Column("deleted_at", Double, nullable=False),
    Column("deleted_by", Text, nullable=False),
)

streams = Table(
    "streams",
    metadata,
    Column("key", _Key, primary_key=True),
    _run_key(),
    Column("incarnation", String(128), nullable=False),
    Column("rank", Integer, nullable=False),
    Column("started_at", Double, nullable=False),
    Column("opened_at", Double, nullable=False),
    Column("last_report_at", Double),
    Column("first_step", BigInteger),
    Column("last_step", BigInteger),
    Column("acked_through", BigInteger, nullable=False),
    # The highest one its reports named: a database that was restored may not know it.
    Column("control_version", BigInteger, nullable=False, server_default="0"),
    Column(
        "initial_control", JSON(none_as_null=True)
    ),  # version, author and document; NULL: not announced
    UniqueConstraint("run_key", "incarnation", "rank"),
)

report_layouts = Table(
    "layouts",
    metadata,
    Column("key", _Key, primary_key=True),
    _run_key(),
    Column("digest", LargeBinary(16), nullable=False),
    Column("names", JSON, nullable=False),
    Column("histograms", JSON, nullable=False),  # [name, bins] of each
    UniqueConstraint("run_key", "digest"),
)

_LOOSE = text("NOT packed")
records = Table(
    "records",
    metadata,
    _run_key(primary_key=True),
    Column("last_position", BigInteger, primary_key=True),
    Column("first_position", BigInteger, nullable=False),
    _stream_key(),
    Column("first_seq", BigInteger, nullable=False),  # the lowest
    Column("last_seq", BigInteger, nullable=False),
    Column("kind", String(16), nullable=False),
    Column("reports", Integer, nullable=False),  # 0: the record of another kind
    Column("packed", Boolean, nullable=False),  # joined as far as it ever is
    # The rest, but for `facts`, is NULL but in step reports.
    Column("first_step", BigInteger),  # the lowest
    Column("last_step", BigInteger),
    # No reference: deleting a layout would look through all records.
    Column("layout_key", _Key),
    Column("labels", JSON(none_as_null=True)),  # the different ones of its reports
    Column("facts", LargeBinary, nullable=False),  # see `store.rows` for this and what follows
    Column("scalars", LargeBinary),
    Column("histograms", LargeBinary),
    UniqueConstraint("stream_key", "last_seq"),
    Index("ix_records_run_key_last_step", "run_key", "last_step"),
    Index(
        "ix_records_loose",
        "stream_key",
        "last_position",
        sqlite_where=_LOOSE,
        postgresql_where=_LOOSE,
    ),
)

gaps = Table(
    "gaps",
    metadata,
    _stream_key(primary_key=True),
    Column("first_seq", BigInteger, primary_key=True),
    Column("last_seq", BigInteger, nullable=False),
    Column("reason", Text, nullable=False),
)


def _packed(name: str) -> Table:
    """What some reports bring, as bytes of `isentrope_wire.codec`: text in them may hold
    anything."""
    return Table(
        name,
        metadata,
        _run_key(primary_key=True),
        Column("position", BigInteger, primary_key=True),
        Column(
            "stream_key", _Key, nullable=False
        ),  # goes with the run; a second cascade would scan the table
        Column("step", BigInteger, nullable=False),
        Column("packed", LargeBinary, nullable=False),
        Index(f"ix_{name}_run_key_step", "run_key", "step"),
    )


what_if_sums, driving_tokens, rollouts = (
    _packed("what_if_sums"),
    _packed("driving_tokens"),
    _packed("rollouts"),
)

alerts = Table(
    "alerts",
    metadata,
    _run_key(primary_key=True),
    Column("position", BigInteger, primary_key=True),
    Column("number", Integer, primary_key=True),  # a report may hold several
    Column("stream_key", _Key, nullable=False),  # goes with the run, as in `_packed`
    Column("step", BigInteger, nullable=False),
    Column("recorded_at", Double, nullable=False),
    Column("kind", String(64), nullable=False),
    Column("level", String(8), nullable=False),
    Column("message", Text, nullable=False),
    Column("evidence", JSON, nullable=False),
    Column("cause", JSON(none_as_null=True)),
    Column("suggestion", JSON(none_as_null=True)),  # a control document
    Column("acknowledged_by", Text),  # a token's name; NULL: nobody
    Column("acknowledged_at", Double),
)

notified = Table(
    "notified",
    metadata,
    _run_key(primary_key=True),
    Column("kind", String(64), primary_key=True),
    Column("level", String(8), primary_key=True),
    Column("step", BigInteger, primary_key=True, autoincrement=False),
    Column("destination", String(32), primary_key=True),  # a hash: the address may hold a password
    Column("attempts", Integer, nullable=False),
    Column("tried_at", Double, nullable=False),
    Column("sent", Boolean, nullable=False),
)

quarantine = Table(
    "quarantine",
    metadata,
    Column("key", _Key, primary_key=True),
    _stream_key(),
    Column("seq", BigInteger, nullable=False),
    Column("content_hash", LargeBinary(16), nullable=False),  # of the payload as it came
    Column("claimed_hash", LargeBinary, nullable=False),
    Column("payload", LargeBinary, nullable=False),
    Column("code", String(32), nullable=False),
    Column("message", Text, nullable=False),
    Column("received_at", Double, nullable=False),
    UniqueConstraint("stream_key", "seq", "content_hash", "code"),
)

controls = Table(
    "controls",
    metadata,
    _run_key(primary_key=True),
    Column("version", BigInteger, primary_key=True),
    Column("document", JSON, nullable=False),
    Column("author", Text, nullable=False),
    Column("requested_at", Double, nullable=False),
    Column("requested_step", BigInteger),
    Column("expires_at", Double),
    Column("state", String(16), nullable=False, index=True),
    Column("applied_step", BigInteger),
    Column("applied_at", Double),
    Column("ended_at", Double),
    Column("code", String(64), nullable=False),
    Column("message", Text, nullable=False),
    Column("idempotency_key", String(200)),
    Column("predicted", JSON),
    UniqueConstraint("run_key", "idempotency_key"),
)

control_outcomes = Table(
    "control_outcomes",
    metadata,
    _run_key(primary_key=True),
    Column("version", BigInteger, primary_key=True),
    Column("stream_key", _Key, primary_key=True),  # goes with the run, as in `_packed`
    Column("state", String(16), nullable=False),
    Column("step", BigInteger),
    Column("at", Double, nullable=False),
    Column("received_at", Double, nullable=False),
    Column("code", String(64), nullable=False),
    Column("message", Text, nullable=False),
)

audit = Table(
    "audit",
    metadata,
    Column("key", _Key, primary_key=True),
    Column("at", Double, nullable=False),
    Column("actor", Text, nullable=False),
    Column("action", String(64), nullable=False),
    Column("subject", Text, nullable=False, index=True),
    Column("change", JSON, nullable=False),
    Column("token_id", String(32)),  # the actor's; stays when the token is no more
)

tokens = Table(
    "tokens",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("name", String(128), nullable=False),
    Column("scope", String(16), nullable=False),
    Column("token_hash", LargeBinary(32), nullable=False, unique=True),
    Column("created_at", Double, nullable=False),
    Column("revoked_at", Double),
    Column("is_owner", Boolean, nullable=False),
    Column("last_used_at", Double),
)

session_key = Table(
    "session_key",
    metadata,
    Column("key", Integer, primary_key=True),  # one row
    Column(
        "secret", LargeBinary(32), nullable=False
    ),  # signs the cookies of all servers on this database
)
