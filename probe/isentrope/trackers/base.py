"""What the mirrors need of a tracker, and what its metrics are called there.

The thread in front of one tracker: whatever the tracker does, neither the training nor the reports wait for it.

All mirrors of one probe: where a report is built, its scalars are handed to each.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from isentrope.guard import Guard
from isentrope_wire.reports import StepReport

PREFIX = "isentrope/"
"""In front of each name. Trainers log an `entropy` and a `reward/mean` of their own, against another step; and a tracker
shows what has one prefix together."""


@dataclass(frozen=True, slots=True)
class StepScalars:
    """The scalars of one report. What was not measured is absent; what is there may be NaN or infinite."""

    step: int
    """The trainer's own number, as given to `probe.step`."""
    recorded_at: float
    """Seconds since the epoch."""
    scalars: Mapping[str, float]

    def prefixed(self) -> dict[str, float]:
        """Under the names that trackers get."""
        return {PREFIX + name: value for name, value in self.scalars.items()}


class Tracker(Protocol):
    """An active run of a tracker. Called from the mirror's own thread, one call at a time; it may block and may raise."""

    def write(self, report: StepScalars) -> None:
        """Take the scalars of one step. Steps come in the order of the training, which may go back (a resume)."""
        ...

    def close(self) -> None:
        """Hand on what was held back. The run stays open: it is the training's."""
        ...


class Destination(Protocol):
    """What `mirror=` asked for."""

    @property
    def name(self) -> str:
        """Of the tracker, for messages."""
        ...

    @property
    def remedy(self) -> str:
        """What to do where no run is active, as a sentence."""
        ...

    def prepare(self, run_id: str) -> None:
        """Called once, where the probe is built.

        Args:
            run_id: of the probe's own run.

        Raises:
            ConfigurationError: it can't be written to.
        """
        ...

    def find(self) -> Tracker | None:
        """The active run; None: there is none yet. On the training thread, where it must cost microseconds."""
        ...


logger = logging.getLogger(__name__)

MOST_QUEUED = 256
"""Reports that wait while a tracker hangs, a few MB; those that come after are dropped and counted."""
MOST_FAILURES = 5
"""In a row. A tracker that failed so often is left alone."""


class MirrorThread:
    """Writes into one tracker, in the order of the reports."""

    def __init__(self, destination: Destination) -> None:
        self._destination = destination
        self._tracker: Tracker | None = None
        # Unbounded, and bounded by hand: the end must find room in a full one.
        self._queue: queue.SimpleQueue[StepScalars | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._guard = Guard()
        self._guard.settled = True
        self._gave_up = False
        self._missing_told = False
        self.dropped = 0
        """Reports that found no room, or came after the tracker was given up."""

    @property
    def failures(self) -> int:
        """Calls of the tracker that raised."""
        return self._guard.failures

    def found(self, step: int) -> bool:
        """Whether there is a run to write into. On the training thread; looks for one as long as there is none."""
        if self._tracker is None:
            with self._guard.protect(f"looking for the run of {self._destination.name}"):
                self._tracker = self._destination.find()
            if self._tracker is None and not self._missing_told:
                self._missing_told = True
                logger.warning(
                    "Nothing is mirrored to %s yet: no run of it is active at step %d. %s It is looked for at each step.",
                    self._destination.name,
                    step,
                    self._destination.remedy,
                )
        return self._tracker is not None

    def put(self, report: StepScalars) -> None:
        """Queue one report; never waits. From one thread at a time."""
        if self._gave_up or self._queue.qsize() >= MOST_QUEUED:
            self._drop()
            return
        with self._guard.protect(f"mirroring to {self._destination.name}"):
            if self._thread is None and self._tracker is not None:
                name = f"isentrope-mirror-{self._destination.name}"
                self._thread = threading.Thread(target=self._work, args=(self._tracker,), name=name, daemon=True)
                self._thread.start()
            self._queue.put(report)

    def end(self) -> None:
        """Say that there are no more reports."""
        self._queue.put(None)

    def wait(self, timeout_seconds: float) -> None:
        """Until all is written, or the time is up. The tracker's run stays open."""
        if self._thread is None:
            return
        self._thread.join(max(timeout_seconds, 0.0))
        left = self._queue.qsize()
        if self._thread.is_alive():
            logger.warning(
                "%s has not taken the last reports yet, about %d of them: those it has not when the process ends are missing.",
                self._destination.name,
                max(left, 1),
            )

    def _drop(self) -> None:
        self.dropped += 1
        if self.dropped == 1 and not self._gave_up:
            logger.warning(
                "%s takes its time: %d reports wait for it, further ones are not mirrored and counted in "
                "probe/mirror_dropped_reports. Isentrope's own are not affected.",
                self._destination.name,
                MOST_QUEUED,
            )

    def _work(self, tracker: Tracker) -> None:
        failures = 0
        while (report := self._queue.get()) is not None:
            failures = 0 if self._written(tracker, report) else failures + 1
            if failures == MOST_FAILURES:
                self._give_up()
                return
        with self._guard.protect(f"closing the mirror to {self._destination.name}"):
            tracker.close()

    def _written(self, tracker: Tracker, report: StepScalars) -> bool:
        with self._guard.protect(f"mirroring to {self._destination.name}"):
            tracker.write(report)
            return True
        return False

    def _give_up(self) -> None:
        self._gave_up = True
        self.dropped += self._queue.qsize()
        logger.warning(
            "%s failed %d times in a row: nothing more is mirrored there. Isentrope's own reports are not affected.",
            self._destination.name,
            MOST_FAILURES,
        )


class OpenMirrors:
    """Of rank 0, whose reports are the whole run's; the other ranks have none."""

    def __init__(self, destinations: Sequence[Destination], run_id: str) -> None:
        """
        Raises:
            ConfigurationError: one of them can't be written to.
        """
        for destination in destinations:
            destination.prepare(run_id)
        self._mirrors = tuple(MirrorThread(destination) for destination in destinations)

    def also(self, step: int, build: Callable[[], StepReport]) -> Callable[[], StepReport]:
        """A `build` that gives the report to the mirrors too. This is called on the training thread, `build` is not."""
        if not self._mirrors:
            return build
        found = [mirror for mirror in self._mirrors if mirror.found(step)]
        if not found:
            return build

        def build_and_mirror() -> StepReport:
            report = build()
            mirrored = StepScalars(report.step, report.recorded_at, report.scalars)
            for mirror in found:
                mirror.put(mirrored)
            return report

        return build_and_mirror

    def scalars(self) -> dict[str, float]:
        """What went wrong so far, for the next report; nothing where nothing did."""
        if not self._mirrors:
            return {}
        counts = {
            "probe/mirror_failures": sum(mirror.failures for mirror in self._mirrors),
            "probe/mirror_dropped_reports": sum(mirror.dropped for mirror in self._mirrors),
        }
        return {name: float(count) for name, count in counts.items() if count}

    def close(self, timeout_seconds: float) -> None:
        """Write what fits in the time, all mirrors together."""
        end = time.monotonic() + timeout_seconds
        for mirror in self._mirrors:
            mirror.end()
        for mirror in self._mirrors:
            mirror.wait(end - time.monotonic())
