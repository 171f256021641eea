"""The policy: a small Llama-shaped causal language model over the countdown vocabulary."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

from isentrope_trainer.tasks.vocabulary import (
    BOS_ID,
    EOS_ID,
    MAX_COMPLETION_LENGTH,
    PAD_ID,
    PROMPT_LENGTH,
    WORDS,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyConfig:
    """The shape of the policy. The defaults make 1.3 million parameters: two CPU cores train them in a second a step."""

    hidden_size: int = 160
    layers: int = 4
    attention_heads: int = 4
    feed_forward_size: int = 432


def build_policy(config: PolicyConfig, seed: int) -> LlamaForCausalLM:
    """A policy with fresh weights; the same seed gives the same weights and leaves the global generator alone."""
    architecture = LlamaConfig(
        vocab_size=len(WORDS),
        hidden_size=config.hidden_size,
        intermediate_size=config.feed_forward_size,
        num_hidden_layers=config.layers,
        num_attention_heads=config.attention_heads,
        num_key_value_heads=config.attention_heads,
        max_position_embeddings=PROMPT_LENGTH + MAX_COMPLETION_LENGTH,
        bos_token_id=BOS_ID,
        eos_token_id=EOS_ID,
        pad_token_id=PAD_ID,
        tie_word_embeddings=False,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(architecture)


def read_prompts(policy: LlamaForCausalLM, prompts: Tensor, group_size: int) -> DynamicCache:
    """The attention cache of each prompt but its last token, repeated for the rollouts of its group.

    A prompt is read once for its whole group, which nearly halves the cost of a training step. Gradients flow through.

    Args:
        prompts: int64 [prompts, prompt length], all of one length.
    """
    cache = DynamicCache(config=policy.config)
    policy.model(input_ids=prompts[:, :-1], past_key_values=cache)
    cache.batch_repeat_interleave(group_size)
    return cache


def completion_logits(policy: LlamaForCausalLM, prompts: Tensor, completions: Tensor) -> Tensor:
    """Logits of the distributions the completions' tokens were drawn from.

    Args:
        prompts: int64 [prompts, prompt length], all of one length.
        completions: int64 [prompts * group size, completion length]; the group of prompt i are the rows
            i * group_size and following.
    Returns: [prompts * group size, completion length, vocabulary]; row t belongs to token t of the completion.
    """
    group_size = len(completions) // len(prompts)
    cache = read_prompts(policy, prompts, group_size)
    # Offset by one: reading a token gives the distribution of the next, and nothing follows the last.
    last_prompt_tokens = prompts[:, -1:].repeat_interleave(group_size, dim=0)
    token_ids = torch.cat([last_prompt_tokens, completions[:, :-1]], dim=1)
    logits: Tensor = policy(input_ids=token_ids, past_key_values=cache).logits
    return logits
