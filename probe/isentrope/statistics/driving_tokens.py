"""The tokens of a step that count most: the largest |r A S_c|, with what is needed to see why.

A token that an intervention left out is among them too, and says so: its contribution is what it would have been.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from isentrope.statistics.step_tokens import StepTokens
from isentrope.statistics.token_ledger import TokenBatch, flat
from isentrope_wire.messages import DrivingToken

MOST = 16
"""How many tokens a step names."""

TEXT_CHARACTERS = 40
"""Of a token's text; 16 tokens then stay below 4 KiB whatever their script."""

_FIELDS = 10
NUMBERS = MOST * _FIELDS
"""Length of the vector of `measure_driving_tokens`."""


def measure_driving_tokens(tokens: StepTokens, batches: Sequence[TokenBatch]) -> Tensor:
    """This rank's MOST tokens by |r A S_c| as one float64 vector, on the device; read it with `read_driving_tokens`."""
    contributions = -tokens.update_ratios * tokens.advantages * tokens.vocab_centered_scores
    sizes = torch.where(tokens.valid, contributions.abs(), -1.0)
    columns = torch.stack(
        [
            contributions,
            *_places(batches),
            tokens.logprobs,
            tokens.entropies,
            tokens.vocab_centered_scores,
            tokens.advantages,
            flat([batch.keep_mask for batch in batches]).double(),
            tokens.valid.double(),
        ],
        dim=1,
    )
    chosen = columns.index_select(0, sizes.topk(min(MOST, sizes.numel())).indices).reshape(-1)
    return torch.cat([chosen, chosen.new_zeros(NUMBERS - chosen.numel())])


def no_driving_tokens(device: torch.device | None = None) -> Tensor:
    """The vector of a rank without tokens."""
    return torch.zeros(NUMBERS, dtype=torch.float64, device=device)


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
    contribution, token_id, sequence, position, logprob, entropy, score, advantage, kept, _ = numbers
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
        contribution=contribution,
        kept=bool(kept),
    )


def _places(batches: Sequence[TokenBatch]) -> tuple[Tensor, Tensor, Tensor]:
    """Token id, sequence and position of every token, -1 where it is not known; made on the device."""
    ids, sequences, positions, sequences_before = [], [], [], 0
    for batch in batches:
        mask = batch.mask
        width = mask.shape[-1] if mask.dim() == 2 else max(mask.numel(), 1)
        index = torch.arange(mask.numel(), dtype=torch.float64, device=mask.device)
        unknown = torch.full_like(index, -1.0)
        ids.append(unknown if batch.token_ids is None else batch.token_ids.reshape(-1).double())
        sequences.append((index / width).floor() + sequences_before if mask.dim() == 2 else unknown)
        positions.append(index % width)
        sequences_before += mask.shape[0] if mask.dim() == 2 else 0
    return torch.cat(ids), torch.cat(sequences), torch.cat(positions)
