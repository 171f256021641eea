"""The settings of a training run. Checked once, where they are built; nothing here imports torch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from isentrope_wire.errors import ConfigurationError


@dataclass(frozen=True, kw_only=True, slots=True)
class AdaptiveEntropyConfig:
    """An entropy bonus whose coefficient follows the entropy, see `algorithms/adaptive_entropy.py`. TRL's defaults.

    Raises:
        ConfigurationError: naming the field, what was expected and what came.
    """

    target_entropy: float
    """In nats: the bonus is applied while the mean entropy lies at or below it."""
    initial_coefficient: float = 0.0
    change_per_step: float = 0.005
    smallest_coefficient: float = 0.0
    largest_coefficient: float = 1.0

    def __post_init__(self) -> None:
        for name in ("target_entropy", "change_per_step"):
            _above_zero(f"adaptive_entropy.{name}", getattr(self, name))
        if not self.smallest_coefficient <= self.initial_coefficient <= self.largest_coefficient:
            raise ConfigurationError(
                f"adaptive_entropy.initial_coefficient must lie between {self.smallest_coefficient:g} and "
                f"{self.largest_coefficient:g}, got {self.initial_coefficient}."
            )


TASKS = ("countdown", "chain_sum", "jugs")
"""One module of `tasks/` each."""
QUESTION_TOKENS = 256
"""Length limit of an answer to a question in plain English, where none is given."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskConfig:
    """What the policy is asked to do, see `tasks/base.py`.

    Raises:
        ConfigurationError: naming the field, what was expected and what came.
    """

    name: str = "countdown"
    graded: bool = False
    """Rewards of 2602.03392, appendix B: below 0 for what holds no answer, lowest for a completion that was cut off."""
    wording: Literal["words", "question"] = "words"
    """In the few words of the task's own vocabulary, or as the question of `reasoning-gym`, for other language models."""
    max_tokens: int | None = None
    """Length limit of a completion. None: the longest answer in the task's own words, `QUESTION_TOKENS` for a question."""

    def __post_init__(self) -> None:
        if self.name not in TASKS:
            raise ConfigurationError(f"task.name must be one of {', '.join(TASKS)}, got {self.name!r}.")
        if self.max_tokens is not None:
            _whole_number("task.max_tokens", self.max_tokens, lowest=1)


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptFilterConfig:
    """Dynamic sampling: prompts outside these pass rates are replaced by new ones, see `algorithms/prompt_filter.py`.
    The range of 2602.03392, appendix B.

    Raises:
        ConfigurationError: naming the field, what was expected and what came.
    """

    lowest: float = 1 / 16
    """Smallest share of right answers that is kept."""
    highest: float = 15 / 16
    most_draws: int = 4
    """A step samples at most that many times its number of prompts; then prompts outside the range fill it up."""

    def __post_init__(self) -> None:
        if not 0 <= self.lowest <= self.highest <= 1:
            raise ConfigurationError(
                f"prompt_filter needs 0 <= lowest <= highest <= 1, got {self.lowest:g} and {self.highest:g}."
            )
        _whole_number("prompt_filter.most_draws", self.most_draws, lowest=1)


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluationConfig:
    """Evaluation on the held-out split, see `evaluation.py`.

    Raises:
        ConfigurationError: naming the field, what was expected and what came.
    """

    every: int = 10
    """Steps from one evaluation to the next. The first is made before the first step, the last after the last."""
    problems: int = 64
    samples: int = 16
    """Completions of each problem."""
    k: int = 8
    """Of Pass@K. With more samples than that its estimate varies less."""
    temperature: float = 1.0

    def __post_init__(self) -> None:
        for name in ("every", "problems", "samples", "k"):
            _whole_number(f"evaluation.{name}", getattr(self, name), lowest=1)
        if self.k > self.samples:
            raise ConfigurationError(f"evaluation.k must be at most evaluation.samples, {self.samples}, got {self.k}.")
        _above_zero("evaluation.temperature", self.temperature)


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingConfig:
    """What, beside the policy it starts from, determines a run.

    Raises:
        ConfigurationError: naming the field, what was expected and what came.
    """

    steps: int = 300
    """Optimiser updates; one batch of rollouts each."""
    seed: int = 0
    """Of the sampler, and by default of the task's problems."""
    prompts: int = 96
    """Problems a step. Many, because every one of them makes the predicted entropy change less noisy."""
    group_size: int = 16
    """Rollouts of each problem. At 16, most problems have right and wrong ones to compare at the start."""
    learning_rate: float = 1.5e-4
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = 0.0
    max_gradient_norm: float = 10.0
    """Against the rare wild batch only. A norm that often binds would hide the gradient's size from the prediction."""
    temperature: float = 1.0
    """Of the sampler, and so of every score and log-prob."""
    task: TaskConfig = TaskConfig()
    adaptive_entropy: AdaptiveEntropyConfig | None = None
    """A bonus to compare a held entropy with. None: the loss has no entropy term."""

    def __post_init__(self) -> None:
        for name, lowest in (("steps", 1), ("seed", 0), ("prompts", 1), ("group_size", 2)):
            _whole_number(name, getattr(self, name), lowest=lowest)
        for name in ("learning_rate", "max_gradient_norm", "temperature"):
            _above_zero(name, getattr(self, name))


def _above_zero(name: str, value: float) -> None:
    if not math.isfinite(value) or value <= 0:
        raise ConfigurationError(f"{name} must be finite and above 0, got {value}.")


def _whole_number(name: str, value: int, *, lowest: int) -> None:
    if value < lowest:
        raise ConfigurationError(f"{name} must be a whole number of at least {lowest}, got {value}.")
