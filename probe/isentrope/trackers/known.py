"""The known trackers: W&B, Trackio, MLflow, TensorBoard and a function of the user's; and what `trackers=` may be."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from isentrope.errors import ConfigurationError
from isentrope.trackers.base import PREFIX, StepScalars, Tracker

STEP = f"{PREFIX}step"
MOST_HELD = 2048
"""Reports that wait for a row of their own, a few MB; beyond it the oldest is dropped."""
FAR = 4096
"""A W&B step this far beyond the report's is not a number of the trainer's steps (it may count tokens), and the report is
not late, for fewer may wait. The trainer's next number is not near then, and rows are closed from here."""


class WandbRun:
    """One run of wandb, given or the active one. The trainer's own rows stay as they are, however it counts its steps.

    W&B keeps one row per step of its own, and ignores metrics for a step that it has closed. A trainer that calls
    `wandb.log(..., step=N)` would lose its own metrics if rows were closed from here. So a report goes into the row that
    the trainer has open (`commit=False`), one report per row, and is plotted against `isentrope/step`. A row is closed
    from here only where the trainer's numbers are well beyond it.
    """

    name = "wandb"
    remedy = "Call wandb.init(...) before training."

    def __init__(self, run: Any = None) -> None:
        """
        Args:
            run: what `wandb.init` returned. None: the one that is active when it is looked for.
        """
        self._run = run
        self._axis_defined = False
        self._held: deque[dict[str, float]] = deque(maxlen=MOST_HELD)
        self._occupied_row: int | None = None
        """The W&B step in whose open row the last report lies."""
        self._last: dict[str, float] = {}
        """Its step's name and number."""

    def prepare(self, run_id: str) -> None:
        """The run is looked for when a step closes: trainers open theirs late."""

    def find(self) -> WandbRun | None:
        if self._run is None:
            self._run = getattr(sys.modules.get("wandb"), "run", None)
        return None if self._run is None else self

    def write(self, report: StepScalars) -> None:
        if not self._axis_defined:
            self._run.define_metric(STEP, hidden=True)
            self._run.define_metric(f"{PREFIX}*", step_metric=STEP)
            self._axis_defined = True
        row = report.prefixed() | {STEP: report.step}
        if self._run.settings.mode == "shared":
            # Several processes write to one run: it has no steps of its own, hence no order to keep.
            self._run.log(row)
            return
        self._held.append(row)
        self._write_held(report.step)

    def close(self) -> None:
        self._write_held(None)

    def _write_held(self, step: int | None) -> None:
        """Give each report that waits a row, as far as there are rows to be had.

        Args:
            step: of the newest report; None: there will be none, and rows are closed as needed.
        """
        while self._held:
            row = self._run.step
            if row == self._occupied_row:
                # The trainer may number from 0 what the probe numbers from 1, and may yet log this very step again.
                if step is not None and step - 1 <= row <= step + FAR:
                    return
                # With the row's number: had the trainer closed it just now, W&B ignores this rather than close the next.
                self._run.log(self._last, step=row, commit=True)
            report = self._held[0]
            self._run.log(report, commit=False)
            self._held.popleft()
            self._last = {STEP: report[STEP]}
            # Looked at afterwards: the trainer may have closed a row meanwhile, and the report lies in the next one.
            self._occupied_row = self._run.step


class TrackioRun:
    """One run of trackio, given or the current one. Its rows may come in any order, so each report has its own step."""

    name = "trackio"
    remedy = "Call trackio.init(...) before training, on the training thread."

    def __init__(self, run: Any = None) -> None:
        """
        Args:
            run: what `trackio.init` returned. None: the one that is current when it is looked for.
        """
        self._run = run

    def prepare(self, run_id: str) -> None:
        """The run is looked for when a step closes: trainers open theirs late."""

    def find(self) -> TrackioRun | None:
        if self._run is None and (context := sys.modules.get("trackio.context_vars")) is not None:
            # A context variable: the tracker's own thread would see none.
            self._run = context.current_run.get()
        return None if self._run is None else self

    def write(self, report: StepScalars) -> None:
        self._run.log(report.prefixed(), step=report.step)

    def close(self) -> None:
        """Nothing is held back here."""


MOST_METRICS = 1000
"""In one call, by MLflow's limits."""
LONGEST_NAME = 250
_FOREIGN = re.compile(r"[^\w\-. :/]")


class MlflowRun:
    """One run of MLflow, given or the one active on the training thread; written by its id from the tracker's thread."""

    name = "mlflow"
    remedy = "Call mlflow.start_run() before training, on the training thread."

    def __init__(self, run: Any = None) -> None:
        """
        Args:
            run: what `mlflow.start_run` returned. None: the one that is active when it is looked for.
        """
        self._run = run
        self._tracking_uri: str | None = None
        self._client: Any = None

    def prepare(self, run_id: str) -> None:
        """The run is looked for when a step closes: trainers open theirs late."""

    def find(self) -> MlflowRun | None:
        mlflow: Any = sys.modules.get("mlflow")
        if self._run is None:
            active_run = getattr(mlflow, "active_run", None)
            self._run = None if active_run is None else active_run()
        if self._run is None:
            return None
        self._tracking_uri = mlflow.get_tracking_uri()
        return self

    def write(self, report: StepScalars) -> None:
        mlflow: Any = sys.modules["mlflow"]
        if self._client is None:
            self._client = mlflow.MlflowClient(tracking_uri=self._tracking_uri)
        milliseconds = int(report.recorded_at * 1000)
        metrics = [
            mlflow.entities.Metric(allowed(name), value, milliseconds, report.step)
            for name, value in report.prefixed().items()
        ]
        for first in range(0, len(metrics), MOST_METRICS):
            self._client.log_batch(self._run.info.run_id, metrics=metrics[first : first + MOST_METRICS])

    def close(self) -> None:
        """Nothing is held back: each write waits until it is stored."""


