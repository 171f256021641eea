"""The bounded queue between the training loop and the writer thread, without a lock that the loop could wait for."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from isentrope.transport.transport import MakeMessage, ReadyMessage


@dataclass(frozen=True, slots=True)
class Refused:
    """This many messages were refused at this place of the sequence, because the queue was full."""

    count: int


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
        # Each message with the number of refusals before it: so these are told apart and at their place, without a mark
        # in the queue that both threads would have to count on.
        self._entries: deque[tuple[int, MakeMessage]] = deque()
        self._max_messages = max_messages
        self._max_bytes = max_bytes
        self._refused_told = 0
        self.largest_bytes = 0
        """Set by the taking side: the largest message encoded so far."""
        self.accepted = 0
        self.refused = 0
        self.newest_ready: ReadyMessage | None = None
        """The message put last, taken since or not, if it was accepted and needs no building."""

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def empty(self) -> bool:
        """Neither a message nor word of a refusal waits. For the taking side."""
        return not self._entries and self.refused == self._refused_told

    def put(self, make: MakeMessage) -> bool:
        """Append one message; False when the queue is full."""
        waiting = len(self._entries)
        if waiting >= self._max_messages or waiting * self.largest_bytes > self._max_bytes:
            self.refused += 1
            self.newest_ready = None
            return False
        self._entries.append((self.refused, make))
        self.accepted += 1
        self.newest_ready = make if isinstance(make, ReadyMessage) else None
        return True

    def take(self, max_messages: int) -> list[MakeMessage | Refused]:
        """The oldest messages in order, refusals at the place where they happened."""
        taken: list[MakeMessage | Refused] = []
        for _ in range(max_messages):
            # Read before looking: whatever is appended after this was refused later.
            refused = self.refused
            try:
                refused, make = self._entries.popleft()
            except IndexError:
                self._tell(refused, taken)
                break
            self._tell(refused, taken)
            taken.append(make)
        return taken

    def _tell(self, refused: int, taken: list[MakeMessage | Refused]) -> None:
        if refused > self._refused_told:
            taken.append(Refused(refused - self._refused_told))
            self._refused_told = refused
