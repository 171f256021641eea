"""One version's state changes, each with its audit entry and its announcement."""

from __future__ import annotations

from dataclasses import replace

from isentrope_server.store import audit, controls
from isentrope_server.store.controls import ControlItem, State
from isentrope_server.store.events import ControlChanged
from isentrope_server.store.writer import Transaction

UNANSWERED = "unanswered"
"""Code of an EXPIRED the server concluded from silence: a guess, that yields to a probe's later word."""
RUN_ENDED = "run_ended"
"""Code of an EXPIRED: the run said goodbye without a word of it. A guess too: an older incarnation's may come late."""
RANKS_SILENT = "ranks_silent"
"""Code of a PARTIAL: no rank said it did not apply it, but some had said nothing when the grace was over. A guess too."""


def move(
    transaction: Transaction,
    run_id: str,
    item: ControlItem,
    state: State,
    *,
    now: float,
    actor: str,
    token_id: str | None = None,
    code: str = "",
    message: str = "",
    applied_step: int | None = None,
    applied_at: float | None = None,
) -> ControlItem:
    """Put a version into another state; returns it as it is then."""
    is_final = state not in controls.OPEN_STATES
    moved = replace(
        item,
        state=state,
        code=code,
        message=message,
        applied_step=applied_step,
        applied_at=applied_at,
        ended_at=now if is_final else None,
    )
    controls.change(
        transaction.connection,
        item,
        state=state,
        code=code,
        message=message,
        applied_step=applied_step,
        applied_at=applied_at,
        ended_at=moved.ended_at,
    )
    audit.record(
        transaction.connection,
        at=now,
        actor=actor,
        token_id=token_id,
        action=f"control.{state.lower()}",
        subject=f"runs/{run_id}/control/{item.version}",
        change={"old": item.state, "new": state, "code": code, "message": message, "step": applied_step},
    )
    transaction.announce(ControlChanged(run_id=run_id, version=item.version))
    return moved
