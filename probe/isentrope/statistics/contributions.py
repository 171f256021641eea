"""Top contributing tokens of a step: the largest |g S_c|, each with its id, its text and the numbers that explain it.

A clipped token is among them too, marked as clipped: its contribution is what it would have been.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor

from isentrope.errors import ConfigurationError
from isentrope.guard import Guard
from isentrope.statistics.moments import flat
from isentrope.statistics.sums import Sum
from isentrope.statistics.tokens import StepTokens, TokenBatch
from isentrope_wire.reports import DrivingToken

logger = logging.getLogger(__name__)

MOST = 16
"""How many tokens a step names."""

TEXT_CHARACTERS = 40
"""Of a token's text; 16 tokens then stay below 4 KiB whatever their script."""

_FIELDS = ("g S_c", "token_id", "sequence", "position", "log p", "H", "S_c", "A", "kept", "valid")
"""Of each token in the vector; -1 where id, sequence or position is not known."""


def top_tokens(tokens: StepTokens) -> Tensor:
    """The _FIELDS of this rank's MOST tokens by |g S_c|; zeros where it has fewer."""
    sizes = tokens.effects.abs() - tokens.behind_all
    chosen = sizes.topk(min(MOST, sizes.numel())).indices
    rows = tokens.of(chosen) | _places(tokens.batches, chosen)
    rows["kept"] = rows["valid"] if tokens.factors is None else tokens.kept.index_select(0, chosen)
    found = torch.stack([rows[name] for name in _FIELDS], dim=1).reshape(-1)
    size = MOST * len(_FIELDS)
    return found if len(found) == size else torch.cat([found, found.new_zeros(size - len(found))])


def _read(numbers: Sequence[float], rank: int) -> tuple[DrivingToken, ...]:
    rows = [
        dict(zip(_FIELDS, numbers[first : first + len(_FIELDS)], strict=True))
        for first in range(0, len(numbers), len(_FIELDS))
    ]
    return tuple(
        DrivingToken(
            rank=rank,
            sequence=int(row["sequence"]) if row["sequence"] >= 0 else None,
            position=int(row["position"]),
            token_id=int(row["token_id"]) if row["token_id"] >= 0 else None,
            text=None,
            logprob=row["log p"],
            entropy=row["H"],
            vocab_centered_score=row["S_c"],
            advantage=row["A"],
            contribution=-row["g S_c"],
            kept=bool(row["kept"]),
        )
        for row in rows
        if row["valid"]
    )


def _largest(*ranks: tuple[DrivingToken, ...]) -> tuple[DrivingToken, ...]:
    found = sorted((token for tokens in ranks for token in tokens), key=lambda token: -abs(token.contribution))
    return tuple(found[:MOST])


TOP_TOKENS = Sum(size=MOST * len(_FIELDS), measure=top_tokens, read=_read, merge=_largest)
"""The MOST tokens of all ranks, largest first; without their texts."""


def with_texts(
    tokens: Sequence[DrivingToken], scale: float, text_of: Callable[[int], str | None]
) -> tuple[DrivingToken, ...]:
    """The same tokens with the text of their ids.

    Args:
        scale: Factor of their contributions (`StepSums.scale`).
        text_of: The text that a token id stands for; None: not known.
    """

    def text(token_id: int | None) -> str | None:
        found = None if token_id is None else text_of(token_id)
        # Half a character can't be written to the spool.
        return None if found is None else found[:TEXT_CHARACTERS].encode(errors="replace").decode()

    return tuple(replace(token, contribution=scale * token.contribution, text=text(token.token_id)) for token in tokens)


def _places(batches: Sequence[TokenBatch], chosen: Tensor) -> dict[str, Tensor]:
    """Token id, sequence and position of the chosen tokens, -1 where not known; made on the device.

    Args:
        chosen: Which tokens of the step.
    """
    batches = [batch for batch in batches if batch.mask.numel()]
    ids = unknown = torch.full_like(chosen, -1)
    if any(batch.token_ids is not None for batch in batches):
        ids = flat([_or_unknown(batch.token_ids, batch.mask) for batch in batches]).index_select(0, chosen)
    widths = {batch.mask.shape[-1] if batch.mask.dim() == 2 else 0 for batch in batches}
    if len(widths) == 1 and (width := widths.pop()):
        return {"token_id": ids, "sequence": chosen // width, "position": chosen % width}
    if len(batches) == 1:
        return {"token_id": ids, "sequence": unknown, "position": chosen}
    sequences, positions, sequences_before = [], [], 0
    for batch in batches:
        rows, width = batch.mask.shape if batch.mask.dim() == 2 else (0, batch.mask.numel())
        index = torch.arange(batch.mask.numel(), device=chosen.device)
        sequences.append(index // width + sequences_before if rows else torch.full_like(index, -1))
        positions.append(index % width)
        sequences_before += rows
    sequence, position = (torch.cat(parts).index_select(0, chosen) for parts in (sequences, positions))
    return {"token_id": ids, "sequence": sequence, "position": position}


def _or_unknown(token_ids: Tensor | None, mask: Tensor) -> Tensor:
    return torch.full_like(mask, -1, dtype=torch.int64) if token_ids is None else token_ids.long()


class Tokenizer(Protocol):
    """The part of a tokenizer that is used."""

    def decode(self, token_ids: Sequence[int]) -> str: ...


class TokenTexts:
    """Text of token ids; None without a tokenizer, or where it fails."""

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        """
        Args:
            tokenizer: None: no texts.

        Raises:
            ConfigurationError: The tokenizer has no `decode`.
        """
        if tokenizer is not None and not callable(getattr(tokenizer, "decode", None)):
            raise ConfigurationError(
                f"tokenizer must have decode([id]) -> str, got {type(tokenizer).__name__}. Pass none to see ids only."
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
