"""Hello: a rank of an incarnation describes its run; which incarnation is the newest.

Clocks may be wrong and old spools may come late. Both look the same at first: an incarnation that
started, by its own clock, earlier than a known one. An old spool really did. A trainer whose clock
was set back before it resumed did not, and its reports must be shown. So a Hello contains the
sender's time: the time since the incarnation started is right however wrong the clock is. If the
newest known incarnation's first Hello came before that start, the other incarnation follows it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection

from isentrope_server.control.requests import snapshot_to_send
from isentrope_server.errors import DeletedRun, Unprocessable
from isentrope_server.ingest.limits import AUTHOR, FIRST_VERSION, RANK, STREAMS
from isentrope_server.store import access, controls, runs, streams
from isentrope_server.store.access import Principal
from isentrope_server.store.streams import Incarnation
from isentrope_server.store.tables import LARGEST_INTEGER
from isentrope_server.store.writer import Transaction
from isentrope_wire.control import Control
from isentrope_wire.reports import (
    DELETED,
    NAME_CHARACTERS,
    ControlSnapshot,
    RunStarted,
    first_of,
)


def placed(
    known: Sequence[Incarnation], started: RunStarted, *, sent_at: float, now: float
) -> RunStarted:
    """Move `started_at` behind that of the incarnation it follows: incarnations are sorted by it.
    `known`: the run's incarnations, oldest first; the newest and, where it is known, this one are
    enough. `sent_at`: when the Hello was sent by the sender's clock; 0: unknown."""
    if not known:
        return started
    itself = next(
        (incarnation for incarnation in known if incarnation.name == started.incarnation), None
    )
    if itself is not None:
        # All ranks have one place.
        return replace(started, started_at=max(started.started_at, itself.started_at))
    newest = known[-1]
    since_start = sent_at - started.started_at
    # Below 0 the sender's clock was set back since the start and proves nothing; neither does NaN.
    began_after = since_start >= 0 and now - since_start > newest.opened_at
    if started.started_at < newest.started_at and began_after:
        return replace(started, started_at=math.nextafter(newest.started_at, math.inf))
    return started


_PROBE = "trainer"
"""The author of a control from a probe's configuration, as the probe sends it."""
_AUTHOR_OF_A_RUN = re.compile(r"run( \(.*\))?", re.DOTALL)
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


def open_stream(
    transaction: Transaction,
    started: RunStarted,
    now: float,
    *,
    by: Principal,
    sent_at: float = 0.0,
) -> tuple[int, ControlSnapshot | None]:
    """Create the run and the stream, or find them; safe to repeat. Returns through which seq
    records are acknowledged, and the control to apply. Unprocessable: an id can't be part of an
    address, or a number is out of range; DeletedRun: the run was deleted."""
    _check(started)
    connection = transaction.connection
    if runs.was_deleted(connection, started.run_id):
        raise DeletedRun(f"Run {started.run_id} {DELETED}. Remove its spool folder.")
    stream = streams.find(connection, started.run_id, started.incarnation, started.rank)
    if stream is not None:
        runs.heard(connection, stream.run_key, now)
        return stream.acked_through, snapshot_to_send(
            transaction, started.run_id, stream.run_key, now
        )
    run_key = runs.key_of(connection, started.run_id)
    if run_key is None:
        known = []
    else:
        known = streams.newest_and(connection, run_key, started.incarnation)
    started = placed(known, started, sent_at=sent_at, now=now)
    run_key = _enter(transaction, started, run_key, known, now, by)
    if streams.count(connection, run_key) >= STREAMS.most:
        raise Unprocessable(
            f"Run {started.run_id} has {STREAMS.most} {STREAMS.unit}, the most allowed."
        )
    streams.create(connection, run_key, started, now)
    return 0, snapshot_to_send(transaction, started.run_id, run_key, now)


