"""What the integrations share: one report per optimiser step, and the probe's state in a transformers checkpoint.

The state is a file beside the trainer's. It is read from the folder given to `train(resume_from_checkpoint=PATH)`, and
from no other. Where that folder is not known, it is read from `args.resume_from_checkpoint`, else from
`output_dir/checkpoint-STEP`. A checkpoint without the file, or with one that can't be read, is resumed all the same: the
calibration then starts from the beginning.
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
    """Write the state beside the trainer's, on rank 0, whose state counts for all. A failing disk is a warning."""
    if probe.config.rank or not folder.is_dir():
        return
    try:
        write_atomically(folder / STATE_FILE, json.dumps(probe.state_dict()).encode())
    except OSError as error:
        logger.warning("The probe's state was not written to %s: %s.", folder, error)


def path_given(arguments: Sequence[object], named: Mapping[str, object]) -> Path | None:
    """The folder to resume from among the arguments of a trainer's `train`; None where it is none, or True."""
    given = arguments[0] if arguments else named.get("resume_from_checkpoint")
    return Path(given) if isinstance(given, str | PathLike) else None


def resume_probe(probe: Probe, args: TrainingArguments, state: TrainerState, given: Path | None) -> None:
    """Continue the probe from the checkpoint that training continues from. Every rank must call this.

    Args:
        given: see `path_given`.
    """
    if not state.global_step:
        return
    try:
        probe.load_state_dict(_read([given] if given else _likely(args, state)))
    except CheckpointError as error:
        logger.warning("The probe starts without the checkpoint's state: %s", error)


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
    """Closes one report per optimiser step, when the trainer has logged all that belongs to the step.

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
        """The step before is complete: nothing more is logged about it."""
        self.close_open_step()

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Add what the trainer logs to the open step, under the trainer's own names."""
        self.log(scalars_of(logs or {}))

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Close the last step's report and end the run."""
        self.close_open_step()
        self._save_probe(self._checkpoint_to_complete)
        self.finish()

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Write the probe's state into the checkpoint, with the report of this step closed.

        The last step stays open: the trainer logs how the training went after it has saved.
        """
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
    """None before training begins."""

    @abstractmethod
    def log(self, scalars: Mapping[str, float | Tensor]) -> None:
        """Add scalars to the step that is open."""

    @abstractmethod
    def close_step(self, step: int) -> None:
        """Close the step with this number."""

    @abstractmethod
    def finish(self) -> None:
        """End the run."""


def scalars_of(logs: Mapping[str, Any]) -> dict[str, float | Tensor]:
    """The numbers among what a trainer logs; a missing value (None) stays missing."""
    return {
        name: value
        for name, value in logs.items()
        if isinstance(value, int | float) or (isinstance(value, Tensor) and value.numel() == 1)
    }
