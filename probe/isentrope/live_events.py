"""Server-sent events, as a run's live stream sends them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveEvent:
    """One event of a run."""

    kind: str
    """step, control or run."""
    id: str
    """Where to go on after it."""
    data: dict[str, Any]


def events_in(lines: Iterable[str]) -> Iterator[LiveEvent]:
    """The events in a stream's lines; comments, which keep the connection alive, are passed over."""
    fields: dict[str, str] = {}
    for line in lines:
        if not line:
            if "data" in fields:
                yield LiveEvent(
                    kind=fields.get("event", "message"), id=fields.get("id", ""), data=json.loads(fields["data"])
                )
            fields = {}
            continue
        name, _, value = line.partition(":")
        if name:
            # Data of several lines is one text.
            value = value.removeprefix(" ")
            fields[name] = f"{fields[name]}\n{value}" if name == "data" and name in fields else value
