"""The reference run from end to end: warm start, probe, reinforcement, checkpoints, progress bar.

Ctrl-C ends it after the batch that is being trained on, with a checkpoint where there is a folder
for it; a second one ends it at once.

`Course` is the last line that a training command prints, also after Ctrl-C: how far the run came,
and how to show it again."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import torch
from tqdm import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

import isentrope
from isentrope_trainer.experience import GRADIENT_EVERY
from isentrope_trainer.loop import StepResult, train
from isentrope_trainer.models.local import local_policy
from isentrope_trainer.models.warm_start import WARM_STARTS, WarmStartConfig, warm_started_policy
from isentrope_trainer.settings import PolicyConfig, TrainingConfig
from isentrope_trainer.tasks.base import Task, make_task
from isentrope_trainer.training_state import Checkpoints, TrainingState, join_ranks
from isentrope_wire import environment
from isentrope_wire.metrics import (
    ENTROPY_MEAN,
    ENTROPY_PREDICTED_CHANGE,
    measured_change,
    newest_level,
)

if TYPE_CHECKING:
    from isentrope.transport import Transport
    from isentrope_trainer.models.policy import Policy


CHECKPOINT_EVERY = 25
"""Steps."""
THREADS = 2
"""Sums are split over threads, so their number is part of what makes a run repeatable."""


def train_reference_policy(
    config: TrainingConfig,
    control: isentrope.Control,
    *,
    name: str = "countdown",
    project: str = "demo",
    policy_config: PolicyConfig = PolicyConfig(),  # noqa: B008  (frozen)
    warm_start: WarmStartConfig | None = None,
    transport: Transport | None = None,
    threads: int = THREADS,
    checkpoints: Checkpoints | None = None,
    resume: bool = False,
    quiet: bool = False,
    announce: Callable[[str], None] = lambda run_id: None,
    follow: Callable[[isentrope.Probe, StepResult], None] = lambda probe, result: None,
    saved: Callable[[int, Path], None] = lambda step, path: None,
    prepare: Callable[[Policy, Task, isentrope.Probe, int], Task] | None = None,
) -> None:
    """Train the reference policy under a probe, starting with this control; without `warm_start`
    the policy has learned what is usual for the task. Another number of `threads` gives another
    run: sums end in other last digits.

    The run is saved in `checkpoints` every `CHECKPOINT_EVERY` steps and at its end; `resume`
    continues the one saved there, and `saved` is called with the step and the folder of each.
    Reports go to `transport` instead of the spool; `announce` is called with the run's id when it
    begins. `prepare` gives the task that is learnt in place of the configured one, of policy, task,
    probe and the completions of a batch: for experiments.

    ConfigurationError: the home can't be written to, or there is nothing to resume from;
    KeyboardInterrupt: the run was interrupted, and is ended and saved.
    """
    torch.set_num_threads(threads)
    ranks = join_ranks()
    # Before the run begins: training it takes a minute, and a run that reports nothing for so long
    # is shown as silent.
    task = make_task(config.seed, config.task, hold_out=config.evaluation is not None)
    if warm_start is None:
        warm_start = WARM_STARTS[config.task.name]
    if config.model is None:
        policy = warm_started_policy(task, policy_config, warm_start)
        own_model = {"policy": asdict(policy_config), "warm_start": asdict(warm_start)}
    else:
        policy, own_model = local_policy(config.model), {}
    state = TrainingState(policy, config, ranks)
    probe = isentrope.Probe(
        name=name,
        project=project,
        config=asdict(config) | own_model,
        control=control,
        run_id=checkpoints.run()["run_id"] if resume and checkpoints is not None else None,
        planned_steps=config.steps,
        # A step is one gate call over all its tokens: no first pass could know more about them.
        threshold_source="micro_batch",
        coupling=config.coupling,
        coupling_samples=config.coupling_samples,
        coupling_every=GRADIENT_EVERY,
        influence_every=10 if config.coupling == "model" else 0,
        tokenizer=policy.tokenizer,
        transport=transport,
    )
    if prepare is not None:
        task = prepare(policy, task, probe, config.prompts * config.group_size)
    with probe, noted_interrupts() as interrupted:
        if checkpoints is not None:
            if resume:
                checkpoints.restore(state, probe, config)
            elif ranks.rank == 0:
                started_with = {"name": name, "project": project, "policy": asdict(policy_config)}
                checkpoints.describe(probe.run_id, config, started_with)
        last_saved = state.step
        if ranks.rank == 0:
            announce(probe.run_id)

        def save() -> None:
            nonlocal last_saved
            if checkpoints is not None and state.step > last_saved:
                saved(state.step, checkpoints.save(state, probe))
                last_saved = state.step

        def go_on(state: TrainingState) -> bool:
            if state.step - last_saved >= CHECKPOINT_EVERY:
                save()
            return not ranks.any(interrupted.is_set())

        # The mean over the run so far gives the time that remains: steps that sample or evaluate
        # take longer than others.
        with (
            logging_redirect_tqdm(),
            tqdm(
                total=config.steps,
                initial=state.step,
                desc="train",
                unit="step",
                smoothing=0,
                dynamic_ncols=True,
                disable=quiet or ranks.rank > 0,
            ) as progress,
        ):

            def show(result: StepResult) -> None:
                progress.set_postfix_str(progress_text(probe, result), refresh=False)
                progress.update()
                follow(probe, result)

            train(policy, task, probe, config, on_step=show, state=state, go_on=go_on)
        save()
    if interrupted.is_set():
        raise KeyboardInterrupt


@contextmanager
def noted_interrupts() -> Iterator[threading.Event]:
    """Whether Ctrl-C or SIGTERM came; the second of them interrupts as usual. Only the main thread
    gets signals; what is ignored, as in a shell's background, stays so."""
    interrupted = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield interrupted
        return

    def note(number: int, frame: FrameType | None) -> None:
        interrupted.set()
        tqdm.write("Stopping after this batch; again to stop at once.", file=sys.stderr)
        restore()

    previous = {
        number: signal.signal(number, note)
        for number in (signal.SIGINT, signal.SIGTERM)
        if signal.getsignal(number) is not signal.SIG_IGN
    }

    def restore() -> None:
        for number, handler in previous.items():
            signal.signal(number, handler)

    try:
        yield interrupted
    finally:
        restore()


