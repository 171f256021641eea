"""What the integrations share: one report per optimiser step, and the probe's state in a transformers checkpoint.

The state is a file beside the trainer's. It is read from the folder given to `train(resume_from_checkpoint=PATH)`, and
from no other. Where that folder is not known, it is read from `args.resume_from_checkpoint`, else from
`output_dir/checkpoint-STEP`. A checkpoint without the file, or with one that can't be read, is resumed all the same: the
calibration then starts from the beginning.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from torch import Tensor
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from isentrope.integrations.attachment import resume_probe, save_probe
from isentrope.probe import Probe


def folder_of(args: TrainingArguments, state: TrainerState) -> Path:
    """Of the checkpoint that the trainer writes at this step."""
    return Path(args.output_dir or ".") / f"checkpoint-{state.global_step}"


def path_given(arguments: Sequence[object], named: Mapping[str, object]) -> Path | None:
    """The folder to resume from among the arguments of a trainer's `train`; None where it is none, or True."""
    given = arguments[0] if arguments else named.get("resume_from_checkpoint")
    return Path(given) if isinstance(given, str | PathLike) else None


def resume_training(probe: Probe, args: TrainingArguments, state: TrainerState, given: Path | None) -> None:
    """Continue the probe from the checkpoint that training continues from. Every rank must call this.

    Args:
        given: see `path_given`.
    """
    if state.global_step:
        resume_probe(probe, [given] if given else _likely(args, state))


def _likely(args: TrainingArguments, state: TrainerState) -> list[Path]:
    return [*([Path(args.resume_from_checkpoint)] if args.resume_from_checkpoint else []), folder_of(args, state)]


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
