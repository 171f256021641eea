"""Succession: which incarnation of a run is the newest, though clocks be wrong and old spools come late.

Both look alike at first: an incarnation that began earlier than one that is known, by its own clock. A spool that lay
about really did. A trainer whose clock was set back before it was resumed did not, and what it reports must count. So a
Hello says by the sender's clock when it was sent: the time since the incarnation began is right however wrong the clock.
Had the server first heard of the newest incarnation before that, the other one follows it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from isentrope_server.store.streams import Incarnation
from isentrope_wire.messages import RunStarted


def is_newest(known: Sequence[Incarnation], started: RunStarted) -> bool:
    """Whether a placed incarnation comes after all that are known; False for one that is known itself."""
    newest = known[-1]
    return newest.name != started.incarnation and started.started_at >= newest.started_at


def placed(known: Sequence[Incarnation], started: RunStarted, *, sent_at: float, now: float) -> RunStarted:
    """The same with `started_at` behind that of the incarnation it follows: incarnations are sorted by it.

    Args:
        known: the run's incarnations, oldest first; the newest and, where it is known, this one are enough.
        sent_at: when the Hello was sent by the sender's clock; 0: it doesn't say.
        now: the server's clock.
    """
    if not known:
        return started
    itself = next((incarnation for incarnation in known if incarnation.name == started.incarnation), None)
    if itself is not None:
        # All ranks have one place.
        return replace(started, started_at=max(started.started_at, itself.started_at))
    newest = known[-1]
    if started.started_at < newest.started_at and _began_after(newest.opened_at, started, sent_at=sent_at, now=now):
        return replace(started, started_at=math.nextafter(newest.started_at, math.inf))
    return started


def _began_after(time: float, started: RunStarted, *, sent_at: float, now: float) -> bool:
    """Whether it began after this time of the server's clock, as far as the sender's clock can tell."""
    since_start = sent_at - started.started_at
    # Below 0 the clock was set back since the start, and tells nothing. NaN neither.
    return since_start >= 0 and now - since_start > time
