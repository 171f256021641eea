"""Scalars of any `transformers.Trainer`, reported step by step.

    trainer = Trainer(..., callbacks=[IsentropeCallback(name="countdown", project="demo")])

or, after `isentrope.integrations.transformers.register()`, by
`TrainingArguments(report_to="isentrope")`. Importing this module registers nothing. For scores, and
for a control that acts, attach to a TRL trainer (`trl.py`) or use the probe.

The probe's state is a file in the trainer's checkpoints. It is read from
`args.resume_from_checkpoint` where that is set, else from `output_dir/checkpoint-STEP`. A
checkpoint without the file, or with one that can't be read, is resumed all the same: the
calibration then starts from the beginning."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.integrations import integration_utils

from isentrope.integrations.attachment import resume_probe, save_probe
from isentrope.probe import Probe
from isentrope.run_config import jsonable
from isentrope.trackers import requested_trackers
from isentrope.transport.transport import Transport
from isentrope_wire.errors import IsentropeError


class StepReports(TrainerCallback):
    """Closes one report per optimiser step, when the trainer has logged all that belongs to the
    step.

    The trainer logs, evaluates and saves after `on_step_end`. So a step's report is closed when the
    next step begins or training ends; no later forward has changed the parameters by then.
    """

    probe: Probe | None
    """None before training begins."""

    def __init__(self) -> None:
        self._done: int | None = None
        self._checkpoint_to_complete: Path | None = None

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """The update has been made and counted: `global_step` is its number."""
        self._done = state.global_step

    def on_step_begin(self, *_: Any, optimizer: Any = None, **__: Any) -> None:
        """The step before is complete: nothing more is logged about it. It is measured over the
        weights that a schedule-free optimiser updates, as the trainer puts them back in a moment.
        """
        if hasattr(optimizer, "train"):
            optimizer.train()
        self.close_open_step()

    def on_log(self, *_: Any, logs: Mapping[str, Any] | None = None, **__: Any) -> None:
        """Add what the trainer logs to the open step, under the trainer's own names."""
        self.log(scalars_of(logs or {}))

    def on_train_end(self, *_: Any, **__: Any) -> None:
        self.close_open_step()
        self.finish()

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Write the probe's state into the checkpoint, with the report of this step closed.

        The last step stays open: the trainer logs how the training went after it has saved.
        """
        self._checkpoint_to_complete = checkpoint_folder(args, state)
        if not control.should_training_stop:
            self.close_open_step()

    def close_open_step(self) -> None:
        """Close the report of the last update, once, and complete a checkpoint of it."""
        done, self._done = self._done, None
        if done is not None:
            self.close_step(done)
        self.complete_checkpoint()

    def complete_checkpoint(self) -> None:
        """Write the probe's state into the checkpoint that waits for it, if one does."""
        folder, self._checkpoint_to_complete = self._checkpoint_to_complete, None
        if folder is not None and self.probe is not None:
            save_probe(self.probe, folder)

    def log(self, scalars: Mapping[str, float | Tensor]) -> None:
        if self.probe is not None:
            self.probe.log(scalars)

    def close_step(self, step: int) -> None:
        if self.probe is not None:
            self.probe.step(step)

    def finish(self, status: str = "finished", error: str = "") -> None:
        if self.probe is not None:
            self.probe.finish(status, error)

    def fail(self, error: str, *, alone: bool) -> None:
        """End a run that training did not end; nothing to do where it did.

        What failed may have been an evaluation or a save after an update. A single rank still sends
        that step's report; of several, the others may be in another step, and would not take part.
        """
        if alone:
            with contextlib.suppress(IsentropeError):
                self.close_open_step()
        self._done = None
        self.finish("failed", error)


def resume_training(
    probe: Probe, args: TrainingArguments, state: TrainerState, given: Path | None = None
) -> None:
    """Continue the probe from the checkpoint that training continues from, on every rank: `given`
    is what `train(resume_from_checkpoint=...)` was given; None: not known."""
    if state.global_step:
        named, likely = args.resume_from_checkpoint, checkpoint_folder(args, state)
        folders = [likely]
        if named:
            folders = [Path(named), likely]
        resume_probe(probe, [given] if given else folders)


def checkpoint_folder(args: TrainingArguments, state: TrainerState) -> Path:
    """Folder of the checkpoint that the trainer writes at this step."""
    return Path(args.output_dir or ".") / f"checkpoint-{state.global_step}"


def scalars_of(logs: Mapping[str, Any]) -> dict[str, float | Tensor]:
    """The numbers among what a trainer logs, numpy's too; a missing value (None) stays missing."""
    return {name: value for name, value in logs.items() if _is_number(value)}


def _is_number(value: object) -> bool:
    if isinstance(value, Tensor):
        return value.numel() == 1
    if isinstance(value, np.generic | np.ndarray):
        return value.size == 1 and value.dtype.kind in "biuf"
    return isinstance(value, int | float)


class IsentropeCallback(StepReports):
    """Reports what a trainer logs. Scalars only: it sees no log-probs, so it measures no entropy
    and gates nothing.

    A training that fails ends its run as failed when the process ends, or when the trainer trains
    again."""

    def __init__(
        self,
        name: str | None = None,
        project: str | None = None,
        config: Mapping[str, object] | None = None,
        *,
        mode: str | None = None,
        trackers: object = None,
        transport: Transport | None = None,
    ) -> None:
        """Arguments are those of `Probe`; `name` is by default the training arguments' `run_name`.

        Raises:
            ConfigurationError: `trackers` names nothing that can be written to.
        """
        super().__init__()
        requested_trackers(
            trackers
        )  # checked here, where it is given; the probe is built when training begins
        self.probe = None
        self._name, self._project = name, project
        self._config = jsonable(config or {}, hides_secrets=False)
        self._mode, self._trackers, self._transport = mode, trackers, transport

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Begin a run; a second `train()` is a second run."""
        self.fail("Training was started again.", alone=args.world_size == 1)
        self.probe = Probe(
            self._name or args.run_name,
            self._project,
            {**args.to_sanitized_dict(), **self._config},
            planned_steps=state.max_steps if state.max_steps > 0 else None,
            mode=self._mode,
            trackers=self._trackers,
            transport=self._transport,
        )
        self.probe.reports_scalars_only = True
        resume_training(self.probe, args, state)


def register() -> None:
    """Make `TrainingArguments(report_to="isentrope")` add an `IsentropeCallback`. Safe to
    repeat."""
    integration_utils.INTEGRATION_TO_CALLBACK["isentrope"] = IsentropeCallback
