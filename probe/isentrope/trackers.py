"""The scalars of each report, written into the run of a tracker that the training uses already.

    # Or trackio, mlflow, tensorboard; or ISENTROPE_TRACKERS.
    probe = isentrope.Probe("countdown", trackers="wandb")

No tracker is imported here: an active run exists only where the training has imported its tracker
itself. Neither the training nor the reports wait for a tracker: one thread writes to all of them,
from a bounded queue."""

from __future__ import annotations

import importlib
import importlib.util
import os
import queue
import re
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from isentrope.guard import Guard, SafeLog
from isentrope_wire.errors import ConfigurationError
from isentrope_wire.reports import StepReport

PREFIX = "isentrope/"
"""In front of each name. Trainers log an `entropy` and a `reward/mean` of their own, against
another step; and a tracker groups names by their prefix."""
MOST_QUEUED = 256
"""Reports that wait while a tracker hangs, a few MB; later ones are dropped and counted."""
MOST_FAILURES = 5
"""In a row. A tracker that failed so often is not called again."""

logger = SafeLog(__name__)


def prefixed(report: StepReport) -> dict[str, float]:
    """The scalars under their names in a tracker."""
    return {PREFIX + name: value for name, value in report.scalars.items()}


class Tracker:
    """One tracker, and its run: the one given, or the one that is active when a step closes, for
    trainers open theirs late.

    `write` and `close` are called from the thread of the trackers; they may block and may raise.
    """

    name = ""
    remedy = ""
    """What to do where no run is active, as a sentence."""
    method_of_a_run = ""
    """Tells its runs from other objects."""

    def __init__(self, run: Any = None) -> None:
        self.run = run
        self.failed_in_a_row = 0
        self._warned = False

    def prepare(self, run_id: str) -> None:
        """Called once, when the probe is built, with its run's id; ConfigurationError: it can't be
        written to."""

    def active(self) -> Any:
        """The run that is active in this process, or None. On the training thread, where it must
        cost microseconds."""

    def is_found(self, step: int) -> bool:
        """Whether there is a run to write into; looks for one as long as there is none, and warns
        once."""
        if self.run is None:
            self.run = self.active()
        if self.run is None and not self._warned:
            self._warned = True
            logger.warning(
                "Nothing is written to %s yet: no run of it is active at step %d. %s Each step"
                " looks for one.",
                self.name,
                step,
                self.remedy,
            )
        return self.run is not None

    def write(self, report: StepReport) -> None:
        """Write the scalars of one step: finite or not, absent where not measured. Steps may go
        back (a resume)."""
        raise NotImplementedError

    def close(self) -> None:
        """Write what was held back. The run stays open: it is the training's."""


class Trackers:
    """All trackers of rank 0, whose reports are the whole run's; the other ranks have none."""

    def __init__(self, trackers: Sequence[Tracker], run_id: str) -> None:
        """Prepare them."""
        for tracker in trackers:
            tracker.prepare(run_id)
        self._trackers = trackers
        # Unbounded, and bounded by `_put`: the end marker must fit into a full one.
        self._queue: queue.SimpleQueue[StepReport | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._guard = Guard()
        self._guard.settled = True
        self._dropped = 0
        self._writing_to = ""

    def also(self, step: int, build: Callable[[], StepReport]) -> Callable[[], StepReport]:
        """A `build` that also queues the report's scalars for the trackers. Called on the training
        thread."""
        found = False
        for tracker in self._trackers:
            with self._guard.protect(f"looking for the run of {tracker.name}"):
                found |= tracker.is_found(step)
        if not found:
            return build

        def build_and_queue() -> StepReport:
            report = build()
            # Without histograms and tokens: many may wait.
            self._put(
                StepReport(step=report.step, recorded_at=report.recorded_at, scalars=report.scalars)
            )
            return report

        return build_and_queue

    def scalars(self) -> dict[str, float]:
        """Counts of what went wrong so far, for the next report; empty where nothing did."""
        counts = {
            "probe/tracker_failures": self._guard.failures,
            "probe/tracker_dropped_reports": self._dropped,
        }
        return {name: float(count) for name, count in counts.items() if count}

    def close(self, timeout_seconds: float) -> None:
        """Write what fits in the time."""
        self._queue.put(None)
        if self._thread is None:
            return
        self._thread.join(max(timeout_seconds, 0.0))
        left = self._queue.qsize()
        if self._thread.is_alive():
            logger.warning(
                "%s has not written the last reports yet, about %d of them: they are missing if the"
                " process ends now.",
                self._writing_to,
                max(left, 1),
            )

    def _put(self, report: StepReport) -> None:
        if self._queue.qsize() >= MOST_QUEUED:
            self._dropped += 1
            if self._dropped == 1:
                logger.warning(
                    "%s is slow: %d reports wait for it, further ones are dropped and counted in "
                    "probe/tracker_dropped_reports. Isentrope's own reports are not affected.",
                    self._writing_to,
                    MOST_QUEUED,
                )
            return
        with self._guard.protect("starting the thread of the trackers"):
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._work, name="isentrope-trackers", daemon=True
                )
                self._thread.start()
            self._queue.put(report)

    def _work(self) -> None:
        while (report := self._queue.get()) is not None:
            for tracker in self._used_trackers():
                self._write(tracker, report)
        for tracker in self._used_trackers():
            self._writing_to = tracker.name
            with self._guard.protect(f"closing {tracker.name}"):
                tracker.close()

    def _used_trackers(self) -> list[Tracker]:
        return [
            one
            for one in self._trackers
            if one.run is not None and one.failed_in_a_row < MOST_FAILURES
        ]

    def _write(self, tracker: Tracker, report: StepReport) -> None:
        self._writing_to = tracker.name
        tracker.failed_in_a_row += 1
        with self._guard.protect(f"writing to {tracker.name}"):
            tracker.write(report)
            tracker.failed_in_a_row = 0
        if tracker.failed_in_a_row == MOST_FAILURES:
            logger.warning(
                "%s failed %d times in a row: nothing more is written there. Isentrope's own"
                " reports are not affected.",
                tracker.name,
                MOST_FAILURES,
            )


