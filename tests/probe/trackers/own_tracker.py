"""Trackers that the tests hold in their hands: one that keeps what it is told, and may hang or fail."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

Written = list[tuple[int, dict[str, float]]]


class OwnTracker:
    """A function of (step, scalars), as a user would hand it over."""

    def __init__(self) -> None:
        self.written: Written = []
        self.threads: set[int] = set()
        self.opened = threading.Event()
        self.opened.set()
        """Cleared: it hangs."""
        self.failing = False
        self.calls = 0

    def __call__(self, step: int, scalars: Mapping[str, float]) -> None:
        self.calls += 1
        self.threads.add(threading.get_ident())
        self.opened.wait()
        if self.failing:
            raise ConnectionError("the tracker is away")
        self.written.append((step, dict(scalars)))

    def wait_for_calls(self, calls: int) -> None:
        wait_until(lambda: self.calls >= calls)


def wait_until(holds: Callable[[], bool], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)
