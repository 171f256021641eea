"""Hello: a rank of an incarnation of a run says what it is."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from isentrope_server.control.standing import standing_snapshot
from isentrope_server.errors import DeletedRun, Unprocessable
from isentrope_server.ingest.report_limits import STREAMS_OF_A_RUN
from isentrope_server.ingest.succession import is_newest, placed
from isentrope_server.security.tokens import Principal
from isentrope_server.store import audit, controls, runs, streams
from isentrope_server.store.controls import ControlItem, State
from isentrope_server.store.events import RunChanged
from isentrope_server.store.streams import Incarnation
from isentrope_server.store.tables import LARGEST_INTEGER
from isentrope_server.store.writer import Transaction
from isentrope_wire.control import Control
from isentrope_wire.messages import ControlSnapshot, RunStarted
from isentrope_wire.run_limits import NAME_CHARACTERS

_LARGEST_RANK = 2**31 - 1
_LARGEST_FIRST_VERSION = 2**31 - 1
"""Of a control. Far more than a run sees, and room to count on from there."""
_LONGEST_AUTHOR = 200
_PROBE = "trainer"
"""How a probe calls itself as the author of what its configuration says."""
_AUTHOR_OF_A_RUN = re.compile(r"run( \(.*\))?", re.DOTALL)
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Welcome:
    """The answer to a Hello."""

    acked_through: int
    control: ControlSnapshot | None


def open_stream(
    transaction: Transaction, started: RunStarted, now: float, *, by: Principal, sent_at: float = 0.0
) -> Welcome:
    """Make the run and the stream known, or find them again; safe to repeat.

    Args:
        by: whose token it came with.
        sent_at: when the Hello was sent by the sender's clock; 0: it doesn't say.

    Raises:
        Unprocessable: an id that can't stand in an address.
        DeletedRun: somebody deleted the run.
    """
    _check(started)
    connection = transaction.connection
    if runs.was_deleted(connection, started.run_id):
        raise DeletedRun(
            f"Run {started.run_id} was deleted on this server and takes no more reports. Remove its spool folder."
        )
    stream = streams.find(connection, started.run_id, started.incarnation, started.rank)
    if stream is not None:
        runs.heard(connection, stream.run_key, now)
        return Welcome(
            acked_through=stream.acked_through,
            control=standing_snapshot(transaction, started.run_id, stream.run_key, now),
        )
    run_key = runs.key_of(connection, started.run_id)
    known = [] if run_key is None else streams.newest_and(connection, run_key, started.incarnation)
    started = placed(known, started, sent_at=sent_at, now=now)
    run_key = _enter(transaction, started, run_key, known, now, by)
    if streams.count(connection, run_key) >= STREAMS_OF_A_RUN:
        raise Unprocessable(f"Run {started.run_id} has {STREAMS_OF_A_RUN} ranks and incarnations, as many as one may.")
    streams.create(connection, run_key, started, now)
    transaction.announce(RunChanged(run_id=started.run_id))
    return Welcome(acked_through=0, control=standing_snapshot(transaction, started.run_id, run_key, now))


def _check(started: RunStarted) -> None:
    for name, value in (("run_id", started.run_id), ("incarnation", started.incarnation)):
        if not _ID.fullmatch(value):
            raise Unprocessable(
                f"{name} must be 1 to 128 letters, digits, dots, dashes or underscores, got {value[:140]!r}."
            )
    if not math.isfinite(started.started_at):
        raise Unprocessable(f"started_at must be seconds since the Unix epoch, got {started.started_at}.")
    if max(len(started.name), len(started.project)) > NAME_CHARACTERS:
        raise Unprocessable(f"name and project of a run have at most {NAME_CHARACTERS} characters.")
    if max(started.rank, started.world_size) > _LARGEST_RANK:
        raise Unprocessable(f"rank and world_size must be less than 2^31, got {started.rank} of {started.world_size}.")
    if (started.planned_steps or 0) > LARGEST_INTEGER:
        raise Unprocessable("planned_steps must be less than 2^63.")
    version = started.initial_control.version if started.initial_control else 0
    if version > _LARGEST_FIRST_VERSION:
        raise Unprocessable(f"The control a run starts with has a version less than 2^31, got {version}.")


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
    elif is_newest(known, started):
        runs.reopen(connection, run_key, started, now)
    else:
        # An old spool found its way up late; what the run says of itself now stays.
        runs.heard(connection, run_key, now)
    return run_key


def _record_initial_control(
    transaction: Transaction, run_key: int, started: RunStarted, now: float, by: Principal
) -> None:
    initial = started.initial_control
    control = initial.control if initial else Control()
    claimed = (initial.author if initial else "")[:_LONGEST_AUTHOR]
    item = ControlItem(
        run_key=run_key,
        # A run resumed from a checkpoint, or known to another server before, begins with a later version.
        version=initial.version if initial else 0,
        document=control.to_document(),
        author=_author(claimed),
        requested_at=started.started_at,
        requested_step=None,
        expires_at=None,
        state=State.APPLIED,
        applied_step=None,
        applied_at=started.started_at,
        ended_at=started.started_at,
        message="What the run started with.",
    )
    controls.add(transaction.connection, item)
    audit.record(
        transaction.connection,
        at=now,
        actor=by.name,
        token_id=by.token_id,
        action="control.initial",
        subject=f"runs/{started.run_id}/control/{item.version}",
        # What the run says of itself is no proof of who did it, nor when.
        change={"new": item.document, "claimed_author": claimed, "claimed_at": started.started_at},
    )


def _author(claimed: str) -> str:
    """Who stands beside the version a run began with: nobody could give a token such a name.

    A run that goes on from a checkpoint brings the author that its control had in another run, or at another server.
    """
    if claimed in ("", _PROBE):
        return "run"
    return claimed if _AUTHOR_OF_A_RUN.fullmatch(claimed) else f"run ({claimed})"
