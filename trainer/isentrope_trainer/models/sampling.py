"""Sampling completions: batched, with a key-value cache, from a generator of its own.

Completions that began alike go on from one and the same distribution, which is computed once.
"""

from __future__ import annotations

import copy
import inspect
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel


@dataclass(frozen=True, slots=True, eq=False)
class Rollouts:
    """A batch of sampled completions; the group of prompt i are the rows i * group_size and
    following."""

    prompts: Tensor
    """int64 [prompts, prompt length], padded on the left."""
    prompt_mask: Tensor
    """bool [prompts, prompt length]: False on padding."""
    completions: Tensor
    """int64 [rollouts, completion length], padded on the right after the end marker."""
    mask: Tensor
    """bool [rollouts, completion length]: True up to and including the end marker."""
    sampler_logprobs: Tensor
    """float [rollouts, completion length]: log-probabilities the tokens were drawn with, in nats; 0
    on padding."""
    group_size: int
    answers: tuple[str, ...] = ()
    """The expected one of each prompt; empty where they are not known."""
    truncated: Tensor | None = None
    """bool [rollouts]: the length limit cut it; None: not known."""

    def select_prompts(self, indices: Tensor) -> Rollouts:
        """The rollouts of these prompts (int64 indices), in this order."""
        rows = self.rows_of_prompts(indices)
        return Rollouts(
            self.prompts[indices],
            self.prompt_mask[indices],
            self.completions[rows],
            self.mask[rows],
            self.sampler_logprobs[rows],
            self.group_size,
            tuple(self.answers[index] for index in indices.tolist()) if self.answers else (),
            None if self.truncated is None else self.truncated[rows],
        )

    def samples(self) -> dict[str, Tensor | list[str]]:
        """What is known of each rollout, as `Probe.gate` takes it."""
        ids = self.prompts.masked_fill(~self.prompt_mask, -1).repeat_interleave(
            self.group_size, dim=0
        )
        known: dict[str, Tensor | list[str]] = {"prompt_ids": ids}
        if self.answers:
            known["answer"] = [answer for answer in self.answers for _ in range(self.group_size)]
        if self.truncated is not None:
            known["truncated"] = self.truncated
        return known

    def rows_of_prompts(self, indices: Tensor) -> Tensor:
        """The rows, int64 [len(indices) * group size], that `select_prompts` takes."""
        return (
            indices[:, None] * self.group_size
            + torch.arange(self.group_size, device=indices.device)
        ).flatten()


def left_padded(prompts: Sequence[Sequence[int]], pad_id: int) -> tuple[Tensor, Tensor]:
    """Prompts of different lengths as token ids [prompts, length of the longest], and their mask,
    False on padding."""
    longest = max(map(len, prompts))
    padded = [[pad_id] * (longest - len(prompt)) + list(prompt) for prompt in prompts]
    counted = [[False] * (longest - len(prompt)) + [True] * len(prompt) for prompt in prompts]
    return torch.tensor(padded), torch.tensor(counted)


