"""How much TRL's loss pushes a token, next to the r A of the plain surrogate: `loss_weights` of the gate.

The gradient of every loss of TRL's with respect to a token's log-prob is -w A, up to the loss's denominator. The plain
importance-weighted surrogate has w = r. Each function here gives w / r, one per token: 1 where nothing is changed, 0
where the token is silenced. Beside them, what the KL term of the loss adds.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from isentrope.integrations.trl_gate import Inputs, token_mask
from isentrope.scores import inside_clip, kl_strengths

CLIPPED_LOSSES = ("grpo", "bnpo", "dr_grpo", "dapo", "luspo")
"""Loss types with PPO's clip; RLOO has it too, and no loss type."""

LARGEST_LOG_RATIO, SMALLEST_SEQUENCE_RATIO, SMALLEST_LAMBDA = 20.0, 1e-8, 1e-4
"""The bounds that TRL puts on VESPO's ratios and λ."""


def loss_weights(trainer: Any, inputs: Inputs, logprobs: Tensor, ratios: Tensor) -> Tensor:
    """w / r: r A times this is the weight that the token has in the gradient of TRL's loss.

    Args:
        trainer: names the loss and holds its parameters.
        inputs: of `_compute_loss`: advantages [batch] or [batch, tokens], old log-probs and masks.
        logprobs: of the policy, without gradient, [batch, tokens].
        ratios: r as the loss has it, of tokens or of sequences, [batch, tokens].
    """
    args = trainer.args
    advantages: Tensor = inputs["advantages"]
    advantages = (advantages if advantages.dim() == 2 else advantages.unsqueeze(1)).expand_as(ratios)
    loss_type = getattr(trainer, "loss_type", "grpo")
    if loss_type in CLIPPED_LOSSES:
        delta = getattr(args, "delta", None)
        return inside_clip(advantages, ratios, trainer.epsilon_low, trainer.epsilon_high, delta).to(ratios.dtype)
    if loss_type == "cispo":
        return cispo_weight(ratios, trainer.epsilon_high)
    if loss_type == "sapo":
        return sapo_weight(advantages, ratios, args.sapo_temperature_pos, args.sapo_temperature_neg)
    if loss_type == "vespo":
        positive, negative = (args.vespo_k_pos, args.vespo_lambda_pos), (args.vespo_k_neg, args.vespo_lambda_neg)
        log_ratios = logprobs - inputs["old_per_token_logps"]
        phi = vespo_weight(advantages, log_ratios, token_mask(inputs), positive, negative)
        # φ stands in the place of r. Where r is 0 in float32 nothing can be put in its place.
        return torch.where(ratios > 0, phi / ratios, 0.0)
    return torch.ones_like(ratios)


def loss_kl_strengths(trainer: Any, inputs: Inputs, logprobs: Tensor, ratios: Tensor | None) -> Tensor | None:
    """What the KL term of TRL's loss adds to r A, [batch, tokens]; None where there is none, or its pull is not known.

    With `use_bias_correction_kl` the estimator k is weighed by the ratio, which has a gradient too: that of beta r k is
    beta r log(p / p_ref). Of ratios of whole sequences it is not known. RLOO's KL is part of the reward, and so of A.

    Args:
        ratios: r as the loss has it; None: 1.
    """
    reference: Tensor | None = inputs.get("ref_per_token_logps")
    if reference is None or "old_logps" in inputs or not trainer.beta:
        return None
    if not getattr(trainer.args, "use_bias_correction_kl", False):
        return kl_strengths(logprobs, reference, float(trainer.beta))
    if getattr(trainer, "importance_sampling_level", "token") != "token":
        return None
    pull: Tensor = trainer.beta * (reference - logprobs)
    return pull if ratios is None else ratios * pull


def cispo_weight(ratios: Tensor, high: float) -> Tensor:
    """min(r, ε_high) / r: CISPO bounds the weight of a log-prob, which keeps its gradient.

        loss = -sg(min(r, ε_high)) A log p        arXiv:2506.13585; TRL bounds r by ε_high itself, not by 1 + ε_high

    Args:
        ratios: r, [batch, tokens].
        high: ε_high.
    """
    return (high / ratios).clamp(max=1.0)


def sapo_weight(advantages: Tensor, ratios: Tensor, temperature_positive: float, temperature_negative: float) -> Tensor:
    """4 σ(τ (r - 1)) (1 - σ(τ (r - 1))): the slope in r of SAPO's soft gate; 1 at r = 1.

        loss = -4 / τ σ(τ (r - 1)) A        arXiv:2511.20347

    Args:
        advantages, ratios: A and r, [batch, tokens].
        temperature_positive, temperature_negative: τ where A > 0, and elsewhere.
    """
    temperatures = torch.where(advantages > 0, temperature_positive, temperature_negative)
    gate = torch.sigmoid(temperatures * (ratios - 1))
    return 4 * gate * (1 - gate)


def vespo_weight(
    advantages: Tensor,
    log_ratios: Tensor,
    mask: Tensor,
    positive: tuple[float, float],
    negative: tuple[float, float],
) -> Tensor:
    """φ(w) = exp(λ + k log w - λ w) of the whole sequence's ratio w, which VESPO puts in the place of r; 1 at w = 1.

        loss = -sg(φ(w)) A log p        arXiv:2602.10693; TRL keeps w within [1e-8, e^20]

    Args:
        advantages: A, [batch, tokens].
        log_ratios: log r of each token by itself, [batch, tokens].
        mask: non-zero where the token counts.
        positive, negative: (k, λ) where A >= 0, and where A < 0.
    Returns: [batch, tokens].
    """
    sums = (log_ratios.clamp(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO) * mask).sum(1, keepdim=True)
    log_weight = sums.clamp(math.log(SMALLEST_SEQUENCE_RATIO), LARGEST_LOG_RATIO)
    k = torch.where(advantages >= 0, positive[0], negative[0])
    rate = torch.where(advantages >= 0, positive[1], negative[1]).clamp(min=SMALLEST_LAMBDA)
    return (rate + k * log_weight - rate * log_weight.exp()).exp()
