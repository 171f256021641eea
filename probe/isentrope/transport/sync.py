"""Delivers spools that training processes left behind."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from isentrope.transport.files import ProcessLock, is_held_by_another_process
from isentrope.transport.segments import list_segments
from isentrope.transport.shipper import ShipperSettings, ship
from isentrope.transport.spool_folder import ShipperState, ShipperStatus, SpoolFolder, records_are
from isentrope_wire import environment
from isentrope_wire.reports import RunStarted


class SyncOutcome(StrEnum):
    """The result of delivering one spool."""

    DELIVERED = "delivered"
    NOTHING = "nothing"
    """Nothing was left to deliver."""
    BUSY = "busy"
    """Its training process is alive, and has a side process that delivers."""
    LEFT = "left"
    """The server could not be reached or refused it, or the spool can't be read; it stays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncResult:
    """One spool after a sync."""

    folder: str
    run: str
    rank: int
    outcome: SyncOutcome
    detail: str
    server_away: bool = False
    """Left because its server did not answer: any other spool for that server would be left,
    too."""


def sync_spools(
    folders: Sequence[SpoolFolder],
    *,
    target: str | None,
    give_up_after_seconds: float,
    final: bool = False,
) -> Iterator[SyncResult]:
    """Deliver spools one after another, to `target` or the server each names; a result for each. A
    server that is away so long is not waited for again: its spools share one detail. One that is
    refused, or can't be read, stays. `final`: the training processes have ended, and a record that
    is torn at the end is a gap."""
    away: dict[str, str] = {}
    for folder in folders:
        try:
            server = target or folder.grpc_target()
            if server in away and list_segments(folder.path):
                result = _result(folder, SyncOutcome.LEFT, away[server], server_away=True)
            else:
                result = sync_spool(
                    folder, target=target, give_up_after_seconds=give_up_after_seconds, final=final
                )
        # A `SpoolError`, a refusal, a failing disk: each concerns this spool alone.
        except OSError as error:
            yield _result(folder, SyncOutcome.LEFT, str(error))
            continue
        if result.server_away:
            away.setdefault(server, result.detail)
        yield result


def refill_server(
    kept: Sequence[SpoolFolder], *, target: str | None, give_up_after_seconds: float
) -> Iterator[SyncResult]:
    """Send delivered spools that are kept again as far as their servers lost them, as one does that
    was restored from a backup; a result for each of which something was lost. One that can't be
    asked about, or is refused, was delivered once."""
    away: set[str] = set()
    for folder in kept:
        with contextlib.suppress(OSError):
            run, server = folder.run(), target or folder.grpc_target()
            if (
                server in away
                or (status := ship(folder, _settings(give_up_after_seconds), target=target)) is None
            ):
                continue
            if not status.reached:
                away.add(server)
            elif status.lost_by_the_server:
                if status.state is ShipperState.DRAINED:
                    sentence = (
                        f"{records_are(status.lost_by_the_server)} lost by the server; what was"
                        " kept is sent again"
                    )
                    yield _result(folder, SyncOutcome.DELIVERED, sentence, run)
                else:
                    yield _result(folder, SyncOutcome.LEFT, status.error, run)


def _result(
    folder: SpoolFolder,
    outcome: SyncOutcome,
    detail: str,
    run: RunStarted | None = None,
    *,
    server_away: bool = False,
) -> SyncResult:
    """With the run and rank of the folder's path where its content may be unreadable."""
    name = folder.path.name.removeprefix("rank-")
    rank_of_folder = 0
    if name.isdecimal():
        rank_of_folder = int(name)
    return SyncResult(
        folder=str(folder.path),
        run=folder.path.parent.parent.name if run is None else run.run_id,
        rank=rank_of_folder if run is None else run.rank,
        outcome=outcome,
        detail=detail,
        server_away=server_away,
    )


def _settings(give_up_after_seconds: float, *, final: bool = False) -> ShipperSettings:
    return ShipperSettings(
        drain_seconds=give_up_after_seconds,
        waits_when_refused=False,
        keep_seconds=environment.keep_delivered_seconds(),
        torn_end_is_lost=final,
    )


def sync_spool(
    folder: SpoolFolder, *, target: str | None, give_up_after_seconds: float, final: bool = False
) -> SyncResult:
    """Deliver one spool, as `sync_spools` does; safe to repeat: the server takes each record once.
    SpoolError: it is no spool folder; ServerRefuses: it stays; OSError: it can't be read."""
    run = folder.run()
    outcome, away = SyncOutcome.LEFT, False
    if list_segments(folder.path) and is_held_by_another_process(folder.trainer_lock):
        status = ShipperStatus.read(folder.status)
        is_stuck = status is not None and status.state in (
            ShipperState.RETRYING,
            ShipperState.HOLDING,
        )
        delivers = "delivers by itself"
        if status is not None and is_stuck:
            delivers = f"can't deliver now ({status.summary})"
        elif status is None and not is_held_by_another_process(folder.shipper_lock):
            delivers = (
                "offline: it delivers nothing itself; `isentrope sync` does once it has ended"
            )
        outcome, detail = SyncOutcome.BUSY, f"its training process is alive and {delivers}"
    elif not list_segments(folder.path):
        _remove_if_delivered(folder)
        outcome, detail = SyncOutcome.NOTHING, "was left to deliver"
    elif not _is_free(folder, give_up_after_seconds):
        status = ShipperStatus.read(folder.status)
        if status is None or not status.error:
            error = "it has stored nothing yet"
        else:
            error = status.error
        detail = f"another process still tries to deliver it ({error.rstrip('.')})"
    elif not folder.exists:
        outcome, detail = SyncOutcome.DELIVERED, "all its records are stored, by its side process"
    elif (
        status := ship(folder, _settings(give_up_after_seconds, final=final), target=target)
    ) is None:
        outcome, detail = SyncOutcome.BUSY, "another shipper delivers it now"
    elif status.state is ShipperState.DRAINED:
        outcome, detail = SyncOutcome.DELIVERED, f"{records_are(status.acked_through)} stored"
    elif status.reached:
        detail = (
            f"{target or folder.grpc_target()} stored it up to record {status.acked_through}, then"
            f" {status.error}"
        )
    else:
        away, detail = True, f"{target or folder.grpc_target()} does not answer: {status.error}"
    return _result(folder, outcome, detail, run, server_away=away)


def _remove_if_delivered(folder: SpoolFolder) -> None:
    """Remove a delivered spool whose shipper was killed before it did so."""
    status, end = ShipperStatus.read(folder.status), folder.read_end()
    if status is None or end is None or status.acked_through < end.last_seq:
        return
    lock = ProcessLock(folder.shipper_lock)
    if not is_held_by_another_process(folder.trainer_lock) and lock.acquire():
        folder.remove()
        lock.release()


def _is_free(folder: SpoolFolder, patience_seconds: float) -> bool:
    """Wait until no other process delivers the folder: as long as it gets records stored, and so
    long without. One that is refused gives way: it may have an old token."""
    acked_through, stored_at = -1, time.monotonic()
    try:
        while is_held_by_another_process(folder.shipper_lock):
            status = ShipperStatus.read(folder.status)
            if status is not None and status.acked_through != acked_through:
                acked_through, stored_at = status.acked_through, time.monotonic()
            elif time.monotonic() - stored_at > patience_seconds:
                return False
            elif status is not None and status.state is ShipperState.HOLDING:
                folder.wanted.touch()
            time.sleep(0.05)
    finally:
        folder.wanted.unlink(missing_ok=True)
    return True