def what_was_other(change: Mapping[str, Any]) -> str:
    """In words, how a run differed before the attempt that made this change of it."""
    old = change["old"]
    words = []
    if "status" in old:
        words.append("it had finished")
    if "name" in old:
        words.append(f"its name was {old['name']}")
    settings = [name.removeprefix("config.") for name in old if name.startswith("config.")]
    if settings:
        words.append(f"its config had other values of {first_of(settings)}")
    return ", and ".join(words)


def note_of_taken_id(connection: Connection, started: RunStarted) -> str:
    """What the training's log should say where its run may have been another experiment; else
    empty."""
    change = access.taken_by(connection, started.run_id, started.incarnation)
    if not change:
        return ""
    return (
        f"Run {started.run_id} was there before: {what_was_other(change)}. This is its next "
        "attempt, whose steps take the place of equal and later ones. Give each training a run id "
        "of its own, unless it continues from a checkpoint."
    )


def _check(started: RunStarted) -> None:
    for name, value in (("run_id", started.run_id), ("incarnation", started.incarnation)):
        if not _ID.fullmatch(value):
            raise Unprocessable(
                f"{name} must be 1 to 128 letters, digits, dots, dashes or underscores, got"
                f" {value[:140]!r}."
            )
    if not math.isfinite(started.started_at):
        raise Unprocessable(
            f"started_at must be seconds since the Unix epoch, got {started.started_at}."
        )
    if max(len(started.name), len(started.project)) > NAME_CHARACTERS:
        raise Unprocessable(f"name and project of a run have at most {NAME_CHARACTERS} characters.")
    if max(started.rank, started.world_size) > RANK.most:
        raise Unprocessable(
            f"rank and world_size must be less than 2^31, got {started.rank} of"
            f" {started.world_size}."
        )
    if (started.planned_steps or 0) > LARGEST_INTEGER:
        raise Unprocessable("planned_steps must be less than 2^63.")
    if started.initial_control and started.initial_control.version > FIRST_VERSION.most:
        version = started.initial_control.version
        raise Unprocessable(
            f"The control a run starts with has a version less than 2^31, got {version}."
        )


def _enter(
    transaction: Transaction,
    started: RunStarted,
    run_key: int | None,
    known: Sequence[Incarnation],
    now: float,
    by: Principal,
) -> int:
    connection = transaction.connection
    if run_key is None:
        run_key = runs.create(connection, started, now)
        _record_initial_control(transaction, run_key, started, now, by)
    elif known[-1].name != started.incarnation and started.started_at >= known[-1].started_at:
        change = runs.what_changes(connection, run_key, started)
        if change:
            subject = access.attempt_subject(started.run_id, started.incarnation)
            access.record_audit(connection, by, access.TAKEN, subject, change, now)
        runs.reopen(connection, run_key, started, now)
    else:
        # An old spool came late; the newer description stays.
        runs.heard(connection, run_key, now)
    return run_key


def _record_initial_control(
    transaction: Transaction, run_key: int, started: RunStarted, now: float, by: Principal
) -> None:
    initial = started.initial_control
    control = initial.control if initial else Control()
    claimed = (initial.author if initial else "")[: AUTHOR.most]
    item = controls.begun_with(
        run_key=run_key,
        # A run that resumes from a checkpoint, or that another server knows, starts with a later
        # version.
        version=initial.version if initial else 0,
        document=control.to_document(),
        author=_author(claimed),
        began_at=started.started_at,
    )
    controls.add(transaction.connection, item)
    # Author and time are the run's claim, not a proof.
    change = {"new": item.document, "claimed_author": claimed, "claimed_at": started.started_at}
    subject = f"runs/{started.run_id}/control/{item.version}"
    access.record_audit(transaction.connection, by, "control.initial", subject, change, now)


def _author(claimed: str) -> str:
    """The author shown for the version a run started with, in a form that no token's name has."""
    if claimed in ("", _PROBE):
        return "run"
    if _AUTHOR_OF_A_RUN.fullmatch(claimed):
        return claimed
    return f"run ({claimed})"
