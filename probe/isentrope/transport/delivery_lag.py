"""How old the oldest record is that the server has not acknowledged."""

from __future__ import annotations

MOST_MARKS = 256


class DeliveryLag:
    """Remembers when records were written, coarser the longer the server stays away. Used by one thread."""

    def __init__(self) -> None:
        self._marks: list[tuple[int, float]] = []
        """Sequence numbers and when they were the newest on disk."""
        self._spacing_seconds = 0.0

    def written(self, seq: int, at: float) -> None:
        """Records up to `seq` are on disk."""
        if not self._marks:
            self._spacing_seconds = 0.0
        elif self._marks[-1][0] >= seq or at - self._marks[-1][1] < self._spacing_seconds:
            return
        self._marks.append((seq, at))
        if len(self._marks) > MOST_MARKS:
            # The first one stays: it says how old the oldest record is.
            self._marks = self._marks[::2]
            self._spacing_seconds = max(2 * self._spacing_seconds, 1.0)

    def acknowledged(self, seq: int) -> None:
        """The server has records up to `seq`."""
        kept = 0
        while kept < len(self._marks) and self._marks[kept][0] <= seq:
            kept += 1
        del self._marks[:kept]

    @property
    def oldest_at(self) -> float | None:
        """When the oldest of what the server lacks was written; None: it has everything."""
        return self._marks[0][1] if self._marks else None
