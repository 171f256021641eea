"""The observed change: a bounded sample of a step's tokens, scored once more after the optimiser's update."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from isentrope.scores import TokenScores


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """The sequences of one `gate` call, as TRL holds them: prompt [rows, prompt], completion [rows, completion]."""

    prompt_ids: Tensor
    prompt_mask: Tensor
    completion_ids: Tensor
    completion_mask: Tensor
    text_only: bool
    """False: images came along; such sequences are not sampled."""

    @classmethod
    def of(cls, inputs: Mapping[str, Any]) -> MicroBatch:
        """The sequences among what TRL's loss is given."""
        return cls(
            prompt_ids=inputs["prompt_ids"],
            prompt_mask=inputs["prompt_mask"],
            completion_ids=inputs["completion_ids"],
            completion_mask=inputs["completion_mask"],
            text_only=inputs.get("pixel_values") is None,
        )


def default_tokens(batches: Sequence[MicroBatch]) -> int:
    """A sixteenth of the step: about a fiftieth of its forward and backward passes. At least one sequence."""
    sizes = [batch.prompt_ids.numel() + batch.completion_ids.numel() for batch in batches]
    longest = max((batch.prompt_ids.shape[1] + batch.completion_ids.shape[1] for batch in batches), default=0)
    return max(sum(sizes) // 16, longest)


@dataclass(frozen=True, slots=True)
class Sample:
    """Which sequences are scored again: the first `rows[i]` of micro-batch i, and `completion` tokens of each."""

    rows: tuple[int, ...]
    completion: int

    @classmethod
    def of(cls, batches: Sequence[MicroBatch], step: int, tokens: int) -> Sample | None:
        """The most sequences that `tokens` tokens, prompt and padding included, have room for; None when none has.

        It starts with another micro-batch each step and takes those of the same width, so that one forward does. TRL
        has shuffled the sequences: the first are as good as any. Where not even one fits, its end is cut off.
        """
        turn = [(step + offset) % len(batches) for offset in range(len(batches))]
        first = next((index for index in turn if batches[index].text_only), None)
        if first is None:
            return None
        prompt, completion = (part.shape[1] for part in (batches[first].prompt_ids, batches[first].completion_ids))
        room = max(1, tokens // (prompt + completion))
        rows = [0] * len(batches)
        for index in turn:
            batch = batches[index]
            if batch.text_only and (batch.prompt_ids.shape[1], batch.completion_ids.shape[1]) == (prompt, completion):
                rows[index] = min(room - sum(rows), batch.completion_ids.shape[0])
        completion = min(completion, tokens - prompt)
        return cls(tuple(rows), completion) if completion > 0 else None

    def forward_inputs(self, batches: Sequence[MicroBatch]) -> tuple[Tensor, Tensor, int]:
        """Input ids and attention mask [rows, prompt + completion], and how many tokens at the end are completion."""
        chosen = [(batch, rows) for batch, rows in zip(batches, self.rows, strict=True) if rows]
        ids, mask = (
            torch.cat(
                [
                    torch.cat([getattr(batch, prompt)[:rows], getattr(batch, completion)[:rows, : self.completion]], 1)
                    for batch, rows in chosen
                ]
            )
            for prompt, completion in (("prompt_ids", "completion_ids"), ("prompt_mask", "completion_mask"))
        )
        return ids, mask, self.completion

    def spread(self, entropies: Tensor, batches: Sequence[MicroBatch]) -> list[TokenScores]:
        """Scores of every `gate` call's tokens, NaN outside the sample, from the sample's entropies [rows, completion]."""
        parts = iter(entropies.split([rows for rows in self.rows if rows]))
        return [
            _entropies_only(batch.completion_ids, next(parts) if rows else None)
            for batch, rows in zip(batches, self.rows, strict=True)
        ]


def _entropies_only(completion_ids: Tensor, entropies: Tensor | None) -> TokenScores:
    missing = torch.full(completion_ids.shape, torch.nan, device=completion_ids.device)
    known = missing
    if entropies is not None:
        known = missing.to(entropies.dtype, copy=True)
        known[: entropies.shape[0], : entropies.shape[1]] = entropies
    return TokenScores(missing, known, missing, missing, missing)


@contextmanager
def as_in_training(model: nn.Module) -> Iterator[None]:
    """Dropout as in the forward that was scored first. After an evaluation the model is in eval mode until the next step."""
    evaluating = [module for module in model.modules() if not module.training] if not model.training else []
    for module in evaluating:
        module.training = True
    try:
        yield
    finally:
        for module in evaluating:
            module.training = False
