"""The policy: a causal language model with its tokenizer, behind the three calls that training makes of it.

    rollouts = policy.sample(prompts, group_size, generator, temperature=1.0, max_tokens=8)
    texts = policy.texts(rollouts)
    logits = policy.logits(rollouts)

`build_policy` makes the reference model: small, Llama-shaped, over the words of the countdown task.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from isentrope_trainer.models.prefix_tree import prefix_tree, tree_logits
from isentrope_trainer.models.sampling import positions, read_prompts, sample_rollouts
from isentrope_trainer.rollout import Rollouts, left_padded
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


class TextTokenizer(Protocol):
    """What a policy needs of its tokenizer; named as `transformers` names it."""

    pad_token_id: int
    eos_token_id: int

    def encode(self, text: str) -> list[int]: ...

    def decode(self, token_ids: Sequence[int]) -> str: ...


class Policy:
    """A language model that is sampled from and scored."""

    def __init__(self, model: PreTrainedModel, tokenizer: TextTokenizer) -> None:
        self.model = model
        self.tokenizer = tokenizer

    def sample(
        self,
        prompts: Sequence[str],
        group_size: int,
        generator: torch.Generator,
        *,
        temperature: float = 1.0,
        max_tokens: int,
        model: PreTrainedModel | None = None,
    ) -> Rollouts:
        """Sample `group_size` completions for each prompt.

        Args:
            generator: on the model's device; the same state gives the same completions.
            temperature: the logits are divided by it; scores must be taken with the same one.
            max_tokens: of a completion, its end marker included.
            model: other weights to sample from. Default: the policy's own.
        """
        model = self.model if model is None else model
        token_ids, mask = left_padded(
            [self.tokenizer.encode(prompt) for prompt in prompts], self.tokenizer.pad_token_id
        )
        return sample_rollouts(
            model,
            token_ids.to(model.device),
            mask.to(model.device),
            group_size,
            generator,
            temperature=temperature,
            max_tokens=max_tokens,
            pad_id=self.tokenizer.pad_token_id,
            eos_id=self.tokenizer.eos_token_id,
        )

    def texts(self, rollouts: Rollouts) -> list[str | None]:
        """The completions' texts without their end markers; None for one that the length limit ended."""
        texts: list[str | None] = []
        for token_ids, mask in zip(rollouts.completions.tolist(), rollouts.mask.tolist(), strict=True):
            *content, last = token_ids[: sum(mask)]
            texts.append(self.tokenizer.decode(content) if last == self.tokenizer.eos_token_id else None)
        return texts

    def logits(self, rollouts: Rollouts, *, model: PreTrainedModel | None = None) -> Tensor:
        """Logits of the distributions that the completions' tokens were drawn from.

        Args:
            model: other weights to read with, such as a frozen reference. Default: the policy's own.

        Returns:
            [rollouts, completion length, vocabulary]; row t belongs to token t of the completion.
        """
        model = self.model if model is None else model
        if isinstance(model, LlamaForCausalLM):
            return tree_logits(model, rollouts, prefix_tree(rollouts, model.config.vocab_size))
        return padded_logits(model, rollouts)


def padded_logits(model: PreTrainedModel, rollouts: Rollouts) -> Tensor:
    """As `Policy.logits`, each completion read by itself after its prompt: for any causal language model."""
    prompts, prompt_mask = (
        part.repeat_interleave(rollouts.group_size, dim=0) for part in (rollouts.prompts, rollouts.prompt_mask)
    )
    seen = torch.cat([prompt_mask, rollouts.mask], dim=1)
    logits: Tensor = model(
        input_ids=torch.cat([prompts, rollouts.completions], dim=1),
        attention_mask=seen,
        position_ids=positions(seen),
        use_cache=False,
        logits_to_keep=rollouts.completions.shape[1] + 1,
    ).logits
    # Offset by one: reading a token gives the distribution of the next, and nothing follows the last.
    return logits[:, :-1]


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
    cache = read_prompts(policy, prompts, torch.ones_like(prompts, dtype=torch.bool))
    cache.batch_select_indices(distinct_rows[:, 0])
    # Offset by one: reading a token gives the distribution of the next, and nothing follows the last.
    last_prompt_tokens = prompts[distinct_rows[:, 0], -1:]
    token_ids = torch.cat([last_prompt_tokens, distinct_rows[:, 1:-1]], dim=1)
    logits: Tensor = policy(input_ids=token_ids, past_key_values=cache).logits
    return logits.index_select(0, place_of_row)
