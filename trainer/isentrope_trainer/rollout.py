"""Sampling completions: batched, with a key-value cache, from a generator of its own."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from isentrope_trainer.models.policy import read_prompts
from isentrope_trainer.tasks.vocabulary import EOS_ID, MAX_COMPLETION_LENGTH, PAD_ID, WORDS


@dataclass(frozen=True, slots=True)
class Rollouts:
    """A batch of sampled completions; the group of prompt i are the rows i * group_size and following."""

    prompts: Tensor
    """int64 [prompts, prompt length]."""
    completions: Tensor
    """int64 [rollouts, completion length], padded on the right after the end marker."""
    mask: Tensor
    """bool [rollouts, completion length]: True up to and including the end marker."""
    sampler_logprobs: Tensor
    """float [rollouts, completion length]: log-probabilities the tokens were drawn with, in nats; 0 on padding."""


@torch.no_grad()
def sample_rollouts(
    policy: LlamaForCausalLM,
    prompts: Tensor,
    group_size: int,
    generator: torch.Generator,
    temperature: float = 1.0,
    max_completion_length: int = MAX_COMPLETION_LENGTH,
) -> Rollouts:
    """Sample `group_size` completions for each prompt.

    Args:
        prompts: int64 [prompts, prompt length], all of one length.
        temperature: the logits are divided by it; the trainer must score with the same one.
    """
    # Completions that began alike go on from one and the same distribution: it is computed once.
    beginning_of_row = torch.arange(len(prompts)).repeat_interleave(group_size)
    cache = read_prompts(policy, prompts, torch.arange(len(prompts)))
    next_to_read = prompts[:, -1]
    unfinished = torch.ones(len(beginning_of_row), dtype=torch.bool)
    tokens, masks, logprobs = [], [], []
    for _ in range(max_completion_length):
        logits = policy(input_ids=next_to_read[:, None], past_key_values=cache).logits[:, -1]
        distribution = torch.log_softmax(logits.float() / temperature, dim=-1)[beginning_of_row]
        drawn = torch.multinomial(distribution.exp(), 1, generator=generator)
        last_tokens = torch.where(unfinished, drawn[:, 0], PAD_ID)
        tokens.append(last_tokens)
        masks.append(unfinished)
        logprobs.append(torch.where(unfinished, distribution.gather(1, drawn)[:, 0], 0.0))
        unfinished = unfinished & (last_tokens != EOS_ID)
        if not unfinished.any():
            break
        beginnings = beginning_of_row[unfinished] * len(WORDS) + last_tokens[unfinished]
        distinct, place = beginnings.unique(return_inverse=True)
        cache.batch_select_indices(distinct // len(WORDS))
        next_to_read = distinct % len(WORDS)
        beginning_of_row = torch.zeros_like(beginning_of_row).masked_scatter(unfinished, place)
    return Rollouts(
        prompts=prompts,
        completions=torch.stack(tokens, dim=1),
        mask=torch.stack(masks, dim=1),
        sampler_logprobs=torch.stack(logprobs, dim=1),
    )
