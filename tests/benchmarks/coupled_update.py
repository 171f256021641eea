"""An update of the reference trainer (96 x 16 rollouts, re-scored) whose prediction is coupled,
against one without.

Runs of the same seed take turns with an update each: loss, backward pass, optimiser, re-scoring,
the step's report on the training thread, and drawing unseen completions; sampling the batch is not
counted. Means are over a multiple of the updates from one gradient to the next, medians of pairs of
updates beside them."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, replace
from typing import Any

import torch

import isentrope
from isentrope.transport.transport import InMemoryTransport
from isentrope_trainer.experience import GRADIENT_EVERY, MADE_FROM, Panel, collect
from isentrope_trainer.loop import update
from isentrope_trainer.models.warm_start import WARM_STARTS, warm_started_policy
from isentrope_trainer.settings import PolicyConfig, TrainingConfig
from isentrope_trainer.tasks.base import Task, make_task
from isentrope_trainer.training_state import Ranks, TrainingState

CONFIG = TrainingConfig(unseen=0, coupling=None)
COUPLED: dict[str, Any] = {"unseen": TrainingConfig().unseen, "coupling": "model"}
CANDIDATES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "not coupled": ({}, {}),
    "unseen tokens": ({"unseen": TrainingConfig().unseen}, {}),
    "these, coupled by the model": (COUPLED, {}),
    "these, at every step": (COUPLED, {"coupling_every": 1}),
    "these, influences at every step": (COUPLED, {"influence_every": 1}),
    "these, coupled by the last block": (COUPLED | {"coupling": "last_block"}, {}),
    "512 completions, coupled by the model": (COUPLED | {"coupling_samples": 512}, {}),
    "the step's own tokens, by the model": ({"coupling": "model"}, {"coupling_every": 1}),
    "the step's own tokens, every fifth step": ({"coupling": "model"}, {"coupling_every": 5}),
    "the step's own tokens, by the last block": (
        {"coupling": "last_block"},
        {"coupling_every": 1},
    ),
}


@dataclass(slots=True)
class Candidate:
    """One run, made step by step."""

    config: TrainingConfig
    task: Task
    state: TrainingState
    probe: isentrope.Probe
    panel: Panel

    @classmethod
    def of(cls, changes: dict[str, Any], settings: dict[str, Any]) -> Candidate:
        config = replace(CONFIG, **changes)
        task = make_task(config.seed, config.task)
        policy = warm_started_policy(task, PolicyConfig(), WARM_STARTS[config.task.name])
        policy.model.train()
        probe = isentrope.Probe(
            threshold_source="micro_batch",
            coupling=config.coupling,
            transport=InMemoryTransport(),
            **({"coupling_every": GRADIENT_EVERY} | settings),
        )
        return cls(config, task, TrainingState(policy, config, Ranks()), probe, Panel(task))

    def seconds(self) -> float:
        """Of the next update."""
        batch = collect(self.state, self.task, self.probe, self.config)
        started = time.thread_time()
        update(
            self.state,
            batch,
            self.probe,
            self.config,
            self.panel,
            max_tokens=self.task.max_tokens,
            started=started,
        )
        return time.thread_time() - started


def measure(rounds: int = 20) -> list[str]:
    """Rows of a Markdown table, an update's time as a multiple of the one that is not coupled."""
    torch.set_num_threads(1)
    candidates = {name: Candidate.of(*settings) for name, settings in CANDIDATES.items()}
    # Until the panel has all of its blocks.
    for _ in range((1 + MADE_FROM) * GRADIENT_EVERY):
        for one in candidates.values():
            one.seconds()
    seconds = [{name: one.seconds() for name, one in candidates.items()} for _ in range(rounds)]
    rows = ["| update | CPU time | median ratio | mean ratio |", "|---|---|---|---|"]
    for name in candidates:
        own = [turn[name] for turn in seconds]
        ratios = [turn[name] / turn["not coupled"] for turn in seconds]
        rows.append(
            f"| {name} | {statistics.median(own) * 1e3:.0f} ms | {statistics.median(ratios):.2f} ×"
            f" | {statistics.fmean(ratios):.2f} × |"
        )
    return rows
