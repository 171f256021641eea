"""A random number for each token that depends on nothing but seed, step, rank and position.

Counted, not drawn: the run's own random numbers stay as they are, and the same step decides the same again.
"""

from __future__ import annotations

import torch
from torch import Tensor

_WORD = 1 << 64
_ODD = 0x9E3779B97F4A7C15
_MIXERS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1))
"""The rounds of splitmix64: shift right, exclusive or, multiply."""


def token_draw(seed: int, step: int, rank: int, positions: Tensor) -> Tensor:
    """Uniform in [0, 1), float64, one per position.

    Args:
        positions: int64, of the tokens within the step on this rank.
    """
    key = 0
    for number in (seed, step, rank):
        key = _mixed((key + number + 1) * _ODD % _WORD)
    words = positions.long() * _signed(_ODD) + _signed(key)
    for shift, multiplier in _MIXERS:
        # `>>` copies the sign bit down; the mask takes the copies away.
        words = (words ^ ((words >> shift) & ((1 << (64 - shift)) - 1))) * _signed(multiplier)
    return ((words >> 11) & ((1 << 53) - 1)).double() / float(1 << 53)


def positions_of(mask: Tensor, first: int) -> Tensor:
    """0, 1, 2 ... in the order of the tokens from `first` on, of the mask's shape."""
    return torch.arange(first, first + mask.numel(), device=mask.device).reshape(mask.shape)


def _mixed(word: int) -> int:
    for shift, multiplier in _MIXERS:
        word = (word ^ (word >> shift)) * multiplier % _WORD
    return word


def _signed(word: int) -> int:
    """The int64 with the same bits."""
    return word - _WORD if word >= _WORD // 2 else word