STEP = f"{PREFIX}step"
MOST_HELD = 2048
"""Reports that wait for a row of their own, a few MB; beyond it the oldest is dropped."""
FAR = 4096
"""A W&B step this far beyond the report's does not count the trainer's steps (it may count tokens),
so the report is not late. Rows are closed from here on."""


class WandbRun(Tracker):
    """A run of wandb. The trainer's own rows stay as they are, however it counts its steps.

    W&B keeps one row per step of its own, and ignores metrics for a step that it has closed. A
    trainer that calls `wandb.log(..., step=N)` would lose its own metrics if rows were closed from
    here. So a report goes into the row that the trainer has open (`commit=False`), one report per
    row, and is plotted against `isentrope/step`. A row is closed from here only where the trainer's
    numbers are well beyond it."""

    name = "wandb"
    remedy = "Call wandb.init(...) before training."
    method_of_a_run = "define_metric"

    def __init__(self, run: Any = None) -> None:
        super().__init__(run)
        self._axis_defined = False
        self._held: deque[dict[str, float]] = deque(maxlen=MOST_HELD)
        self._occupied_row: int | None = None
        """The W&B step in whose open row the last report lies."""
        self._last: dict[str, float] = {}
        """Its step's name and number."""

    def active(self) -> Any:
        return getattr(sys.modules.get("wandb"), "run", None)

    def write(self, report: StepReport) -> None:
        if not self._axis_defined:
            self.run.define_metric(STEP, hidden=True)
            self.run.define_metric(f"{PREFIX}*", step_metric=STEP)
            self._axis_defined = True
        row = prefixed(report) | {STEP: report.step}
        if self.run.settings.mode == "shared":
            # Several processes write to one run: it has no steps of its own, hence no order to
            # keep.
            self.run.log(row)
            return
        self._held.append(row)
        self._write_held(report.step)

    def close(self) -> None:
        self._write_held(None)

    def _write_held(self, step: int | None) -> None:
        """Give each report that waits a row, as far as there are rows to be had. Without a newer
        step there will be none, and rows are closed as needed."""
        while self._held:
            row = self.run.step
            if row == self._occupied_row:
                # The trainer may number from 0 what the probe numbers from 1, and may yet log this
                # very step again.
                if step is not None and step - 1 <= row <= step + FAR:
                    return
                # With the row's number: had the trainer closed it just now, W&B ignores this rather
                # than close the next.
                self.run.log(self._last, step=row, commit=True)
            report = self._held[0]
            self.run.log(report, commit=False)
            self._held.popleft()
            self._last = {STEP: report[STEP]}
            # Looked at afterwards: the trainer may have closed a row meanwhile, and the report lies
            # in the next one.
            self._occupied_row = self.run.step


class TrackioRun(Tracker):
    """A run of trackio. Its rows may come in any order, so each report has its own step."""

    name = "trackio"
    remedy = "Call trackio.init(...) before training, on the training thread."
    method_of_a_run = "log"

    def active(self) -> Any:
        # A context variable: another thread sees none.
        context = sys.modules.get("trackio.context_vars")
        if context is None:
            return None
        return context.current_run.get()

    def write(self, report: StepReport) -> None:
        self.run.log(prefixed(report), step=report.step)


MOST_METRICS = 1000
"""In one call, by MLflow's limits."""
LONGEST_NAME = 250
_FOREIGN = re.compile(r"[^\w\-. :/]")


class MlflowRun(Tracker):
    """A run of MLflow: the one active on the training thread is written by its id."""

    name = "mlflow"
    remedy = "Call mlflow.start_run() before training, on the training thread."
    method_of_a_run = "info"

    def active(self) -> Any:
        active_run = getattr(sys.modules.get("mlflow"), "active_run", None)
        if active_run is None:
            return None
        return active_run()

    def write(self, report: StepReport) -> None:
        mlflow: Any = sys.modules["mlflow"]
        milliseconds = int(report.recorded_at * 1000)
        metrics = [
            mlflow.entities.Metric(allowed(name), value, milliseconds, report.step)
            for name, value in prefixed(report).items()
        ]
        for first in range(0, len(metrics), MOST_METRICS):
            mlflow.MlflowClient().log_batch(
                self.run.info.run_id, metrics=metrics[first : first + MOST_METRICS]
            )


