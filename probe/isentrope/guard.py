"""A failure of the probe's own code never ends the training loop it runs in; slow code of others
delays no report."""

from __future__ import annotations

import logging
import os
import queue
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from types import CodeType, FrameType
from typing import Any, TypeVar

from isentrope_wire.errors import IsentropeError

_T = TypeVar("_T")
SLOW_SECONDS = 0.1
REST = 3.0
"""After slow work, so many times its seconds pass before the next: it holds the interpreter's lock,
which the training thread waits for."""


class SafeLog(logging.LoggerAdapter[logging.Logger]):
    """A logger by its name. A handler or filter of the process that raises costs the line, not the
    training nor the thread that reports. Under pytest it is raised."""

    def __init__(self, name: str) -> None:
        super().__init__(logging.getLogger(name))

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        """Log a line, as of the caller of `warning`, `error` and the others."""
        try:
            super().log(level, msg, *args, stacklevel=2, **kwargs)
        except Exception as error:  # of code that anyone may have added
            if "PYTEST_CURRENT_TEST" in os.environ or is_of_signal_handler(error):
                raise


logger = SafeLog("isentrope")


class Guard:
    """Turns failures inside the probe into a few log lines and a count, and lets the loop continue.

    Of each kind of work the first failure is logged, then the 10th, the 100th ...: a repeated
    failure does not fill the log, and does not hide failures of another kind.

    Until the first step is closed, errors of ours (wrong shapes, unknown method ...) are raised: a
    person is watching then. Under pytest everything is raised.
    """

    def __init__(self) -> None:
        self.failed: Counter[str] = Counter()
        self.failures = 0
        self.settled = False
        """True once a step was closed without failure."""

    @property
    def summary(self) -> str:
        """What failed and how often: `gating a batch 12, logging scalars 1`; empty when nothing
        did."""
        return ", ".join(f"{what} {times}" for what, times in sorted(self.failed.items()))

    def protect(
        self,
        what: str,
        stopwatch: Stopwatch | None = None,
        passes: type[Exception] | tuple[()] = (),
    ) -> Protected:
        """A context that counts a failure of its body, by its kind of work, one of few phrases;
        errors of the kind `passes` are the loop's. It may be kept and used again."""
        return Protected(self, what, stopwatch, passes)

    def count(self, what: str, error: Exception) -> bool:
        """Count one failure, and log the 1st, 10th, 100th of its kind; False where it is to be
        raised instead."""
        first_use = isinstance(error, IsentropeError) and not self.settled
        if first_use or "PYTEST_CURRENT_TEST" in os.environ or is_of_signal_handler(error):
            return False
        self.failures += 1
        self.failed[what] += 1
        times = self.failed[what]
        if str(times).rstrip("0") == "1":
            logger.error(
                "Isentrope: %s failed (%d times so far); training continues, the reports count it.",
                what,
                times,
                exc_info=error,
            )
        return True


def is_of_signal_handler(error: BaseException | None) -> bool:
    """Whether an error was raised by a handler of a signal: it interrupted the probe, and is meant
    for the loop.

    A handler is a function whose argument is the frame below its own, or whose code is that of an
    installed handler. Not recognised: a handler that drops its argument and uninstalls itself
    before it raises; an error that other code caught and replaced without `from`.
    """
    while error is not None:
        if any(_is_handler(frame) for frame in _frames(error)):
            return True
        error = error.__cause__
    return False


def _frames(error: BaseException) -> Iterator[FrameType]:
    trace = error.__traceback__
    while trace is not None:
        yield trace.tb_frame
        trace = trace.tb_next


def _is_handler(frame: FrameType) -> bool:
    if frame.f_code in _installed():
        return True
    code = frame.f_code
    count = code.co_argcount + code.co_kwonlyargcount + 2  # and what *arguments hold
    given = []
    if frame.f_back is not None:
        given = [*frame.f_locals.values()][:count]
    return any(
        one is frame.f_back or (isinstance(one, tuple) and frame.f_back in one) for one in given
    )


