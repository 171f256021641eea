"""What TRL's loss is handed: its own log-probs, same values, with gradient where the control keeps it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from isentrope.scores import TokenScores

_ODD = -0x61C8864680B583EB
"""The golden ratio's bits, as an odd int64: multiplying by it scatters what lies close together."""

Inputs = Mapping[str, Any]
"""What TRL's `_compute_loss` is given: prompt and completion ids and masks, advantages ..."""


def completion_scores(records: Sequence[TokenScores], logprobs: Tensor) -> TokenScores:
    """The scores of the completions, from those of each chunk's whole sequences.

    Args:
        records: one per chunk of rows, [rows, tokens - 1].
        logprobs: as TRL returned them, [batch, completion].
    Returns: scores of the log-probs' shape, with these very log-probs.
    """
    completion = logprobs.shape[1]
    joined = {
        field.name: torch.cat([getattr(record, field.name)[:, -completion:] for record in records])
        for field in fields(TokenScores)
        if field.name != "logprobs"
    }
    return TokenScores(logprobs=logprobs, **joined)


def token_mask(inputs: Inputs) -> Tensor:
    """Non-zero where a token counts in TRL's loss: completion tokens, no padding, none that a tool wrote."""
    mask: Tensor = inputs["completion_mask"]
    return mask if inputs.get("tool_mask") is None else mask * inputs["tool_mask"]


def prompt_groups(inputs: Inputs) -> Tensor:
    """A number for each sequence that says which prompt it answers, [batch]; the same on every rank.

    TRL shuffles the rollouts of a prompt over micro-batches, so their prompt is what they have in common. The number is
    a hash of its token ids: each times a random odd number that its place from the end chooses, for prompts are padded
    on the left.
    """
    ids: Tensor = inputs["prompt_ids"]
    places = torch.arange(ids.shape[1], 0, -1, device=ids.device)
    odd = (places * _ODD) ^ (places * _ODD >> 29) | 1
    hashed = ((ids + 1) * inputs["prompt_mask"] * odd).sum(1) * _ODD
    groups: Tensor = (hashed >> 12) & ((1 << 52) - 1)
    return groups


def sampler_logprobs(inputs: Inputs, logprobs: Tensor, level: str) -> Tensor | None:
    """The log-probs that make log-prob minus these the logarithm of TRL's importance ratio; None: the ratio is 1.

    Args:
        inputs: of `_compute_loss`.
        logprobs: of the policy, [batch, completion].
        level: "token"; "sequence" where GRPO takes the mean over a sequence (GSPO).
    Returns: [batch, completion]. RLOO's ratio is that of whole sequences: all tokens of one share it.
    """
    logprobs, mask = logprobs.detach(), token_mask(inputs)
    old_sums: Tensor | None = inputs.get("old_logps")
    old: Tensor | None = inputs.get("old_per_token_logps")
    if old_sums is not None:
        return logprobs - ((logprobs * mask).sum(1) - old_sums).unsqueeze(1)
    if old is None or level == "token":
        return old
    lengths = mask.sum(1).clamp(min=1)
    return logprobs - (((logprobs - old) * mask).sum(1) / lengths).unsqueeze(1)