def progress_text(probe: isentrope.Probe, result: StepResult) -> str:
    text = f"reward {result.reward_mean:.3f}"
    scalars = probe.latest.scalars
    shown = {
        "predicted": scalars.get(ENTROPY_PREDICTED_CHANGE),
        "observed": measured_change(scalars),
    }
    if ENTROPY_MEAN in scalars:
        text += f", entropy {scalars[ENTROPY_MEAN]:.3f}"
    return text + "".join(
        f", {label} {value:+.4f}" for label, value in shown.items() if value is not None
    )


@dataclass(slots=True)
class Course:
    """Where a run began and where it is. Follows it step by step."""

    probe: isentrope.Probe | None = None
    steps: int = 0
    reward: float = 0.0

    def follow(self, probe: isentrope.Probe, result: StepResult) -> None:
        self.probe, self.steps, self.reward = probe, self.steps + 1, result.reward_mean

    def __str__(self) -> str:
        """One line, once the probe has ended the run, with the page's levels: medians of the first
        three and of the last five steps. Empty where no step was made."""
        if self.probe is None:
            return ""
        view = self.probe.show()
        early, now = view.diagnosis.early_level, view.diagnosis.entropy
        reward = newest_level([*view.rewards.values()])
        # Reports are built off the training thread: the last may not have come to be.
        entropy = ""
        if now is not None and early is None:
            entropy = f"entropy {now:.3f} nats, "
        elif now is not None:
            entropy = f"entropy {early:.3f} -> {now:.3f} nats, "
        if reward is None:
            reward = self.reward
        run_id = self.probe.run_id
        return (
            f"{self.steps} {'step' if self.steps == 1 else 'steps'}, {entropy}reward"
            f" {reward:.3f}; run {run_id}, with a server (`isentrope up`) at"
            f" {environment.url()}/runs/{run_id}"
        )
