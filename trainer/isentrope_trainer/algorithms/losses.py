"""The parts of a policy-gradient loss as pure functions of tensors, and the entropy bonus that
follows the entropy.

Tensors are [rollouts, tokens]; r is the ratio of the policy's probability of a token to the old
policy's.

    surrogate      -min(A r, A clip(r, 1 - low, 1 + high))   PPO, arXiv:1707.06347, eq. 7;
                                                             low != high: DAPO, arXiv:2503.14476
    reference_kl   exp(d) - 1 - d of d = log p_ref - log p   arXiv:2402.03300, eq. 4; k3 of
                                                             http://joschu.net/blog/kl-approx.html
    aggregated     from losses of tokens to the batch's      DAPO; constant: arXiv:2503.20783;
                                                             sequence: GRPO, arXiv:2402.03300
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from isentrope_trainer.settings import AdaptiveEntropyConfig, Aggregation


def surrogate(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    *,
    clip_low: float | None = None,
    clip_high: float | None = None,
) -> Tensor:
    """The clipped surrogate of each token, of its log-prob in nats, differentiable, and that under
    the policy that the ratio is taken to. The ratio counts down to 1 - `clip_low` and up to 1 +
    `clip_high`; None: it is not clipped on that side. Where log-probs are the old ones, the
    surrogate's value is -A and its gradient -A too."""
    ratios = (logprobs - old_logprobs).exp()
    if clip_low is None and clip_high is None:
        return -(advantages * ratios)
    clipped = ratios.clamp(
        None if clip_low is None else 1 - clip_low, None if clip_high is None else 1 + clip_high
    )
    return -torch.minimum(advantages * ratios, advantages * clipped)


def reference_kl(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """An estimate of each sampled token's divergence from the reference, of log-probs in nats;
    differentiable."""
    difference = ref_logprobs - logprobs
    return difference.exp() - 1 - difference


def aggregated(
    values: Tensor,
    mask: Tensor,
    aggregation: Aggregation,
    *,
    max_tokens: int,
    tokens: Tensor | None = None,
) -> Tensor:
    """One number, a scalar, of the tokens' values [rollouts, tokens]; the bool mask is False on
    padding, which neither contributes nor counts.

    "token" is the mean over all tokens; "sequence" the mean over the rollouts of the mean over each
    one's tokens, so that a token of a short one weighs more; "constant" the sum over tokens by
    rollouts * `max_tokens`, the longest that a completion may be. "token" divides by `tokens`, by
    default those of the mask: where ranks share a batch and gradients are averaged over them, give
    the mean number of tokens of a rank."""
    if aggregation == "token":
        return (values * mask).sum() / (mask.sum() if tokens is None else tokens)
    if aggregation == "sequence":
        return ((values * mask).sum(dim=1) / mask.sum(dim=1)).mean()
    return (values * mask).sum() / (len(mask) * max_tokens)


def value_loss(values: Tensor, targets: Tensor) -> Tensor:
    """Half the squared error of each token's value. Same shapes in and out."""
    return (values - targets).square() / 2


class AdaptiveEntropyCoefficient:
    """Skywork-OR1's rule, to compare a held entropy with: a bonus that is turned up below a target,
    and down above it.

        L = L_policy - alpha 1{H_(t-1) <= H*} mean(H)
        alpha_(t+1) = alpha_t + delta where H_t <= H*, else alpha_t - delta   arXiv:2505.22312

    As TRL's GRPO trainer has it with `use_adaptive_entropy`: the bonus of a step goes by the mean
    entropy of the step before, and is off in the first."""

    def __init__(self, config: AdaptiveEntropyConfig) -> None:
        self._config = config
        self._coefficient = config.initial_coefficient
        self._last_entropy = math.inf

    @property
    def applied(self) -> float:
        """Coefficient of the current step; 0 where the entropy last lay above its target."""
        if self._last_entropy <= self._config.target_entropy:
            return self._coefficient
        return 0.0

    def step(self, mean_entropy: float) -> None:
        """`mean_entropy` is that of the step's tokens before its update, in nats."""
        config = self._config
        if mean_entropy <= config.target_entropy:
            change = config.change_per_step
        else:
            change = -config.change_per_step
        self._coefficient = min(
            max(self._coefficient + change, config.smallest_coefficient), config.largest_coefficient
        )
        self._last_entropy = mean_entropy

    def state_dict(self) -> dict[str, float]:
        return {"coefficient": self._coefficient, "last_entropy": self._last_entropy}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self._coefficient, self._last_entropy = state["coefficient"], state["last_entropy"]