@torch.no_grad()
def sample_rollouts(
    model: PreTrainedModel,
    prompts: Tensor,
    prompt_mask: Tensor,
    group_size: int,
    generator: torch.Generator,
    *,
    temperature: float,
    max_tokens: int,
    pad_id: int,
    eos_ids: Collection[int],
) -> Rollouts:
    """Sample `group_size` completions for each prompt, int64 [prompts, prompt length] padded on the
    left; the mask is False there. The logits are divided by the temperature; the trainer must score
    with the same one. A completion has at most `max_tokens`, its end marker included, which is one
    of `eos_ids`."""
    vocabulary = model.config.vocab_size
    prompt_of_beginning = torch.arange(len(prompts), device=prompts.device)
    beginning_of_row = prompt_of_beginning.repeat_interleave(group_size)
    cache = read_prompts(model, prompts, prompt_mask)
    next_to_read = prompts[:, -1]
    unfinished = torch.ones_like(beginning_of_row, dtype=torch.bool)
    ends = torch.tensor(list(eos_ids), device=prompts.device)
    tokens, masks, logprobs = [], [], []
    for position in range(max_tokens):
        places = _places(prompt_mask, prompt_of_beginning, position)
        logits = model(
            input_ids=next_to_read[:, None], **_cache_argument(model, cache), **places
        ).logits[:, -1]
        distribution = torch.log_softmax(logits.float() / temperature, dim=-1)[beginning_of_row]
        drawn = torch.multinomial(distribution.exp(), 1, generator=generator)
        last_tokens = torch.where(unfinished, drawn[:, 0], pad_id)
        tokens.append(last_tokens)
        masks.append(unfinished)
        logprobs.append(torch.where(unfinished, distribution.gather(1, drawn)[:, 0], 0.0))
        unfinished = unfinished & ~torch.isin(last_tokens, ends)
        if not unfinished.any():
            break
        beginnings = beginning_of_row[unfinished] * vocabulary + last_tokens[unfinished]
        distinct, place = beginnings.unique(return_inverse=True)
        parents = distinct // vocabulary
        cache.batch_select_indices(parents)
        prompt_of_beginning = prompt_of_beginning[parents]
        next_to_read = distinct % vocabulary
        beginning_of_row = torch.zeros_like(beginning_of_row).masked_scatter(unfinished, place)
    return Rollouts(
        prompts=prompts,
        prompt_mask=prompt_mask,
        completions=torch.stack(tokens, dim=1),
        mask=torch.stack(masks, dim=1),
        sampler_logprobs=torch.stack(logprobs, dim=1),
        group_size=group_size,
        truncated=unfinished,
    )


def read_prompts(model: PreTrainedModel, prompts: Tensor, prompt_mask: Tensor) -> DynamicCache:
    """The attention cache of prompts, int64 [prompts, prompt length] padded on the left, without
    their last tokens. Gradients flow through."""
    cache = DynamicCache(config=model.config)
    known: dict[str, Any] = {}
    if not prompt_mask.all():
        seen = prompt_mask[:, :-1]
        known = {"attention_mask": seen, "position_ids": positions(seen)}
    model.base_model(input_ids=prompts[:, :-1], **_cache_argument(model, cache), **known)
    return cache


def _cache_argument(model: PreTrainedModel, cache: DynamicCache) -> dict[str, DynamicCache]:
    """From transformers 5.24 on the argument has another name."""
    return {
        (
            "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
        ): cache
    }


def positions(seen: Tensor) -> Tensor:
    """Positions of tokens that are padded on the left, int64 [rows, tokens]: 0 at the first that
    counts, and on padding."""
    return (seen.cumsum(dim=1) - 1).clamp(min=0)


def _places(prompt_mask: Tensor, prompt_of_row: Tensor, drawn: int) -> dict[str, Tensor]:
    """What the model must know to read each row's next token after its prompt and `drawn` tokens;
    nothing without padding."""
    if prompt_mask.all():
        return {}
    seen = torch.nn.functional.pad(prompt_mask[prompt_of_row], (0, drawn), value=True)
    return {"attention_mask": seen, "position_ids": positions(seen)[:, -1:]}


class StaleSampler:
    """Weights as they were some updates ago, to sample with."""

    def __init__(self, model: PreTrainedModel, lag: int) -> None:
        """The weights are `lag` updates old; that many copies of them, and one, are kept."""
        self.model = copy.deepcopy(model).eval().requires_grad_(False)
        self._weights = deque([_copy_of(model)], maxlen=lag + 1)

    def follow(self, model: PreTrainedModel) -> None:
        """Note the weights after an update."""
        self._weights.append(_copy_of(model))
        self.model.load_state_dict(self._weights[0])

    def state_dict(self) -> list[dict[str, Tensor]]:
        return list(self._weights)

    def load_state_dict(self, state: Sequence[dict[str, Tensor]]) -> None:
        self._weights.extend(state)
        self.model.load_state_dict(self._weights[0])


def _copy_of(model: PreTrainedModel) -> dict[str, Tensor]:
    return {name: weights.detach().clone() for name, weights in model.state_dict().items()}
