"""Checkpoints of a training: weights, optimisers, generators, place in the run, and the probe's state, control included.

    FOLDER/run.json                     the run's id, settings and what it was started with
    FOLDER/step-000050/rank-0.pt        one file for each process that trains

A run that continues from one makes the steps that it would have made without the interruption, bit for bit on the same
machine. Files are renamed into place when they are complete, and the newest two folders are kept.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import isentrope
from isentrope_trainer.settings import TrainingConfig
from isentrope_trainer.training_state import TrainingState
from isentrope_wire.errors import ConfigurationError

_KEPT = 2


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """The checkpoints of one run in one folder."""

    folder: Path

    def describe(self, run_id: str, config: TrainingConfig, started_with: dict[str, Any]) -> None:
        """Write `run.json`.

        Args:
            started_with: what else the run needs to be continued, as JSON takes it.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        document = {"run_id": run_id, "config": dataclasses.asdict(config), "started_with": started_with}
        _write_whole(self.folder / "run.json", lambda path: path.write_text(json.dumps(document, indent=1)))

    def run(self) -> dict[str, Any]:
        """What `describe` wrote.

        Raises:
            ConfigurationError: there is no run in the folder.
        """
        try:
            document: dict[str, Any] = json.loads((self.folder / "run.json").read_text())
        except (OSError, json.JSONDecodeError) as error:
            raise ConfigurationError(f"There is no checkpoint to resume from in {self.folder} ({error}).") from error
        return document

    def save(self, state: TrainingState, probe: isentrope.Probe) -> Path:
        """Save this rank's part. Call it on every rank, between two batches."""
        folder = self.folder / f"step-{state.step:06}"
        folder.mkdir(parents=True, exist_ok=True)
        content = {"state": state.state_dict(), "probe": probe.state_dict()}
        _write_whole(folder / _file_of(state), lambda path: torch.save(content, path))
        if state.ranks.rank == 0:
            for old in self._steps()[:-_KEPT]:
                shutil.rmtree(old, ignore_errors=True)
        return folder

    def restore(self, state: TrainingState, probe: isentrope.Probe, config: TrainingConfig) -> None:
        """Continue from the newest checkpoint that all ranks have saved, in place.

        Args:
            state: made of the same settings; its policy has the weights that the run began with.
            probe: of the same run, before its first step.

        Raises:
            ConfigurationError: there is none, or it is one of other settings. The number of steps may be another.
        """
        _check_same_settings(self.run()["config"], config)
        complete = [
            step
            for step in self._steps()
            if {path.name for path in step.glob("rank-*.pt")} == {f"rank-{rank}.pt" for rank in range(state.ranks.size)}
        ]
        if not complete:
            raise ConfigurationError(f"{self.folder} holds no complete checkpoint of {state.ranks.size} process(es).")
        content = torch.load(complete[-1] / _file_of(state), map_location="cpu", weights_only=True)
        state.load_state_dict(content["state"])
        probe.load_state_dict(content["probe"])

    def _steps(self) -> list[Path]:
        return sorted(self.folder.glob("step-*"))


def _file_of(state: TrainingState) -> str:
    return f"rank-{state.ranks.rank}.pt"


def _check_same_settings(saved: dict[str, Any], config: TrainingConfig) -> None:
    given = json.loads(json.dumps(dataclasses.asdict(config)))
    for name in given.keys() - {"steps"}:
        if saved.get(name) != given[name]:
            raise ConfigurationError(
                f"{name} was {saved.get(name)!r} when the checkpoint was made, and must stay so; got {given[name]!r}."
            )


def _write_whole(path: Path, write: Any) -> None:
    partial = path.with_suffix(".partial")
    write(partial)
    os.replace(partial, path)
