"""The family of small models: Llama-shaped, of one form in five sizes (`settings.SIZES`), over the words of a task.

One token a word. A text is its words apart by one space; before a prompt stands the marker `<bos>`, after an answer `<eos>`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from isentrope_trainer.models.policy import Policy
from isentrope_trainer.settings import PolicyConfig
from isentrope_trainer.tasks.base import Task
from isentrope_wire.errors import IsentropeError

_MOST_POSITIONS = 128
"""Tokens of the longest prompt and answer of any task, and some more."""
MARKERS = PAD, BOS, EOS = "<pad>", "<bos>", "<eos>"
PAD_ID, BOS_ID, EOS_ID = range(len(MARKERS))


class VocabularyError(IsentropeError, ValueError):
    """A word that the vocabulary does not have."""


class WordTokenizer:
    """Between texts and token ids."""

    pad_token_id = PAD_ID
    bos_token_id = BOS_ID
    eos_token_ids = (EOS_ID,)

    def __init__(self, words: Sequence[str]) -> None:
        """The words are the task's; the markers come before them."""
        self.words = (*MARKERS, *words)
        self._ids = {word: token_id for token_id, word in enumerate(self.words)}

    def encode(self, text: str) -> list[int]:
        """The token ids of a prompt, after the marker that begins every text; see `encode_words`."""
        return [BOS_ID, *self.encode_words(text)]

    def encode_answer(self, text: str) -> list[int]:
        """The token ids of an answer, with the marker that ends it; see `encode_words`."""
        return [*self.encode_words(text), EOS_ID]

    def encode_words(self, text: str) -> list[int]:
        """The token ids of a text's words.

        Raises:
            VocabularyError: for a word the vocabulary doesn't have.
        """
        try:
            return [self._ids[word] for word in text.split()]
        except KeyError as missing:
            raise VocabularyError(
                f"The vocabulary has {len(self.words)} words, {missing.args[0]!r} is not one of them."
            ) from None

    def decode(self, token_ids: Sequence[int]) -> str:
        """The words of any token ids, apart by one space."""
        return " ".join(self.words[token_id] for token_id in token_ids)


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
