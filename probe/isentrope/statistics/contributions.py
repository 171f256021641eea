"""The tokens of a step that count most: the largest |r A S_c|, with what is needed to see why.

A token that an intervention left out is among them too, and says so: its contribution is what it would have been.

The text a tokenizer has for their ids.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from isentrope.errors import ConfigurationError
from isentrope.guard import Guard
from isentrope.statistics.tokens import StepTokens, TokenBatch, flat
from isentrope_wire.reports import DrivingToken

MOST = 16
"""How many tokens a step names."""

TEXT_CHARACTERS = 40
"""Of a token's text; 16 tokens then stay below 4 KiB whatever their script."""

_FIELDS = 10
NUMBERS = MOST * _FIELDS
"""Length of the vector of `measure_driving_tokens`."""


def measure_driving_tokens(tokens: StepTokens, batches: Sequence[TokenBatch]) -> Tensor:
    """This rank's MOST tokens by |r A S_c| as one float64 vector, on the device; read it with `read_driving_tokens`."""
    sizes = tokens.effects.abs() - tokens.behind_all
    chosen = sizes.topk(min(MOST, sizes.numel())).indices
    centred, _, entropies, _, logprobs, advantages, *_, valid, effects = tokens.values.index_select(1, chosen).unbind()
    plain = all(batch.keep_mask is batch.mask for batch in batches)
    kept = valid if plain else flat([batch.keep_mask for batch in batches]).index_select(0, chosen)
    places = _places(batches, chosen)
    rows = [effects, *places, logprobs, entropies, centred, advantages, kept, valid]
    found = torch.stack(rows, dim=1).reshape(-1)
    return found if len(found) == NUMBERS else torch.cat([found, found.new_zeros(NUMBERS - len(found))])


def read_driving_tokens(
    ranks: Sequence[tuple[int, Sequence[float]]], text_of: Callable[[int], str | None] = lambda token_id: None
) -> tuple[DrivingToken, ...]:
    """The MOST tokens of all ranks, largest first.

    Args:
        ranks: rank and its vector.
        text_of: what a token id stands for; None: not known.
    """
    found = [
        (rank, numbers[first : first + _FIELDS])
        for rank, numbers in ranks
        for first in range(0, len(numbers), _FIELDS)
        if numbers[first + _FIELDS - 1]
    ]
    found.sort(key=lambda one: -abs(one[1][0]))
    return tuple(_token(rank, numbers, text_of) for rank, numbers in found[:MOST])


def _token(rank: int, numbers: Sequence[float], text_of: Callable[[int], str | None]) -> DrivingToken:
    effect, token_id, sequence, position, logprob, entropy, score, advantage, kept, _ = numbers
    text = text_of(int(token_id)) if token_id >= 0 else None
    return DrivingToken(
        rank=rank,
        sequence=int(sequence) if sequence >= 0 else None,
        position=int(position),
        token_id=int(token_id) if token_id >= 0 else None,
        # Half a character can't be written to the spool.
        text=None if text is None else text[:TEXT_CHARACTERS].encode(errors="replace").decode(),
        logprob=logprob,
        entropy=entropy,
        vocab_centered_score=score,
        advantage=advantage,
        contribution=-effect,
        kept=bool(kept),
    )


def _places(batches: Sequence[TokenBatch], chosen: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Token id, sequence and position of the chosen tokens, -1 where it is not known; made on the device.

    Args:
        chosen: places in the step's vector of tokens.
    """
    batches = [batch for batch in batches if batch.mask.numel()]
    ids = unknown = torch.full_like(chosen, -1)
    if any(batch.token_ids is not None for batch in batches):
        ids = flat([_or_unknown(batch.token_ids, batch.mask) for batch in batches]).index_select(0, chosen)
    widths = {batch.mask.shape[-1] if batch.mask.dim() == 2 else 0 for batch in batches}
    if len(widths) == 1 and (width := widths.pop()):
        return ids, chosen // width, chosen % width
    if len(batches) == 1:
        return ids, unknown, chosen
    sequences, positions, sequences_before = [], [], 0
    for batch in batches:
        rows, width = batch.mask.shape if batch.mask.dim() == 2 else (0, batch.mask.numel())
        index = torch.arange(batch.mask.numel(), device=chosen.device)
        sequences.append(index // width + sequences_before if rows else torch.full_like(index, -1))
        positions.append(index % width)
        sequences_before += rows
    return ids, torch.cat(sequences).index_select(0, chosen), torch.cat(positions).index_select(0, chosen)


def _or_unknown(token_ids: Tensor | None, mask: Tensor) -> Tensor:
    return torch.full_like(mask, -1, dtype=torch.int64) if token_ids is None else token_ids.long()


logger = logging.getLogger(__name__)


class Tokenizer(Protocol):
    """What is asked of a tokenizer."""

    def decode(self, token_ids: Sequence[int]) -> str: ...


class TokenTexts:
    """Text of token ids; None without a tokenizer, or where it fails."""

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        """
        Raises:
            ConfigurationError: the tokenizer has no `decode`.
        """
        if tokenizer is not None and not callable(getattr(tokenizer, "decode", None)):
            raise ConfigurationError(
                f"tokenizer must have decode([id]) -> str, got {type(tokenizer).__name__}. Leave it out to see ids only."
            )
        self._tokenizer = tokenizer
        self._guard = Guard()

    def __call__(self, token_id: int) -> str | None:
        if self._tokenizer is None or self._guard.failures:
            return None
        with self._guard.protect("naming tokens"):
            text = self._tokenizer.decode([token_id])
            return text if isinstance(text, str) else None
        return None
