"""The bounded queue between the training loop and the writer thread, without a lock that the loop could wait for."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from isentrope.transport.transport import MakeMessage


@dataclass(frozen=True, slots=True)
class Refused:
    """This many messages were refused at this place of the sequence, because the queue was full."""

    count: int


class _RefusalMark:
    """Stands in the queue where messages were refused; how many is in the queue's counters."""


_MARK = _RefusalMark()


class MessageQueue:
    """First in, first out; one thread puts, one thread takes.

    `put` only appends to a deque, which is atomic: the training loop never waits for a lock, not even for one the
    writer thread holds while the system has put it aside.
    """

    def __init__(self, *, max_messages: int, max_bytes: int) -> None:
        """
        Args:
            max_messages: how many messages may wait.
            max_bytes: how much may wait, estimated: a message is not built before it is taken, so each counts as
                much as the largest one seen so far (`largest_bytes`).
        """
        self._entries: deque[MakeMessage | _RefusalMark] = deque()
        self._max_messages = max_messages
        self._max_bytes = max_bytes
        self._refused_told = 0
        self.largest_bytes = 0
        """Set by the taking side: the largest message encoded so far."""
        self.accepted = 0
        self.refused = 0

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, make: MakeMessage) -> bool:
        """Append one message; False when the queue is full."""
        waiting = len(self._entries)
        if waiting >= self._max_messages or waiting * self.largest_bytes > self._max_bytes:
            self._refuse()
            return False
        self._entries.append(make)
        self.accepted += 1
        return True

    def take(self, max_entries: int) -> list[MakeMessage | Refused]:
        """The oldest entries in order, refusals at the place where they happened."""
        taken: list[MakeMessage | Refused] = []
        while len(taken) < max_entries:
            try:
                entry = self._entries.popleft()
            except IndexError:
                break
            if not isinstance(entry, _RefusalMark):
                taken.append(entry)
            elif refused := self._refusals():
                taken.append(refused)
        return taken

    def _refuse(self) -> None:
        # Counted first: whoever takes the mark, also in this very moment, then finds the count that goes with it.
        self.refused += 1
        try:
            marked = self._entries[-1] is _MARK
        except IndexError:
            marked = False
        if not marked:
            self._entries.append(_MARK)

    def _refusals(self) -> Refused | None:
        refused = self.refused
        count, self._refused_told = refused - self._refused_told, refused
        return Refused(count) if count else None
