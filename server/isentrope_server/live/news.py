"""What a notification says: of which run, up to which position, which control versions. Ids and numbers, never data."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from isentrope_server.store.events import ControlChanged, Event, RunChanged, StepStored, TokensChanged

MOST_VERSIONS = 32
"""Control versions one notification names, the newest; a payload must stay under 8 000 bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    """What one transaction did to one run, or, where the run's id is empty, to the tokens."""

    origin: str
    """The server that wrote it."""
    batch: int
    """Counts that server's transactions."""
    run_id: str
    positions: tuple[int, int] | None = None
    """First and last of the new step reports; None: there are none."""
    versions: tuple[int, ...] = ()
    """Control versions that were asked for or changed their state."""
    run_changed: bool = False

    @property
    def of_tokens(self) -> bool:
        return self.run_id == ""

    def payload(self) -> str:
        return json.dumps(
            [self.origin, self.batch, self.run_id, self.positions, self.versions, self.run_changed],
            separators=(",", ":"),
        )


def read(payload: str) -> News:
    """A notification's payload.

    Raises:
        ValueError: another program uses the channel.
    """
    origin, batch, run_id, positions, versions, run_changed = json.loads(payload)
    return News(
        origin=origin,
        batch=batch,
        run_id=run_id,
        positions=None if positions is None else (positions[0], positions[1]),
        versions=tuple(versions),
        run_changed=run_changed,
    )


def by_run(events: Sequence[Event]) -> dict[str, list[Event]]:
    """The events of each run in their order; those of the tokens under an empty id."""
    found: dict[str, list[Event]] = defaultdict(list)
    for event in events:
        found["" if isinstance(event, TokensChanged) else event.run_id].append(event)
    return dict(found)


def news_of(run_id: str, events: Sequence[Event], *, origin: str, batch: int) -> News:
    """One run's events of one transaction, in short."""
    positions = [event.position for event in events if isinstance(event, StepStored)]
    versions = sorted({event.version for event in events if isinstance(event, ControlChanged)})
    return News(
        origin=origin,
        batch=batch,
        run_id=run_id,
        positions=(min(positions), max(positions)) if positions else None,
        versions=tuple(versions[-MOST_VERSIONS:]),
        run_changed=any(isinstance(event, RunChanged) for event in events),
    )
