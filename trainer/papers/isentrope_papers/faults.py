"""FAULTS: known ways in which a run dies, made on purpose in the reference trainer.

Each row says what is changed in the settings, what is wrong in the reward, the problems or the
sampler, and which kinds of findings name it. They are the usual mistakes of a real training, not of
its log: the checks see what such a run reports."""

from __future__ import annotations

import math
import random
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

import isentrope
from isentrope_trainer.models.policy import Policy
from isentrope_trainer.settings import LossConfig
from isentrope_trainer.tasks.base import Problem, Split, Task
from isentrope_wire.diagnosis.checks import FINDINGS

Parts = Mapping[str, float]
RewardOf = Callable[[float, Problem, str | None], Parts]
"""Parts of the reward, of a verifier's verdict, the problem and the text."""
Prepare = Callable[[Policy, Task, isentrope.Probe, int], Task]
"""The task that a run is given in place of its own; of policy, task, probe and the completions of a
batch."""
_FORMAT_WEIGHT, _RIGHT_WEIGHT, _WORD = 1.0, 0.1, 0.15
_FEW_PROBLEMS, _ONE_IN = 4, 24
_CHANCE = 0.3
_NOT_A_NUMBER_AFTER, _BROKEN_AFTER = 2_000, 4_000
"""Completions judged."""
_COLD = 0.25
_MOVED = 0.8
"""Of the spread of a weight matrix."""


class Rewarded:
    """A task with another reward, which logs the mean of each of its parts; held-out problems are
    judged as usual."""

    def __init__(
        self, task: Task, reward_of: RewardOf, probe: isentrope.Probe, completions: int
    ) -> None:
        """`completions`: of a batch."""
        self._task, self._reward_of = task, reward_of
        self._probe, self._completions = probe, completions
        self._held_out: set[str] = set()
        self._sums: dict[str, float] = {}
        self._judged = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._task, name)

    def problem(self, index: int, split: Split = "train") -> Problem:
        problem = self._task.problem(index, split)
        if split == "held_out":
            self._held_out.add(problem.prompt)
        return problem

    def reward(self, problem: Problem, completion: str | None) -> float:
        verdict = self._task.reward(problem, completion)
        if problem.prompt in self._held_out:
            return verdict
        parts = self._reward_of(verdict, problem, completion)
        for name, part in parts.items():
            self._sums[name] = self._sums.get(name, 0.0) + part
        self._judged += 1
        if self._judged == self._completions:
            if len(parts) > 1:
                means = {name: total / self._judged for name, total in self._sums.items()}
                self._probe.log({f"rewards/{name}/mean": mean for name, mean in means.items()})
            self._sums, self._judged = {}, 0
        return sum(parts.values())


def rewarded(reward_of: RewardOf) -> Prepare:
    """A run whose reward is another."""

    def prepare(policy: Policy, task: Task, probe: isentrope.Probe, completions: int) -> Task:
        return cast("Task", Rewarded(task, reward_of, probe, completions))

    return prepare


def _pay_length(verdict: float, problem: Problem, text: str | None) -> Parts:
    # A text that the limit cut is the longest.
    words = 24
    if text is not None:
        words = len(text.split())
    return {"right": verdict + _WORD * words}


def _pay_format(verdict: float, problem: Problem, text: str | None) -> Parts:
    is_formatted = text is not None and "(" in text
    return {"format": _FORMAT_WEIGHT * is_formatted, "right": _RIGHT_WEIGHT * verdict}


def _judge_few(verdict: float, problem: Problem, text: str | None) -> Parts:
    """Most expected answers are wrong, so that nothing is accepted."""
    return {"right": verdict * (zlib.crc32(problem.prompt.encode()) % _ONE_IN == 0)}


def _break_down() -> RewardOf:
    """A verifier that answers nothing any more from some completion on."""
    judged = 0

    def reward_of(verdict: float, problem: Problem, text: str | None) -> Parts:
        nonlocal judged
        judged += 1
        return {"right": verdict * (judged < _BROKEN_AFTER)}

    return reward_of


def _draw_reward() -> RewardOf:
    """A reward that has nothing to do with the completion."""
    drawn = random.Random(0)
    return lambda verdict, problem, text: {"right": float(drawn.random() < _CHANCE)}


def _pay_the_same(verdict: float, problem: Problem, text: str | None) -> Parts:
    return {"right": _CHANCE}


def _fail_once() -> RewardOf:
    judged = 0

    def reward_of(verdict: float, problem: Problem, text: str | None) -> Parts:
        nonlocal judged
        judged += 1
        return {"right": math.nan if judged == _NOT_A_NUMBER_AFTER else verdict}

    return reward_of


def _repeat_problems(policy: Policy, task: Task, probe: isentrope.Probe, completions: int) -> Task:
    """Few problems, again and again: soon all of them are solved."""
    given = task.problem
    task.problem = lambda index, split="train": given(  # type: ignore[method-assign]
        index % _FEW_PROBLEMS if split == "train" else index, split
    )
    return task


def _sample_cold(policy: Policy, task: Task, probe: isentrope.Probe, completions: int) -> Task:
    """The sampler draws at a low temperature that the scores do not know of."""
    draw = policy.sample

    def sample(*given: Any, temperature: float, **more: Any) -> Any:
        return draw(*given, temperature=_COLD * temperature, **more)

    policy.sample = sample  # type: ignore[method-assign, assignment]
    return task


