"""What `trl.py` reads from the inputs of TRL's loss: scores, mask, groups and log-probs of the old policy, as `Probe.gate` takes
them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from isentrope.scores import TokenScores

_ODD = -0x61C8864680B583EB
"""The golden ratio's bits, as an odd int64: multiplying by it spreads numbers that are close together."""

SAMPLED = "sampling_per_token_logps"
"""Among the inputs of TRL's loss: log-probs that vLLM, or a `rollout_func`, drew the tokens with, [batch, completion]; NaN where
vLLM had none."""

Inputs = Mapping[str, Any]
"""The inputs of TRL's `_compute_loss`: prompt and completion ids and masks, advantages and others."""


def completion_scores(records: Sequence[TokenScores], logprobs: Tensor, entropies: Tensor | None = None) -> TokenScores:
    """The scores of the completions, without token ids, from those of each chunk's whole sequences.

    Args:
        records: one per chunk of rows, [rows, tokens - 1].
        logprobs: as TRL returned them, [batch, completion]; they are kept themselves.
        entropies: the same; None: it returned none.
    """

    def joined(parts: Sequence[Tensor]) -> Tensor:
        return torch.cat([part[:, -logprobs.shape[1] :] for part in parts])

    squared = [record.squared_scores for record in records if record.squared_scores is not None]
    return TokenScores(
        logprobs=logprobs,
        entropies=joined([record.entropies for record in records]) if entropies is None else entropies,
        discriminator_scores=joined([record.discriminator_scores for record in records]),
        expected_scores=joined([record.expected_scores for record in records]),
        vocab_centered_scores=joined([record.vocab_centered_scores for record in records]),
        squared_scores=joined(squared) if squared else None,
        temperature=records[0].temperature,  # TRL has one, a number
    )


def token_mask(inputs: Inputs) -> Tensor:
    """Non-zero where a token counts in TRL's loss: completion tokens, no padding, none that a tool wrote."""
    mask: Tensor = inputs["completion_mask"]
    return mask if inputs.get("tool_mask") is None else mask * inputs["tool_mask"]


def prompt_groups(inputs: Inputs) -> Tensor:
    """A number per sequence, [batch], equal for rollouts of one prompt; the same on every rank.

    TRL shuffles the rollouts of a prompt over micro-batches: only the prompt itself identifies them. The number is a
    hash of its token ids, each multiplied by an odd number that depends on its position from the end, since prompts are
    padded on the left.
    """
    ids: Tensor = inputs["prompt_ids"]
    places = torch.arange(ids.shape[1], 0, -1, device=ids.device)
    odd = (places * _ODD) ^ (places * _ODD >> 29) | 1
    hashed = ((ids + 1) * inputs["prompt_mask"] * odd).sum(1) * _ODD
    groups: Tensor = (hashed >> 12) & ((1 << 52) - 1)
    return groups


def old_logprobs(inputs: Inputs, logprobs: Tensor, level: str) -> Tensor | None:
    """Log-probs such that log-prob minus these is the logarithm of TRL's importance ratio; None: it has none, so that it is 1.

    Where a sampler's log-probs are known a ratio of 1 is written out: without one the gate would take the ratio to the sampler,
    which is no part of TRL's loss.

    Args:
        logprobs: of the policy, [batch, completion].
        level: "token"; "sequence" where GRPO takes the mean over a sequence (GSPO).

    Returns:
        [batch, completion]. RLOO's ratio is that of whole sequences: all tokens of one share it.
    """
    logprobs, mask = logprobs.detach(), token_mask(inputs)
    old_sums: Tensor | None = inputs.get("old_logps")
    old: Tensor | None = inputs.get("old_per_token_logps")
    if old_sums is not None:
        return logprobs - ((logprobs * mask).sum(1) - old_sums).unsqueeze(1)
    if old is None:
        return None if inputs.get(SAMPLED) is None else logprobs
    if level == "token":
        return old
    lengths = mask.sum(1).clamp(min=1)
    return logprobs - (((logprobs - old) * mask).sum(1) / lengths).unsqueeze(1)


def with_kl_part(trainer: Any, inputs: Inputs) -> Inputs:
    """The inputs with reference log-probs that get a gradient, where TRL's loss has a KL term of which it tells the share.

    The term is a function of log p_ref - log p alone: its gradient by log p is minus that by log p_ref. With
    `use_bias_correction_kl` it depends on the ratio too, and its share is not known. RLOO's KL is part of the reward.
    """
    reference: Tensor | None = inputs.get("ref_per_token_logps")
    corrected = getattr(trainer.args, "use_bias_correction_kl", False)
    if reference is None or "old_logps" in inputs or not trainer.beta or corrected:
        return inputs
    return {**inputs, "ref_per_token_logps": reference.detach().requires_grad_()}


@contextmanager
def as_in_training(model: nn.Module) -> Iterator[None]:
    """Switch dropout on, as in the forward that was scored first: after an evaluation the model is in eval mode."""
    evaluating = [module for module in model.modules() if not module.training] if not model.training else []
    for module in evaluating:
        module.training = True
    try:
        yield
    finally:
        for module in evaluating:
            module.training = False