def allowed(name: str) -> str:
    """The name as MLflow accepts it: other letters become `_`, and no part of the path is empty or dots."""
    parts = _FOREIGN.sub("_", name).split("/")
    return "/".join(part for part in parts if part not in ("", ".", ".."))[:LONGEST_NAME].rstrip("/")


FLUSH_SECONDS = 10
DEFAULT_FOLDER = "runs"


class TensorBoardWriter:
    """A SummaryWriter of torch or tensorboardX, given or made for a folder. The axis is the trainer's step."""

    name = "tensorboard"
    remedy = ""

    def __init__(self, writer: Any = None, folder: str = "") -> None:
        """
        Args:
            writer: anything with `add_scalar(name, value, step, walltime)` and `flush()`. None: one is made.
            folder: where events go, without a writer. Empty: RUN_ID in `TENSORBOARD_LOGGING_DIR`, or in "runs".
        """
        self._writer = writer
        self._is_ours = writer is None
        self._folder = folder

    def prepare(self, run_id: str) -> None:
        if self._writer is None:
            parent = os.environ.get("TENSORBOARD_LOGGING_DIR") or DEFAULT_FOLDER
            folder = Path(self._folder) if self._folder else Path(parent) / run_id
            try:
                torch_writer: Any = importlib.import_module("torch.utils.tensorboard")
                self._writer = torch_writer.SummaryWriter(str(folder), flush_secs=FLUSH_SECONDS)
            except (ImportError, OSError) as error:
                raise ConfigurationError(
                    f"trackers='tensorboard' can't write to {folder} ({error}). Name another folder, "
                    "trackers='tensorboard:FOLDER', or hand over your own SummaryWriter."
                ) from error

    def find(self) -> TensorBoardWriter | None:
        return self

    def write(self, report: StepScalars) -> None:
        for name, value in report.prefixed().items():
            self._writer.add_scalar(name, value, report.step, walltime=report.recorded_at)

    def close(self) -> None:
        self._writer.close() if self._is_ours else self._writer.flush()


class OwnFunction:
    """Calls `function(step, scalars)`; names have no prefix."""

    remedy = ""

    def __init__(self, function: Callable[[int, Mapping[str, float]], object]) -> None:
        self._function = function

    @property
    def name(self) -> str:
        """The function's own."""
        return getattr(self._function, "__qualname__", type(self._function).__qualname__)

    def prepare(self, run_id: str) -> None:
        """Nothing to prepare."""

    def find(self) -> OwnFunction | None:
        return self

    def write(self, report: StepScalars) -> None:
        # A copy, for the function may change it.
        self._function(report.step, dict(report.scalars))

    def close(self) -> None:
        """Nothing is held back here."""


BY_NAME: dict[str, Callable[[], Tracker]] = {
    "wandb": WandbRun,
    "trackio": TrackioRun,
    "mlflow": MlflowRun,
    "tensorboard": TensorBoardWriter,
}
"""By the name of the package, to import and to install, which `trackers=` takes as well."""
_EXPECTED = (
    f"trackers takes {', '.join(BY_NAME)} or tensorboard:FOLDER, a run of one of them, a SummaryWriter, a function "
    "of (step, scalars), or several of these in a list"
)


def requested_trackers(trackers: object) -> tuple[Tracker, ...]:
    """The trackers that get the scalars of each report.

    Args:
        trackers: names, split by commas; objects; or a sequence of both. None: what ISENTROPE_TRACKERS names, or nothing.

    Raises:
        ConfigurationError: a name that is unknown or not installed, or an object that nothing can be written to.
    """
    if trackers is None:
        trackers = os.environ.get("ISENTROPE_TRACKERS") or ()
    if isinstance(trackers, str):
        trackers = [name.strip() for name in trackers.split(",") if name.strip()]
    if not isinstance(trackers, Sequence):
        return (_of_object(trackers),)
    named = dict.fromkeys(item for item in trackers if isinstance(item, str))
    objects = [item for item in trackers if not isinstance(item, str)]
    return (*(_of_name(name) for name in named), *(_of_object(item) for item in objects))


def _of_name(name: str) -> Tracker:
    tool, _, folder = name.partition(":")
    if tool not in BY_NAME or (folder and tool != "tensorboard"):
        raise ConfigurationError(f"{_EXPECTED}; got {name!r}.")
    if importlib.util.find_spec(tool) is None:
        raise ConfigurationError(
            f"trackers={name!r} needs the package {tool}, which is not installed: pip install {tool}."
        )
    return TensorBoardWriter(folder=folder) if folder else BY_NAME[tool]()


def _of_object(item: object) -> Tracker:
    home = type(item).__module__.partition(".")[0]
    if hasattr(item, "add_scalar"):
        return TensorBoardWriter(item)
    if home == "wandb" and hasattr(item, "define_metric"):
        return WandbRun(item)
    if home == "trackio" and hasattr(item, "log"):
        return TrackioRun(item)
    if home == "mlflow" and hasattr(item, "info"):
        return MlflowRun(item)
    if callable(item):
        return OwnFunction(item)
    raise ConfigurationError(f"{_EXPECTED}; got {item!r}.")
