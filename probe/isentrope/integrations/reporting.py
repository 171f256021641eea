"""The probe's state in a transformers checkpoint: a file of its own, beside the trainer's.

It is looked for in the folder that `train(resume_from_checkpoint=PATH)` was given, and nowhere else. Where that is not
known, or was no path, it is looked for where the training arguments say to resume from, else where the trainer of this
run keeps its checkpoints (`output_dir/checkpoint-STEP`). A checkpoint without it, or with one that can't be read, is resumed all the same:
the calibration then starts afresh.
"""

from __future__ import annotations

import json
import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from torch import Tensor
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from isentrope.errors import CheckpointError
from isentrope.probe import Probe
from isentrope.transport.files import write_atomically

logger = logging.getLogger(__name__)

STATE_FILE = "isentrope_probe.json"


def folder_of(args: TrainingArguments, state: TrainerState) -> Path:
    """Of the checkpoint that the trainer writes at this step."""
    return Path(args.output_dir or ".") / f"checkpoint-{state.global_step}"


def save_probe(probe: Probe, folder: Path) -> None:
    """Write the state beside the trainer's, on rank 0, whose state counts for all. A disk that refuses is told of."""
    if probe.config.rank or not folder.is_dir():
        return
    try:
        write_atomically(folder / STATE_FILE, json.dumps(probe.state_dict()).encode())
    except OSError as error:
        logger.warning("The probe's state is not in %s: %s.", folder, error)


def path_given(arguments: Sequence[object], named: Mapping[str, object]) -> Path | None:
    """The folder among the arguments of a trainer's `train`, of which it is the first; None: none, or True for the last."""
    given = arguments[0] if arguments else named.get("resume_from_checkpoint")
    return Path(given) if isinstance(given, str | PathLike) else None


def resume_probe(probe: Probe, args: TrainingArguments, state: TrainerState, given: Path | None) -> None:
    """Where training goes on from a checkpoint, so does the probe. Every rank comes here.

    Args:
        given: see `path_given`.
    """
    if not state.global_step:
        return
    try:
        probe.load_state_dict(_read([given] if given else _likely(args, state)))
    except CheckpointError as error:
        logger.warning("The probe starts afresh: %s", error)


def _likely(args: TrainingArguments, state: TrainerState) -> list[Path]:
    return [*([Path(args.resume_from_checkpoint)] if args.resume_from_checkpoint else []), folder_of(args, state)]


def _read(folders: Sequence[Path]) -> dict[str, Any] | None:
    for path in (folder / STATE_FILE for folder in folders):
        try:
            found: dict[str, Any] = json.loads(path.read_bytes())
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            logger.warning("%s can't be read: %s.", path, error)
            return None
        return found
    return None


class StepReports(TrainerCallback, ABC):
    """Closes one report per optimiser step, when all that the trainer says about the step has been said.

    The trainer logs, evaluates and saves after `on_step_end`. So a step's report is closed when the next step begins or
    training ends; no later forward has changed the parameters by then.
    """

    def __init__(self) -> None:
        self._done: int | None = None
        self._checkpoint_to_complete: Path | None = None
        self._resumed_from: Path | None = None
        """What `train` was given."""

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """The update has been made and counted: `global_step` is its number."""
        self._done = state.global_step

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Nothing more will be said about the step before."""
        self.close_open_step()

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """What the trainer logs rides along under its own names."""
        self.log(scalars_of(logs or {}))

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """The last step's report, and goodbye."""
        self.close_open_step()
        self._save_probe(self._checkpoint_to_complete)
        self.finish()

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """What the probe remembers goes into the checkpoint, this step with it: nothing more is said about the step, but
        of the last one, about which the trainer says how the training went."""
        self._checkpoint_to_complete = folder_of(args, state)
        if not control.should_training_stop:
            self.close_open_step()
            self._save_probe(self._checkpoint_to_complete)
            self._checkpoint_to_complete = None

    def _save_probe(self, folder: Path | None) -> None:
        if folder is not None and self.probe is not None:
            save_probe(self.probe, folder)

    def close_open_step(self) -> None:
        """Close the report of the last update, once."""
        done, self._done = self._done, None
        if done is not None:
            self.close_step(done)

    probe: Probe | None
    """None before training has begun."""

    @abstractmethod
    def log(self, scalars: Mapping[str, float | Tensor]) -> None:
        """Add scalars to the step that is open."""

    @abstractmethod
    def close_step(self, step: int) -> None:
        """Close the step with this number."""

    @abstractmethod
    def finish(self) -> None:
        """Training is over."""


def _named(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def scalars_of(logs: Mapping[str, Any]) -> dict[str, float | Tensor]:
    """The numbers among what a trainer logs; a missing value (None) stays missing."""
    return {
        name: value
        for name, value in logs.items()
        if isinstance(value, int | float) or (isinstance(value, Tensor) and value.numel() == 1)
    }
