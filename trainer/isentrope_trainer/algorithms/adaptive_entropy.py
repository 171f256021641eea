"""The adaptive entropy coefficient of Skywork-OR1: an entropy bonus that is turned up below a target, and down above it.

    L = L_policy - alpha 1{H_(t-1) <= H*} mean(H)
    alpha_(t+1) = alpha_t + delta where H_t <= H*, alpha_t - delta elsewhere, within its bounds    arXiv:2505.22312

As TRL's GRPO trainer has it with `use_adaptive_entropy`: the bonus of a step goes by the mean entropy of the step before,
and is off in the first.
"""

from __future__ import annotations

import math

from isentrope_trainer.settings import AdaptiveEntropyConfig


class AdaptiveEntropyCoefficient:
    """alpha, and whether it is applied. Not part of the probe: a rule to compare with."""

    def __init__(self, config: AdaptiveEntropyConfig) -> None:
        self._config = config
        self._coefficient = config.initial_coefficient
        self._last_entropy = math.inf

    @property
    def applied(self) -> float:
        """Of the step that runs; 0 where the entropy last lay above its target."""
        return self._coefficient if self._last_entropy <= self._config.target_entropy else 0.0

    def step(self, mean_entropy: float) -> None:
        """
        Args:
            mean_entropy: over the step's tokens, before its update, in nats.
        """
        config = self._config
        change = config.change_per_step if mean_entropy <= config.target_entropy else -config.change_per_step
        self._coefficient = min(
            max(self._coefficient + change, config.smallest_coefficient), config.largest_coefficient
        )
        self._last_entropy = mean_entropy

    def state_dict(self) -> dict[str, float]:
        return {"coefficient": self._coefficient, "last_entropy": self._last_entropy}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self._coefficient, self._last_entropy = state["coefficient"], state["last_entropy"]
