"""Any causal language model of the `transformers` library that lies in a folder, with its own
tokenizer.

A problem is asked as a user's message in the model's chat template, where it has one. Completions
are drawn from the whole vocabulary at the configured temperature: what a model's generation
settings say of top-k, top-p and penalties is not used, because a truncated sampler is another
policy than the one that is trained."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from isentrope_trainer.models.policy import Policy
from isentrope_trainer.settings import LocalModelConfig
from isentrope_wire.errors import ConfigurationError


class ModelTokenizer:
    """A model's own tokenizer. A prompt is a user's message, where the model has a chat
    template."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, eos_token_ids: tuple[int, ...]) -> None:
        """Each of the ids ends a completion; chat models have one for a turn beside the one for a
        text."""
        self._tokenizer = tokenizer
        self.eos_token_ids = eos_token_ids
        # Padding is masked, so any token serves; not every model has one for it.
        self.pad_token_id = eos_token_ids[0]

    def encode(self, text: str) -> list[int]:
        """The token ids of a prompt, up to where the answer begins."""
        if not self._tokenizer.chat_template:
            return list(self._tokenizer(text).input_ids)
        message = [{"role": "user", "content": text}]
        chat = self._tokenizer.apply_chat_template(
            message, tokenize=False, add_generation_prompt=True
        )
        # The template has written the special tokens already.
        return list(self._tokenizer(chat, add_special_tokens=False).input_ids)

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of any token ids, without special tokens."""
        return str(self._tokenizer.decode(list(token_ids), skip_special_tokens=True))


def local_policy(config: LocalModelConfig) -> Policy:
    """The model and the tokenizer of a folder, on their device; nothing is downloaded.
    ConfigurationError: the folder does not hold them, they have no end marker, or there is no such
        device."""
    device = _device(config.device)
    model, tokenizer = load_folder(config)
    named = None
    if model.generation_config is not None:
        named = model.generation_config.eos_token_id
    markers = [*(named if isinstance(named, list) else [named]), tokenizer.eos_token_id]
    eos_token_ids = tuple(dict.fromkeys(marker for marker in markers if marker is not None))
    if not eos_token_ids:
        raise ConfigurationError(
            f"Neither the model nor the tokenizer in {config.path} names an end marker."
        )
    nn.Module.to(model, device)
    # Completions of a large vocabulary share few beginnings: each is read by itself.
    return Policy(model, ModelTokenizer(tokenizer, eos_token_ids), shared_beginnings=False)


def load_folder(config: LocalModelConfig) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The model, on the CPU, and its tokenizer; nothing is downloaded. ConfigurationError: the
    folder does not hold them."""
    if not Path(config.path).is_dir():
        raise ConfigurationError(
            f"model must be a folder with a model and its tokenizer, got {config.path!r}."
        )
    try:
        tokenizer = AutoTokenizer.from_pretrained(config.path, local_files_only=True)
        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
            config.path, dtype=getattr(torch, config.dtype), local_files_only=True
        )
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"{config.path} can't be loaded as a causal language model: {error}"
        ) from error
    return model, tokenizer


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ConfigurationError(f"device {name!r} can't be used: {error}") from error
    return device
