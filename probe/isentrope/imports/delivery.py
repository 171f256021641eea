"""Sends imported reports to a server as a probe does: Hello, records with rising seq, the end of the run.

Run, incarnation and records follow from the reports alone: an import that broke off, or is repeated, gives the same run.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass

from isentrope.transport.connection import TelemetryConnection
from isentrope_wire.answers import Status
from isentrope_wire.codec import record_of
from isentrope_wire.errors import IsentropeError
from isentrope_wire.reports import Payload, Record, RunFinished, RunStarted, StepReport


class ImportRefused(IsentropeError, ValueError):
    """The file is no history that this version can read; nothing of it was sent."""


_RECORDS_IN_A_PUSH = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """An import that the server has stored."""

    run: str
    reports: int
    first_step: int
    last_step: int


def deliver(
    reports: Sequence[StepReport], *, name: str, project: str, source: str, target: str, token: str | None
) -> Imported:
    """Send reports as a run of their own.

    Args:
        reports: by rising step; at least one.
        name: the run's name; its id is the name and a digest of the reports.
        project: the run's project.
        source: where the reports come from, for the run's configuration.
        target: the server's host:port.
        token: sent to the server.

    Returns:
        What the server has stored.

    Raises:
        ServerAway: not everything was stored; repeat to continue. The same with ServerRefuses and TokenRefused.
        ImportRefused: the server quarantined a record.
    """
    finished = RunFinished(status=Status.IMPORTED, finished_at=reports[-1].recorded_at, step=reports[-1].step)
    messages: list[Payload] = [*reports, finished]
    records = [record_of(seq, message) for seq, message in enumerate(messages, 1)]
    digest = hashlib.blake2b(b"".join(record.payload_hash for record in records), digest_size=4).hexdigest()
    run = RunStarted(
        run_id=f"{_identifier(name)}-{digest}",
        incarnation="import",
        rank=0,
        world_size=1,
        name=name,
        project=project,
        started_at=reports[0].recorded_at,
        probe_version="import",
        config={"imported_from": source},
        planned_steps=None,
    )
    _push_all(run, records, target, token)
    return Imported(run=run.run_id, reports=len(reports), first_step=reports[0].step, last_step=reports[-1].step)


def _push_all(run: RunStarted, records: Sequence[Record], target: str, token: str | None) -> None:
    with TelemetryConnection(
        target, token, run, receive_control=lambda control: None, report_problem=lambda problem: None
    ) as connection:
        done = connection.hello()
        while done < len(records):
            done, aside = connection.push(records[done : done + _RECORDS_IN_A_PUSH])
            if aside:
                raise ImportRefused(f"The server quarantined record {aside[0].seq}: {aside[0].message}")


def _identifier(name: str) -> str:
    """The part of a name that a run's id may hold."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-._")[:100] or "import"
