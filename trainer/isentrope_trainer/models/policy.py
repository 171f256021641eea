"""The policy: a causal language model with its tokenizer, behind the three calls that training makes of it.

rollouts = policy.sample(prompts, group_size, generator, temperature=1.0, max_tokens=8)
texts = policy.texts(rollouts)
logprobs = policy.logprobs(rollouts)
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from transformers import LlamaForCausalLM, PreTrainedModel

from isentrope_trainer.models.prefix_tree import prefix_tree, tree_hidden
from isentrope_trainer.models.sampling import positions, sample_rollouts
from isentrope_trainer.rollout import Rollouts, left_padded


class TextTokenizer(Protocol):
    """What a policy needs of its tokenizer; named as `transformers` names it."""

    pad_token_id: int

    @property
    def eos_token_ids(self) -> Collection[int]:
        """Each ends a completion."""

    def encode(self, text: str) -> list[int]: ...

    def decode(self, token_ids: Sequence[int]) -> str: ...


@dataclass(frozen=True, slots=True, eq=False)
class Reading:
    """What a model makes of completions; row t of both belongs to the place that token t was drawn at."""

    logits: Tensor
    """[rollouts, completion length, vocabulary]."""
    hidden: Tensor | None = None
    """[rollouts, completion length, width], the last hidden states, where they were asked for."""


class Policy:
    """A language model that is sampled from and scored."""

    def __init__(self, model: PreTrainedModel, tokenizer: TextTokenizer, *, shared_beginnings: bool = True) -> None:
        """`shared_beginnings`: read what a prompt's completions share once, where the model's form allows it. Worth it
        for short completions of few words.
        """
        self.model = model
        self.tokenizer = tokenizer
        self._shared_beginnings = shared_beginnings

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
        """Sample `group_size` completions for each prompt, at most `max_tokens` long with their end marker, with the
        policy's weights or the model's.

        The logits are divided by the temperature, with which scores must be taken, too. The generator is on the model's
        device.
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
            eos_ids=self.tokenizer.eos_token_ids,
        )

    def texts(self, rollouts: Rollouts) -> list[str | None]:
        """The completions' texts without their end markers; None for one that the length limit ended."""
        texts: list[str | None] = []
        for token_ids, mask in zip(rollouts.completions.tolist(), rollouts.mask.tolist(), strict=True):
            *content, last = token_ids[: sum(mask)]
            texts.append(self.tokenizer.decode(content) if last in self.tokenizer.eos_token_ids else None)
        return texts

    def read(self, rollouts: Rollouts, *, model: PreTrainedModel | None = None, hidden: bool = False) -> Reading:
        """The distributions that the completions' tokens were drawn from, read with the policy's weights or those of a
        model such as a frozen reference.
        """
        model = self.model if model is None else model
        if self._shared_beginnings and isinstance(model, LlamaForCausalLM):
            return tree_reading(model, rollouts, hidden=hidden)
        return padded_reading(model, rollouts, hidden=hidden)

    def logprobs(self, rollouts: Rollouts, *, temperature: float = 1.0, model: PreTrainedModel | None = None) -> Tensor:
        """Log-probs of the sampled tokens, differentiable, in nats: [rollouts, completion length]; any number on
        padding. The logits are divided by the temperature.
        """
        logits = self.read(rollouts, model=model).logits.float() / temperature
        return torch.log_softmax(logits, dim=-1).gather(-1, rollouts.completions[..., None])[..., 0]


def tree_reading(model: LlamaForCausalLM, rollouts: Rollouts, *, hidden: bool = False) -> Reading:
    """As `Policy.read`, every distinct beginning of a prompt's completions read once."""
    tree = prefix_tree(rollouts, model.config.vocab_size)
    of_nodes = tree_hidden(model, rollouts, tree)
    logits = tree.of_tokens(model.lm_head(of_nodes))
    return Reading(logits, tree.of_tokens(of_nodes) if hidden else None)


def padded_reading(model: PreTrainedModel, rollouts: Rollouts, *, hidden: bool = False) -> Reading:
    """As `Policy.read`, each completion read by itself after its prompt: for any causal language model."""
    prompts, prompt_mask = (
        part.repeat_interleave(rollouts.group_size, dim=0) for part in (rollouts.prompts, rollouts.prompt_mask)
    )
    seen = torch.cat([prompt_mask, rollouts.mask], dim=1)
    kept = rollouts.completions.shape[1] + 1
    output = model(
        input_ids=torch.cat([prompts, rollouts.completions], dim=1),
        attention_mask=seen,
        position_ids=positions(seen),
        use_cache=False,
        logits_to_keep=kept,
        output_hidden_states=hidden,
    )
    # Offset by one: reading a token gives the distribution of the next, and nothing follows the last.
    return Reading(output.logits[:, :-1], output.hidden_states[-1][:, -kept:-1] if hidden else None)


class ValueHead(nn.Linear):
    """Estimates the reward to come from the policy's last hidden states: [..., width] -> [...]. It begins at 0."""

    def __init__(self, width: int) -> None:
        super().__init__(width, 1)
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(self, hidden: Tensor) -> Tensor:
        return super().forward(hidden).squeeze(-1)
