"""MLflow. The run is found on the training thread, where it is active, and written by its id from the mirror's own."""

from __future__ import annotations

import re
import sys
from typing import Any

from isentrope.mirrors.destination import StepScalars

MOST_METRICS = 1000
"""In one call, by MLflow's limits."""
LONGEST_NAME = 250
_FOREIGN = re.compile(r"[^\w\-. :/]")


class MlflowRun:
    """One run of MLflow, given or the one active on the training thread."""

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
        """MLflow has all: each write waits until it is stored."""


def allowed(name: str) -> str:
    """The name as MLflow takes it: what it knows no letter for becomes `_`, and no part of the path is empty or dots."""
    parts = _FOREIGN.sub("_", name).split("/")
    return "/".join(part for part in parts if part not in ("", ".", ".."))[:LONGEST_NAME].rstrip("/")
