"""The policy: a causal language model with its tokenizer, behind the three calls that training makes of it.

rollouts = policy.sample(prompts, group_size, generator, temperature=1.0, max_tokens=8)
texts = policy.texts(rollouts)
logits = policy.logits(rollouts)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor
from transformers import LlamaForCausalLM, PreTrainedModel

from isentrope_trainer.models.prefix_tree import prefix_tree, tree_logits
from isentrope_trainer.models.sampling import positions, sample_rollouts
from isentrope_trainer.rollout import Rollouts, left_padded


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
