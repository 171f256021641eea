"""The family of small models: Llama-shaped, of one form in five sizes, over the words of a task."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from isentrope_trainer.models.policy import Policy
from isentrope_trainer.tasks.base import Task
from isentrope_trainer.tasks.vocabulary import EOS_ID, WordTokenizer

_MOST_POSITIONS = 128
"""Tokens of the longest prompt and answer of any task, and some more."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyConfig:
    """The shape of the policy. The defaults make 1.1 million parameters. Wide and shallow, because a CPU spends
    more of its time between the matrix products of a deep model."""

    hidden_size: int = 224
    layers: int = 2
    attention_heads: int = 4
    feed_forward_size: int = 512


SIZES = {
    "0.2M": PolicyConfig(hidden_size=96, feed_forward_size=224),
    "0.6M": PolicyConfig(hidden_size=160, feed_forward_size=352),
    "1.1M": PolicyConfig(),
    "2.2M": PolicyConfig(hidden_size=320, feed_forward_size=736),
    "4.4M": PolicyConfig(hidden_size=448, feed_forward_size=1024),
}
"""Each has about twice the parameters of the one before it; a vocabulary adds at most a tenth of a million."""


def untrained_policy(task: Task, config: PolicyConfig, seed: int) -> Policy:
    """A model with fresh weights and the tokenizer of a task's words."""
    tokenizer = WordTokenizer(task.words)
    return Policy(build_policy(config, tokenizer, seed), tokenizer)


def build_policy(config: PolicyConfig, tokenizer: WordTokenizer, seed: int) -> LlamaForCausalLM:
    """A model with fresh weights; the same seed gives the same weights and leaves the global generator alone."""
    architecture = LlamaConfig(
        vocab_size=len(tokenizer.words),
        hidden_size=config.hidden_size,
        intermediate_size=config.feed_forward_size,
        num_hidden_layers=config.layers,
        num_attention_heads=config.attention_heads,
        num_key_value_heads=config.attention_heads,
        max_position_embeddings=_MOST_POSITIONS,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=EOS_ID,
        pad_token_id=tokenizer.pad_token_id,
        tie_word_embeddings=False,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(architecture)
