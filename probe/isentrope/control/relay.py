"""Rank 0 hears of a new control; this tells the others, so that all decide on the same words at the same step."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import NamedTuple

from isentrope.control.snapshot_document import decode_snapshot, encode_snapshot
from isentrope_wire.messages import ControlSnapshot

Broadcast = Callable[[bytes, int], Callable[[], bytes]]
"""Sends rank 0's message of so many bytes to all ranks; the function returned waits for it."""

FIRST_CAPACITY = 4096
"""Bytes of the first message; a control is a tenth of it."""

_HEADER = struct.Struct("<dQQ")
"""Rank 0's clock in seconds since the Unix epoch, and how many bytes its document and its note have."""

LONGEST_NOTE = 2048
"""Bytes; a note has room in every message."""


class Heard(NamedTuple):
    """What rank 0 told."""

    desired: ControlSnapshot | None
    now: float
    """Its clock, in seconds since the Unix epoch."""
    note: bytes
    """What else it told with it; empty: nothing."""


class ControlRelay:
    """One message a step: told when a step closes, heard when the next one opens.

    All messages of a step must have one length on all ranks before any of them knows the document. So the length is
    agreed in advance, and a document that is too long travels one step later, in a message that is long enough.
    """

    def __init__(self, broadcast: Broadcast) -> None:
        self._broadcast = broadcast
        self._capacity = FIRST_CAPACITY
        self._on_its_way: Callable[[], bytes] | None = None
        self._heard: ControlSnapshot | None = None

    def tell(self, desired: ControlSnapshot | None, now: float, note: bytes = b"") -> None:
        """Start telling what rank 0 knows.

        Args:
            desired: the newest snapshot on this rank; rank 0's counts.
            now: seconds since the Unix epoch; rank 0's counts.
            note: at most LONGEST_NOTE bytes for this step alone; rank 0's counts.
        """
        assert len(note) <= LONGEST_NOTE, "a note must fit in the first message"
        document = b"" if desired is None else encode_snapshot(desired)
        fits = _HEADER.size + len(note) + len(document) <= self._capacity
        message = _HEADER.pack(now, len(document), len(note)) + note + (document if fits else b"")
        self._on_its_way = self._broadcast(message, self._capacity)

    def hear(self, now: float) -> Heard:
        """What rank 0 told last, and its clock then; before it told anything, nothing and `now`.

        Raises:
            RuntimeError: rank 0 is gone.
        """
        if self._on_its_way is None:
            return Heard(None, now, b"")
        receive, self._on_its_way = self._on_its_way, None
        message = receive()
        now, length, note_length = _HEADER.unpack_from(message)
        start = _HEADER.size + note_length
        end = start + length
        if end <= self._capacity:
            self._heard = decode_snapshot(message[start:end]) if length else None
        else:
            self._capacity = 2 * end
        return Heard(self._heard, now, message[_HEADER.size : start])
