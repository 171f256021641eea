"""TensorBoard: into the training's own SummaryWriter, or a folder beside it."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any

from isentrope.errors import ConfigurationError
from isentrope.mirrors.destination import StepScalars

FLUSH_SECONDS = 10
DEFAULT_FOLDER = "runs"


class TensorBoardWriter:
    """A SummaryWriter of torch or tensorboardX, given or made for a folder. The axis is the trainer's own step."""

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
                    f"mirror='tensorboard' can't write to {folder} ({error}). Name another folder, "
                    "mirror='tensorboard:FOLDER', or hand over your own SummaryWriter."
                ) from error

    def find(self) -> TensorBoardWriter | None:
        return self

    def write(self, report: StepScalars) -> None:
        for name, value in report.prefixed().items():
            self._writer.add_scalar(name, value, report.step, walltime=report.recorded_at)

    def close(self) -> None:
        self._writer.close() if self._is_ours else self._writer.flush()