def allowed(name: str) -> str:
    """The name as MLflow accepts it: other letters become `_`, and no part of the path is empty or
    dots."""
    parts = _FOREIGN.sub("_", name).split("/")
    return "/".join(part for part in parts if part not in ("", ".", ".."))[:LONGEST_NAME].rstrip(
        "/"
    )


FLUSH_SECONDS = 10
DEFAULT_FOLDER = "runs"


class TensorBoardWriter(Tracker):
    """A SummaryWriter of torch or tensorboardX, given or made for a folder. The axis is the
    trainer's step."""

    name = "tensorboard"
    method_of_a_run = "add_scalar"

    def __init__(self, run: Any = None, folder: str = "") -> None:
        """`folder` is where events go without a writer. Empty: RUN_ID in `TENSORBOARD_LOGGING_DIR`,
        or in "runs"."""
        super().__init__(run)
        self._is_ours = run is None
        self._folder = folder

    def prepare(self, run_id: str) -> None:
        if self.run is None:
            parent = os.environ.get("TENSORBOARD_LOGGING_DIR") or DEFAULT_FOLDER
            if self._folder:
                folder = Path(self._folder)
            else:
                folder = Path(parent) / run_id
            try:
                torch_writer: Any = importlib.import_module("torch.utils.tensorboard")
                self.run = torch_writer.SummaryWriter(str(folder), flush_secs=FLUSH_SECONDS)
            except (ImportError, OSError) as error:
                raise ConfigurationError(
                    f"trackers='tensorboard' can't write to {folder} ({error}). Name another"
                    " folder, trackers='tensorboard:FOLDER', or hand over your own SummaryWriter."
                ) from error

    def write(self, report: StepReport) -> None:
        for name, value in prefixed(report).items():
            self.run.add_scalar(name, value, report.step, walltime=report.recorded_at)

    def close(self) -> None:
        self.run.close() if self._is_ours else self.run.flush()


class OwnFunction(Tracker):
    """Calls `function(step, scalars)`; names have no prefix."""

    def __init__(self, run: Callable[[int, Mapping[str, float]], object]) -> None:
        super().__init__(run)
        self.name = getattr(run, "__qualname__", type(run).__qualname__)

    def write(self, report: StepReport) -> None:
        # A copy, for the function may change it.
        self.run(report.step, dict(report.scalars))


KNOWN: dict[str, type[Tracker]] = {
    tracker.name: tracker for tracker in (WandbRun, TrackioRun, MlflowRun, TensorBoardWriter)
}
_EXPECTED = (
    f"trackers takes {', '.join(KNOWN)} or tensorboard:FOLDER, a run of one of them, a"
    " SummaryWriter, a function of (step, scalars), or several of these in a list"
)


def requested_trackers(trackers: object) -> tuple[Tracker, ...]:
    """The trackers that get the scalars of each report.

    Args:
        trackers: names, split by commas; objects; or a sequence of both. None: what
            ISENTROPE_TRACKERS names, or nothing.

    Raises:
        ConfigurationError: a name that is unknown or not installed, or an object that nothing can
            be written to.
    """
    if trackers is None:
        trackers = os.environ.get("ISENTROPE_TRACKERS") or ()
    if isinstance(trackers, str):
        trackers = [name.strip() for name in trackers.split(",") if name.strip()]
    if not isinstance(trackers, Sequence):
        return (_tracker_of_object(trackers),)
    named = dict.fromkeys(item for item in trackers if isinstance(item, str))
    objects = [item for item in trackers if not isinstance(item, str)]
    return (
        *(_tracker_of_name(name) for name in named),
        *(_tracker_of_object(item) for item in objects),
    )


def _tracker_of_name(name: str) -> Tracker:
    tool, _, folder = name.partition(":")
    if tool not in KNOWN or (folder and tool != "tensorboard"):
        raise ConfigurationError(f"{_EXPECTED}; got {name!r}.")
    if importlib.util.find_spec(tool) is None:
        raise ConfigurationError(
            f"trackers={name!r} needs the package {tool}, which is not installed: pip install"
            f" {tool}."
        )
    if folder:
        return TensorBoardWriter(folder=folder)
    return KNOWN[tool]()


def _tracker_of_object(item: object) -> Tracker:
    # A SummaryWriter may be of torch, tensorboardX or others: what it can do tells.
    if hasattr(item, "add_scalar"):
        home = "tensorboard"
    else:
        home = type(item).__module__.partition(".")[0]
    known = KNOWN.get(home)
    if known is not None and hasattr(item, known.method_of_a_run):
        return known(item)
    if callable(item):
        return OwnFunction(item)
    raise ConfigurationError(f"{_EXPECTED}; got {item!r}.")