def _installed() -> set[CodeType]:
    """Code of the handlers of all signals."""
    handlers = [signal.getsignal(number) for number in signal.valid_signals()]
    functions = [getattr(one, "func", one) for one in handlers if callable(one)]
    codes = [getattr(one, "__code__", None) for one in functions]
    codes += [getattr(type(one).__call__, "__code__", None) for one in functions]
    return {code for code in codes if code is not None}


class Stopwatch:
    """Seconds spent in the bodies it was the context of: what the probe costs the loop."""

    __slots__ = ("_started", "seconds")

    def __init__(self) -> None:
        self.seconds = self._started = 0.0

    def __enter__(self) -> None:
        self._started = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self.seconds += time.perf_counter() - self._started


class Warnings:
    """Warnings of which each matter is logged once."""

    def __init__(self, logger: SafeLog) -> None:
        self._logger = logger
        self._logged: set[str] = set()

    def warn_once(self, about: str, message: str) -> None:
        """Log the message, unless it is empty or one about the same was logged before."""
        if message and about not in self._logged:
            self._logged.add(about)
            self._logger.warning(message)


class Protected:
    """The context of `Guard.protect`. A class: one made from a generator costs the training thread
    twice as much."""

    __slots__ = ("_guard", "_passes", "_started", "_stopwatch", "_what")

    def __init__(
        self,
        guard: Guard,
        what: str,
        stopwatch: Stopwatch | None,
        passes: type[Exception] | tuple[()],
    ) -> None:
        self._passes = passes
        self._guard = guard
        self._what = what
        self._stopwatch = stopwatch
        self._started = 0.0

    def __enter__(self) -> None:
        if self._stopwatch is not None:
            self._started = time.perf_counter()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> bool:
        if self._stopwatch is not None:
            self._stopwatch.seconds += time.perf_counter() - self._started
        return (
            error is not None
            and isinstance(error, Exception)
            and not isinstance(error, self._passes)
            and self._guard.count(self._what, error)
        )


class OutOfTime(Exception):
    """Raised inside work whose time is over."""


class _Work:
    def __init__(self, make: Callable[[], object]) -> None:
        self.make = make
        self.error: Exception | None = None
        self.done = threading.Event()


class LimitedWork:
    """Does work on a daemon thread of its own; who asks waits a moment, and then goes on without.

    For one asking thread. Only one work is done at a time, and what comes while one is late, or
    soon after a slow one, is not done at all.
    """

    def __init__(self, what: str, seconds: float) -> None:
        """`what` is done, for the log; `seconds` is the longest wait."""
        self._what, self._seconds = what, seconds
        self._waiting: queue.SimpleQueue[_Work] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._last: _Work | None = None
        self._deadline = self._not_before = 0.0
        self._warned = False

    def do(self, make: Callable[[], _T]) -> _T | None:
        """What `make` gives, or raises; None where it takes too long, or has no turn."""
        if self._last is not None and not self._last.done.is_set():
            return None
        if time.monotonic() < self._not_before:
            return None
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._work, name=f"isentrope-{self._what}", daemon=True
            )
            self._thread.start()
        made: list[_T] = []
        self._last = work = _Work(lambda: made.append(make()))
        self._deadline = time.monotonic() + self._seconds
        self._waiting.put(work)
        if not work.done.wait(self._seconds) or isinstance(work.error, OutOfTime):
            self._warn()
            return None
        if work.error is not None:
            raise work.error
        return made[0]

    def check_time(self) -> None:
        """For the work itself, between two parts of it. OutOfTime: nobody waits for it any more."""
        if threading.current_thread() is self._thread and time.monotonic() > self._deadline:
            raise OutOfTime

    def _work(self) -> None:
        while True:
            work = self._waiting.get()
            began = time.monotonic()
            try:
                work.make()
            except Exception as error:  # noqa: BLE001  # raised by who asks
                work.error = error
            ended = time.monotonic()
            if ended - began > SLOW_SECONDS:
                self._not_before = ended + REST * (ended - began)
            work.done.set()

    def _warn(self) -> None:
        if not self._warned:
            self._warned = True
            logger.warning(
                "Making %s took longer than %g s: reports go without where it is so slow. "
                "Training is not delayed.",
                self._what,
                self._seconds,
            )
