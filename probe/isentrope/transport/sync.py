"""Delivers spools that training processes left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from isentrope.transport.process_lock import ProcessLock, is_held_by_another_process, pid_of_holder
from isentrope.transport.segments import list_segments
from isentrope.transport.shipper import ShipperSettings, ship
from isentrope.transport.shipper_status import ShipperState, ShipperStatus
from isentrope.transport.spool_folder import SpoolFolder
from isentrope_wire.errors import IsentropeError

_TAKE_OVER_SECONDS = 10.0


class SpoolsLeft(IsentropeError, ConnectionError):
    """Some spools could not be delivered; they stay, and may be tried again."""


class SyncOutcome(StrEnum):
    """What became of one spool."""

    DELIVERED = "delivered"
    NOTHING = "nothing"
    """Nothing was left to deliver."""
    BUSY = "busy"
    """Somebody else delivers it: its living trainer's shipper, or another sync."""
    LEFT = "left"
    """The server could not be reached or refused; the spool stays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncResult:
    """One spool after a sync."""

    folder: str
    run: str
    rank: int
    outcome: SyncOutcome
    detail: str


def sync_spools(
    folders: Sequence[SpoolFolder], *, target: str | None, give_up_after_seconds: float
) -> Iterator[SyncResult]:
    """Deliver spools one after another. A server that gives up one spool is not waited for again.

    Raises:
        SpoolError, TokenRefused: as `sync_spool`; those behind are not tried, they would fare the same.
    """
    given_up: dict[str, str] = {}
    for folder in folders:
        server = target or folder.grpc_target()
        if server in given_up and list_segments(folder.path):
            run = folder.run()
            yield SyncResult(
                folder=str(folder.path),
                run=run.run_id,
                rank=run.rank,
                outcome=SyncOutcome.LEFT,
                detail=f"not tried: {given_up[server]}",
            )
            continue
        result = sync_spool(folder, target=target, give_up_after_seconds=give_up_after_seconds)
        if result.outcome is SyncOutcome.LEFT:
            given_up[server] = result.detail
        yield result


def sync_spool(folder: SpoolFolder, *, target: str | None, give_up_after_seconds: float) -> SyncResult:
    """Deliver one spool. Safe to repeat: the server takes each record once.

    Args:
        target: host:port instead of the one the spool names.

    Raises:
        SpoolError: `folder` is no spool folder.
        TokenRefused: at the server's first word about it; the spool stays.
    """
    run = folder.run()
    outcome, detail = _sync(folder, target, give_up_after_seconds)
    return SyncResult(folder=str(folder.path), run=run.run_id, rank=run.rank, outcome=outcome, detail=detail)


def _sync(folder: SpoolFolder, target: str | None, give_up_after_seconds: float) -> tuple[SyncOutcome, str]:
    if is_held_by_another_process(folder.trainer_lock) and list_segments(folder.path):
        return SyncOutcome.BUSY, "its training process is alive and delivers by itself"
    if not list_segments(folder.path):
        _remove_if_delivered(folder)
        return SyncOutcome.NOTHING, "was left to deliver"
    _take_over(folder)
    settings = ShipperSettings(drain_seconds=give_up_after_seconds, waits_for_another_token=False)
    status = ship(folder, settings, target=target)
    if status is None:
        return SyncOutcome.BUSY, "another shipper delivers it now"
    if status.state is ShipperState.DRAINED:
        return SyncOutcome.DELIVERED, f"{in_words(status.acked_through)} stored"
    server = target or folder.grpc_target()
    return SyncOutcome.LEFT, f"{server} stored it up to record {status.acked_through}, then {status.error}"


def in_words(records: int) -> str:
    """`1 record is`, `2 records are`."""
    return f"{records} record is" if records == 1 else f"{records} records are"


def _remove_if_delivered(folder: SpoolFolder) -> None:
    """A shipper that was killed after its last acknowledgement has not tidied up."""
    status, last_seq = ShipperStatus.read(folder.status), folder.last_seq()
    if status is None or last_seq is None or status.acked_through < last_seq:
        return
    lock = ProcessLock(folder.shipper_lock)
    if not is_held_by_another_process(folder.trainer_lock) and lock.acquire():
        folder.remove()
        lock.release()


def _take_over(folder: SpoolFolder) -> None:
    """End a shipper that gets nowhere: it may hold a token or an address that this sync knows better."""
    status = ShipperStatus.read(folder.status)
    if status is None or status.state not in (ShipperState.HOLDING, ShipperState.RETRYING):
        return
    end = time.monotonic() + _TAKE_OVER_SECONDS
    # Not the number in its status: on a volume that containers share, that is somebody else's process here.
    while (pid := pid_of_holder(folder.shipper_lock)) is not None and time.monotonic() < end:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGTERM)
        time.sleep(0.05)
