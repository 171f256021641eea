"""The policy: a small Llama-shaped causal language model over the countdown vocabulary."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

from isentrope_trainer.tasks.vocabulary import BOS_ID, EOS_ID, MAX_COMPLETION_LENGTH, PAD_ID, PROMPT_LENGTH, WORDS


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyConfig:
    """The shape of the policy. The defaults make 1.1 million parameters. Wide and shallow, because a CPU spends
    more of its time between the matrix products of a deep model."""

    hidden_size: int = 224
    layers: int = 2
    attention_heads: int = 4
    feed_forward_size: int = 512


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


def read_prompts(policy: LlamaForCausalLM, prompts: Tensor, prompt_of_row: Tensor) -> DynamicCache:
    """The attention cache of prompts without their last tokens, one row for each completion.

    A prompt is read once for all its completions, which nearly halves the cost of a step. Gradients flow through.

    Args:
        prompts: int64 [prompts, prompt length], all of one length.
        prompt_of_row: int64 [rows], which prompt each row continues.
    """
    cache = DynamicCache(config=policy.config)
    policy.model(input_ids=prompts[:, :-1], past_key_values=cache)
    cache.batch_select_indices(prompt_of_row)
    return cache


def completion_logits(policy: LlamaForCausalLM, prompts: Tensor, completions: Tensor) -> Tensor:
    """Logits of the distributions the completions' tokens were drawn from.

    Completions that a group holds several times are read once: the more certain the policy, the cheaper the step.

    Args:
        prompts: int64 [prompts, prompt length], all of one length.
        completions: int64 [prompts * group size, completion length]; the group of prompt i are the rows
            i * group_size and following.

    Returns:
        [prompts * group size, completion length, vocabulary]; row t belongs to token t of the completion.
    """
    prompt_of_row = torch.arange(len(prompts)).repeat_interleave(len(completions) // len(prompts))
    rows = torch.cat([prompt_of_row[:, None], completions], dim=1)
    distinct_rows, place_of_row = rows.unique(dim=0, return_inverse=True)
    cache = read_prompts(policy, prompts, distinct_rows[:, 0])
    # Offset by one: reading a token gives the distribution of the next, and nothing follows the last.
    last_prompt_tokens = prompts[distinct_rows[:, 0], -1:]
    token_ids = torch.cat([last_prompt_tokens, distinct_rows[:, 1:-1]], dim=1)
    logits: Tensor = policy(input_ids=token_ids, past_key_values=cache).logits
    return logits.index_select(0, place_of_row)
