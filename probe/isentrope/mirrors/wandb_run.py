"""Weights & Biases. The trainer's own rows stay as they are, whichever way it counts its steps.

W&B keeps one row per step of its own, and ignores what comes for a step that it has closed. To close rows from here could
therefore cost the trainer its own metrics, where it says `wandb.log(..., step=N)`. So a report rides in the row that the
trainer has open (`commit=False`), one report per row, and is plotted against `isentrope/step`. A row is closed from here
only where the trainer's numbers are well beyond it.
"""

from __future__ import annotations

import sys
from collections import deque
from typing import Any

from isentrope.mirrors.destination import PREFIX, StepScalars

STEP = f"{PREFIX}step"
MOST_HELD = 2048
"""Reports that wait for a row of their own, a few MB; the oldest goes where more wait."""
FAR = 4096
"""A W&B step this far beyond the report's is no number of the trainer's steps (it may count tokens), nor is the report
late: no more than this may wait. There the trainer's next number is not near, and rows are closed from here."""


class WandbRun:
    """One run of wandb, given or the active one."""

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
