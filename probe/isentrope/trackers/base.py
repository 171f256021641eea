"""Trackers: what is needed of one, the thread in front of each, and all trackers of a probe.

Neither the training nor the reports wait for a tracker. Where a report is built, its scalars are queued for each.
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
groups names by their prefix."""


@dataclass(frozen=True, slots=True)
class StepScalars:
    """The scalars of one report. A value that was not measured is absent; others may be NaN or infinite."""

    step: int
    """The number given to `probe.step`."""
    recorded_at: float
    """Seconds since the epoch."""
    scalars: Mapping[str, float]

    def prefixed(self) -> dict[str, float]:
        """The scalars under their names in a tracker."""
        return {PREFIX + name: value for name, value in self.scalars.items()}


class TrackerRun(Protocol):
    """An active run of a tracker. Called from the tracker's own thread, one call at a time; it may block and may raise."""

    def write(self, report: StepScalars) -> None:
        """Write the scalars of one step. Steps come in the order of the training, which may go back (a resume)."""
        ...

    def close(self) -> None:
        """Write what was held back. The run stays open: it is the training's."""
        ...


class Tracker(Protocol):
    """A tracker that `trackers=` named."""

    @property
    def name(self) -> str:
        """Its name, for messages."""
        ...

    @property
    def remedy(self) -> str:
        """What to do where no run is active, as a sentence."""
        ...

    def prepare(self, run_id: str) -> None:
        """Prepare it; called once, when the probe is built.

        Args:
            run_id: of the probe's own run.

        Raises:
            ConfigurationError: it can't be written to.
        """
        ...

    def find(self) -> TrackerRun | None:
        """The active run; None: there is none yet. On the training thread, where it must cost microseconds."""
        ...


logger = logging.getLogger(__name__)

MOST_QUEUED = 256
"""Reports that wait while a tracker hangs, a few MB; later ones are dropped and counted."""
MOST_FAILURES = 5
"""In a row. A tracker that failed so often is not called again."""


class TrackerThread:
    """Writes into one tracker, in the order of the reports."""

    def __init__(self, tracker: Tracker) -> None:
        self._tracker = tracker
        self._run: TrackerRun | None = None
        # Unbounded, and bounded by `put`: the end marker must fit into a full one.
        self._queue: queue.SimpleQueue[StepScalars | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._guard = Guard()
        self._guard.settled = True
        self._gave_up = False
        self._warned = False
        self.dropped = 0
        """Reports that found no room, or came after the tracker was given up."""

    @property
    def failures(self) -> int:
        """Calls of the tracker that raised."""
        return self._guard.failures

    def found(self, step: int) -> bool:
        """Whether there is a run to write into; looks for one as long as there is none. On the training thread.

        Args:
            step: for the warning.
        """
        if self._run is None:
            with self._guard.protect(f"looking for the run of {self._tracker.name}"):
                self._run = self._tracker.find()
            if self._run is None and not self._warned:
                self._warned = True
                logger.warning(
                    "Nothing is written to %s yet: no run of it is active at step %d. %s Each step looks for one.",
                    self._tracker.name,
                    step,
                    self._tracker.remedy,
                )
        return self._run is not None

    def put(self, report: StepScalars) -> None:
        """Queue one report; never waits. From one thread at a time."""
        if self._gave_up or self._queue.qsize() >= MOST_QUEUED:
            self._drop()
            return
        with self._guard.protect(f"writing to {self._tracker.name}"):
            if self._thread is None and self._run is not None:
                name = f"isentrope-tracker-{self._tracker.name}"
                self._thread = threading.Thread(target=self._work, args=(self._run,), name=name, daemon=True)
                self._thread.start()
            self._queue.put(report)

    def end(self) -> None:
        """Mark the end of the reports."""
        self._queue.put(None)

    def wait(self, timeout_seconds: float) -> None:
        """Wait until all is written. The tracker's run stays open.

        Args:
            timeout_seconds: the longest wait.
        """
        if self._thread is None:
            return
        self._thread.join(max(timeout_seconds, 0.0))
        left = self._queue.qsize()
        if self._thread.is_alive():
            logger.warning(
                "%s has not written the last reports yet, about %d of them: they are missing if the process ends now.",
                self._tracker.name,
                max(left, 1),
            )

    def _drop(self) -> None:
        self.dropped += 1
        if self.dropped == 1 and not self._gave_up:
            logger.warning(
                "%s is slow: %d reports wait for it, further ones are dropped and counted in "
                "probe/tracker_dropped_reports. Isentrope's own reports are not affected.",
                self._tracker.name,
                MOST_QUEUED,
            )

    def _work(self, tracker: TrackerRun) -> None:
        failures = 0
        while (report := self._queue.get()) is not None:
            failures = 0 if self._written(tracker, report) else failures + 1
            if failures == MOST_FAILURES:
                self._give_up()
                return
        with self._guard.protect(f"closing {self._tracker.name}"):
            tracker.close()

    def _written(self, tracker: TrackerRun, report: StepScalars) -> bool:
        with self._guard.protect(f"writing to {self._tracker.name}"):
            tracker.write(report)
            return True
        return False

    def _give_up(self) -> None:
        self._gave_up = True
        self.dropped += self._queue.qsize()
        logger.warning(
            "%s failed %d times in a row: nothing more is written there. Isentrope's own reports are not affected.",
            self._tracker.name,
            MOST_FAILURES,
        )


class Trackers:
    """All trackers of rank 0, whose reports are the whole run's; the other ranks have none."""

    def __init__(self, trackers: Sequence[Tracker], run_id: str) -> None:
        """
        Args:
            trackers: as `trackers=` named them.
            run_id: of the probe's run.

        Raises:
            ConfigurationError: one of them can't be written to.
        """
        for tracker in trackers:
            tracker.prepare(run_id)
        self._trackers = tuple(TrackerThread(tracker) for tracker in trackers)

    def also(self, step: int, build: Callable[[], StepReport]) -> Callable[[], StepReport]:
        """Let the trackers have a report, too. Called on the training thread.

        Args:
            step: the report's.
            build: builds the report, on another thread.

        Returns:
            A `build` that queues the report's scalars for the trackers.
        """
        if not self._trackers:
            return build
        found = [tracker for tracker in self._trackers if tracker.found(step)]
        if not found:
            return build

        def build_and_queue() -> StepReport:
            report = build()
            scalars = StepScalars(report.step, report.recorded_at, report.scalars)
            for tracker in found:
                tracker.put(scalars)
            return report

        return build_and_queue

    def scalars(self) -> dict[str, float]:
        """Counts of what went wrong so far, for the next report; empty where nothing did."""
        if not self._trackers:
            return {}
        counts = {
            "probe/tracker_failures": sum(tracker.failures for tracker in self._trackers),
            "probe/tracker_dropped_reports": sum(tracker.dropped for tracker in self._trackers),
        }
        return {name: float(count) for name, count in counts.items() if count}

    def close(self, timeout_seconds: float) -> None:
        """Write what fits in the time.

        Args:
            timeout_seconds: the longest wait for all trackers together.
        """
        end = time.monotonic() + timeout_seconds
        for tracker in self._trackers:
            tracker.end()
        for tracker in self._trackers:
            tracker.wait(end - time.monotonic())
