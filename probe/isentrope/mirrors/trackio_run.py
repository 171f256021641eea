"""Trackio. Its rows may come in any order, so each report stands at the trainer's own step."""

from __future__ import annotations

import sys
from typing import Any

from isentrope.mirrors.destination import StepScalars


class TrackioRun:
    """One run of trackio, given or the current one."""

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
            # A context variable: the mirror's own thread would see none.
            self._run = context.current_run.get()
        return None if self._run is None else self

    def write(self, report: StepScalars) -> None:
        self._run.log(report.prefixed(), step=report.step)

    def close(self) -> None:
        """Trackio sends what it was given by itself."""
