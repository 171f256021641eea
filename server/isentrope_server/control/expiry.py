"""Versions nobody answered in time.

A version no probe ever fetched expires on the second. A delivered one is the probe's to answer, and an answer may be
on its way up; after a grace the server concludes EXPIRED, and takes the conclusion back if the probe says otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass

from isentrope_server.control.outcomes import settle
from isentrope_server.control.transitions import UNANSWERED, move
from isentrope_server.store import controls
from isentrope_server.store.controls import ControlItem, State
from isentrope_server.store.writer import Transaction


@dataclass(frozen=True, slots=True, kw_only=True)
class Grace:
    """How long the server waits for a probe's word."""

    answer_seconds: float
    """After a delivered version expired."""
    rank_seconds: float
    """After the first of several ranks has answered."""


def sweep(transaction: Transaction, grace: Grace, now: float) -> None:
    """End every open version whose time is over."""
    for run_id, item in controls.all_open(transaction.connection):
        words = controls.outcomes(transaction.connection, item.run_key, item.version)
        if words:
            if words[0].received_at + grace.rank_seconds <= now:
                settle(transaction, run_id, item, now)
        elif _is_over(item, grace, now):
            _expire(transaction, run_id, item, now)


def _is_over(item: ControlItem, grace: Grace, now: float) -> bool:
    if item.expires_at is None:
        return False
    extra = grace.answer_seconds if item.state is State.DELIVERED else 0.0
    return item.expires_at + extra <= now


def _expire(transaction: Transaction, run_id: str, item: ControlItem, now: float) -> None:
    delivered = item.state is State.DELIVERED
    move(
        transaction,
        run_id,
        item,
        State.EXPIRED,
        now=now,
        actor="server",
        code=UNANSWERED if delivered else "never_delivered",
        message=(
            "It was delivered, but the probe said nothing of it before it expired."
            if delivered
            else "No probe fetched it before it expired."
        ),
    )
