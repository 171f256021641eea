"""What a probe that asks now is told."""

from __future__ import annotations

from isentrope_server.control.transitions import move
from isentrope_server.store import controls
from isentrope_server.store.controls import ControlItem, State
from isentrope_server.store.writer import Transaction
from isentrope_wire.control import Control
from isentrope_wire.messages import ControlSnapshot


def standing_snapshot(transaction: Transaction, run_id: str, run_key: int, now: float) -> ControlSnapshot | None:
    """The newest pushed version that still stands, marked DELIVERED *before* it is sent: a version that is still
    PENDING was certainly never seen by a probe. None: nothing pushed stands."""
    item = controls.desired(transaction.connection, run_key)
    if item is not None and item.state is State.PENDING:
        if item.expires_at is not None and item.expires_at <= now:
            # Too late to fetch; the sweep says so in a moment.
            return None
        item = move(transaction, run_id, item, State.DELIVERED, now=now, actor="server")
    return None if item is None else _snapshot(item)


def _snapshot(item: ControlItem) -> ControlSnapshot:
    return ControlSnapshot(
        version=item.version,
        control=Control.from_document(item.document),
        author=item.author,
        requested_at=item.requested_at,
        # The time to live bounds when a change may begin. One that is in force stays so for the next incarnation too.
        expires_at=item.expires_at if item.state is State.DELIVERED else None,
    )
