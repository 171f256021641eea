"""Scalars of any `transformers.Trainer`, reported step by step.

    trainer = Trainer(..., callbacks=[IsentropeCallback(name="countdown", project="demo")])

or, after `isentrope.integrations.transformers.register()`, by `TrainingArguments(report_to="isentrope")`. Importing this
module registers nothing. For scores, and for a control that acts, attach to a TRL trainer (`trl.py`) or use the probe.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Mapping
from typing import Any

from torch import Tensor
from transformers import Trainer, TrainerControl, TrainerState, TrainingArguments
from transformers.integrations import integration_utils

from isentrope.errors import IsentropeError
from isentrope.integrations.reporting import StepReports, path_given, resume_training
from isentrope.lifecycle import error_text
from isentrope.probe import Probe
from isentrope.trackers.known import requested_trackers
from isentrope.transport.transport import Transport


class IsentropeCallback(StepReports):
    """Reports what a trainer logs. Scalars only: it sees no log-probs, so it measures no entropy and gates nothing.

    A training that fails ends its run as failed, with the reason: at once where the trainer was built with this
    callback; when the process ends where it was added later (`add_callback`), since it then never sees the trainer.
    """

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
        """
        Args:
            name: the run's name. Default: the training arguments' `run_name`, then `ISENTROPE_NAME`, or "run".
            project: what it belongs to. Default: `ISENTROPE_PROJECT`, or "default".
            config: shown with the run, beside the training arguments.
            mode: online, offline or disabled. Default: `ISENTROPE_MODE`, or online.
            trackers: a tracker that gets the scalars too, see `Probe`. Default: `ISENTROPE_TRACKERS`, or none.
            transport: where reports go instead of the spool (tests).

        Raises:
            ConfigurationError: `trackers` names nothing that can be written to.
        """
        super().__init__()
        requested_trackers(trackers)  # checked here, where it is given; the probe is built when training begins
        self.probe = None
        self._name, self._project, self._config = name, project, dict(config or {})
        self._mode, self._trackers, self._transport = mode, trackers, transport

    def on_init_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """The trainer has been built: watch its `train` for failures."""
        if (trainer := _trainer_that_calls()) is not None:
            self._watch(trainer)

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Begin a run; a second `train()` is a second run."""
        self._fail("Training was started again.", alone=args.world_size == 1)
        self.probe = Probe(
            self._name or args.run_name,
            self._project,
            {**args.to_sanitized_dict(), **self._config},
            planned_steps=state.max_steps if state.max_steps > 0 else None,
            mode=self._mode,
            trackers=self._trackers,
            transport=self._transport,
        )
        resume_training(self.probe, args, state, self._resumed_from)

    def log(self, scalars: Mapping[str, float | Tensor]) -> None:
        if self.probe is not None:
            self.probe.log(scalars)

    def close_step(self, step: int) -> None:
        if self.probe is not None:
            self.probe.step(step)

    def finish(self, status: str = "finished", error: str = "") -> None:
        if self.probe is not None:
            self.probe.finish(status, error)

    def _watch(self, trainer: Any) -> None:
        theirs = trainer.train

        @functools.wraps(theirs)
        def train(*args: Any, **kwargs: Any) -> Any:
            self._resumed_from = path_given(args, kwargs)
            try:
                return theirs(*args, **kwargs)
            except BaseException as error:
                self._fail(error_text(error), alone=trainer.args.world_size == 1)
                raise

        trainer.train = train

    def _fail(self, error: str, *, alone: bool) -> None:
        """End a run that training did not; nothing to do where it did.

        What failed may have been an evaluation or a save after an update. A single rank still sends that step's report;
        of several, the others may be in another step, and would not take part.
        """
        if alone:
            with contextlib.suppress(IsentropeError):
                self.close_open_step()
        self._done = None
        self.finish("failed", error)


def _trainer_that_calls() -> Trainer | None:
    """The nearest caller's `self` that is a trainer: callbacks are given everything but the trainer."""
    frame = inspect.currentframe()
    while frame is not None:
        caller = frame.f_locals.get("self")
        if isinstance(caller, Trainer):
            return caller
        frame = frame.f_back
    return None


def register() -> None:
    """Make `TrainingArguments(report_to="isentrope")` add an `IsentropeCallback`. Safe to repeat."""
    integration_utils.INTEGRATION_TO_CALLBACK["isentrope"] = IsentropeCallback
