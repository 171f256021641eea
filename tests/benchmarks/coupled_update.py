"""An update of the reference trainer (96 x 16 rollouts, re-scored) whose prediction is coupled,
against one without.

Runs of the same seed take turns with an update each: loss, backward pass, optimiser, re-scoring,
the step's report on the training thread; sampling is not counted. Ratios are medians over pairs of
updates."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, replace
from typing import Any

import torch

import isentrope
from isentrope.transport.transport import InMemoryTransport
from isentrope_trainer.experience import Panel, collect
from isentrope_trainer.loop import update
from isentrope_trainer.models.warm_start import WARM_STARTS, warm_started_policy
from isentrope_trainer.settings import PolicyConfig, TrainingConfig
from isentrope_trainer.tasks.base import Task, make_task
from isentrope_trainer.training_state import Ranks, TrainingState

CONFIG = TrainingConfig(unseen=0, coupling=None)
CANDIDATES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "not coupled": ({}, {}),
    "unseen tokens, a sixteenth": ({"unseen": 16}, {}),
    "these, coupled by the model": ({"unseen": 16, "coupling": "model"}, {}),
    "these, every second step": ({"unseen": 16, "coupling": "model"}, {"coupling_every": 2}),
    "these, every fifth step": ({"unseen": 16, "coupling": "model"}, {"coupling_every": 5}),
    "these, influences at every step": (
        {"unseen": 16, "coupling": "model"},
        {"influence_every": 1},
    ),
    "these, coupled by the last block": ({"unseen": 16, "coupling": "last_block"}, {}),
    "a quarter, coupled by the model": ({"unseen": 4, "coupling": "model"}, {}),
    "the step's own tokens, by the model": ({"coupling": "model"}, {}),
    "the step's own tokens, every fifth step": ({"coupling": "model"}, {"coupling_every": 5}),
    "the step's own tokens, by the last block": ({"coupling": "last_block"}, {}),
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
            **settings,
        )
        return cls(config, task, TrainingState(policy, config, Ranks()), probe, Panel())

    def seconds(self) -> float:
        """Of the next update."""
        batch = collect(self.state, self.task, self.probe, self.config)
        self.panel.renew(self.state, self.task, self.config)
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
    for _ in range(2):
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
