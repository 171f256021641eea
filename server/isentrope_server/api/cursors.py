"""Opaque places: in a list, and in what a run has reported."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass

from isentrope_server.errors import BadCursor


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportCursor:
    """How far somebody has read a run's reports. Series and the live stream share it."""

    position: int
    timeline: int
    """The run's timeline version: when it has risen, older points may be overruled and all must be read again."""

    def __str__(self) -> str:
        return encode(self.position, self.timeline)


def report_cursor(text: str) -> ReportCursor:
    position, timeline = decode(text, 2)
    return ReportCursor(position=position, timeline=timeline)


def encode(*places: int) -> str:
    text = ".".join(str(place) for place in places)
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def decode(cursor: str, length: int) -> list[int]:
    """The places in a cursor.

    Raises:
        BadCursor: it is none of ours.
    """
    try:
        text = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode("ascii")
        places = [int(place) for place in text.split(".")]
    except (binascii.Error, ValueError):
        places = []
    if len(places) != length or not all(0 <= place < 2**63 for place in places):
        raise BadCursor(f"A cursor is what an earlier answer gave, unchanged; got {cursor[:80]!r}.")
    return places
