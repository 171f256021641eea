"""The settings of a training run. Checked once, where they are built; nothing here imports torch."""

from __future__ import annotations

import math
from dataclasses import dataclass

from isentrope_wire.errors import IsentropeError


class SettingsError(IsentropeError, ValueError):
    """A training setting that can't work."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingConfig:
    """What, beside the policy it starts from, determines a run.

    Raises:
        SettingsError: naming the field, what was expected and what came.
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

    def __post_init__(self) -> None:
        for name, lowest in (("steps", 1), ("seed", 0), ("prompts", 1), ("group_size", 2)):
            value = getattr(self, name)
            if value < lowest:
                raise SettingsError(f"{name} must be a whole number of at least {lowest}, got {value}.")
        for name in ("learning_rate", "max_gradient_norm", "temperature"):
            value = getattr(self, name)
            if not math.isfinite(value) or value <= 0:
                raise SettingsError(f"{name} must be finite and above 0, got {value}.")