def _change_gradients(factor: float) -> Prepare:
    """-1: the loss has the wrong sign. 0: the optimiser holds no weights that count."""

    def prepare(policy: Policy, task: Task, probe: isentrope.Probe, completions: int) -> Task:
        def change(gradient: Tensor) -> Tensor:
            return factor * gradient

        for weights in policy.model.parameters():
            weights.register_hook(change)
        return task

    return prepare


def _never_end(policy: Policy, task: Task, probe: isentrope.Probe, completions: int) -> Task:
    """The sampler waits for another end marker than the one that was learnt."""
    tokenizer = cast("Any", policy.tokenizer)
    tokenizer.eos_token_ids = (len(tokenizer.words) + 1,)
    return task


def _mistake_reference(
    policy: Policy, task: Task, probe: isentrope.Probe, completions: int
) -> Task:
    """The reference is another checkpoint than the one that the run begins with."""
    generator = torch.Generator().manual_seed(0)
    logprobs, moved = policy.logprobs, set[int]()

    def logprobs_of(rollouts: Any, *, model: Any = None, **more: Any) -> Tensor:
        if model is not None and id(model) not in moved:
            moved.add(id(model))
            for weights in model.parameters():
                noise = torch.randn(weights.shape, generator=generator)
                weights.data += _MOVED * weights.data.std() * noise
        return logprobs(rollouts, model=model, **more)

    policy.logprobs = logprobs_of  # type: ignore[method-assign]
    return task


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """What a failure is called by the checks."""

    kinds: frozenset[str] = frozenset()
    """Findings that name it, as `KIND` or `KIND/CAUSE`; empty: nothing is wrong."""

    def is_named_by(self, kind: str, cause: str) -> bool:
        return kind in self.kinds or f"{kind}/{cause}" in self.kinds


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault(Named):
    """One row."""

    training: Mapping[str, Any] = field(default_factory=dict)
    """Fields of `TrainingConfig` that are others."""
    max_tokens: int | None = None
    """Length limit of a completion; None: the task's."""
    prepare: Callable[[], Prepare] | None = None
    """Makes what is wrong in the run beside its settings."""


_LOST = frozenset({"decline", "zero_advantage/lost"})
_CUT = frozenset({"truncation", "zero_advantage/cut"})
RATE_KINDS = _LOST | {"collapse", "explosion", "kl", "gradient", "clip_saturation"}

FAULTS: dict[str, Fault] = {
    "reward pays length": Fault(
        kinds=frozenset({"length", "truncation", "reward_hacking"}),
        max_tokens=24,
        prepare=partial(rewarded, _pay_length),
    ),
    "format takes the reward": Fault(
        kinds=frozenset({"reward_parts", "reward_hacking"}),
        prepare=partial(rewarded, _pay_format),
    ),
    "problems too easy": Fault(
        kinds=frozenset({"zero_advantage"}), prepare=lambda: _repeat_problems
    ),
    "problems too hard": Fault(
        kinds=frozenset({"zero_advantage"}), prepare=partial(rewarded, _judge_few)
    ),
    "30 times the learning rate": Fault(kinds=RATE_KINDS, training={"learning_rate": 3e-3}),
    "completions cut": Fault(kinds=_CUT, max_tokens=5),
    "sampler too cold": Fault(
        kinds=frozenset({"self_check", "zero_advantage", "kl"}), prepare=lambda: _sample_cold
    ),
    "stale sampler": Fault(
        kinds=frozenset({"kl", "clip_saturation"}),
        training={"sampler_lag": 32, "learning_rate": 3e-4},
    ),
    "stale reference": Fault(
        kinds=frozenset({"kl"}),
        training={"loss": LossConfig(kl_coefficient=0.3)},
        prepare=lambda: _mistake_reference,
    ),
    "KL term too heavy": Fault(
        kinds=frozenset({"kl", "plateau"}),
        training={"loss": LossConfig(kl_coefficient=1.0), "learning_rate": 3e-4},
    ),
    "NaN advantages": Fault(
        kinds=frozenset({"gradient", "not_finite"}),
        prepare=lambda: rewarded(_fail_once()),
    ),
    "clip of 0.01, eight updates": Fault(
        kinds=frozenset({"clip_saturation"}),
        training={
            "loss": LossConfig(clip_low=0.01, clip_high=0.01),
            "updates_per_batch": 8,
            "prompts": 32,
            "learning_rate": 3e-4,
        },
    ),
    "loss of the wrong sign": Fault(kinds=_LOST, prepare=partial(_change_gradients, -1.0)),
    "frozen weights": Fault(
        kinds=frozenset({"gradient", "plateau"}), prepare=partial(_change_gradients, 0.0)
    ),
    "learning rate of 1e-9": Fault(kinds=frozenset({"plateau"}), training={"learning_rate": 1e-9}),
    "verifier breaks": Fault(
        kinds=_LOST | {"zero_advantage"}, prepare=lambda: rewarded(_break_down())
    ),
    "reward by chance": Fault(
        kinds=frozenset({"plateau", "reward_hacking"}), prepare=lambda: rewarded(_draw_reward())
    ),
    "reward is constant": Fault(
        kinds=frozenset({"zero_advantage"}), prepare=partial(rewarded, _pay_the_same)
    ),
    "no end marker": Fault(kinds=_CUT, prepare=lambda: _never_end),
    "entropy bonus too large": Fault(
        kinds=_LOST | {"explosion"},
        training={"loss": LossConfig(entropy_coefficient=0.3), "learning_rate": 3e-4},
    ),
}
KINDS = frozenset({*FINDINGS, "self_check", "not_finite", "collapse", "explosion"})
"""Kinds of alerts that say why a run does not learn."""
