"""Slices of a vocabulary add up to the whole, in any order and any split."""

from __future__ import annotations

import functools
import itertools
import math
import random

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from isentrope.kernels import reference
from isentrope.kernels.moments import Moments, RowScores, concatenated, finish, merge
from tests.probe.kernels.numerics import numbers_of


def slices(
    logits: Tensor, token_ids: Tensor, cuts: list[int], temperature: float = 1.0
) -> list[Moments]:
    edges = [0, *sorted(cuts), logits.shape[-1]]
    return [
        reference.row_moments(logits[:, start:end], token_ids, temperature, start, squared=True)
        for start, end in itertools.pairwise(edges)
        if end > start
    ]


def assert_same(left: RowScores, right: RowScores, tolerance: float) -> None:
    for a, b in zip(numbers_of(left), numbers_of(right), strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance, equal_nan=True)


@settings(max_examples=60)
@given(
    vocabulary=st.integers(2, 40),
    cuts=st.lists(st.integers(1, 39), max_size=5),
    temperature=st.sampled_from([0.3, 1.0, 1.7]),
    offset=st.sampled_from([0.0, 1e4, -1e4]),
    masked=st.sampled_from([0.0, 0.3, 0.9]),
    drop=st.sampled_from([0.0, 5e3]),
    seed=st.integers(0, 2**31),
)
def test_any_split_gives_same_scores(
    vocabulary: int,
    cuts: list[int],
    temperature: float,
    offset: float,
    masked: float,
    drop: float,
    seed: int,
) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(6, vocabulary, generator=generator, dtype=torch.float64) * 5 + offset
    logits[:, vocabulary // 2 :] -= drop  # a slice so far below the maximum adds nothing
    logits[torch.rand(logits.shape, generator=generator) < masked] = -math.inf
    token_ids = torch.randint(0, vocabulary, (6,), generator=generator)
    whole = finish(reference.row_moments(logits, token_ids, temperature, squared=True))
    parts = slices(logits, token_ids, [cut for cut in set(cuts) if cut < vocabulary], temperature)
    random.Random(seed).shuffle(parts)
    assert_same(finish(merge(parts)), whole, 1e-9)
    assert_same(
        finish(functools.reduce(lambda left, right: merge([left, right]), parts)), whole, 1e-9
    )


def test_squared_scores_need_every_slice() -> None:
    logits, token_ids = torch.randn(2, 8), torch.tensor([0, 1])
    parts = [reference.row_moments(logits[:, :4], token_ids, 1.0, squared=True)]
    parts.append(reference.row_moments(logits[:, 4:], token_ids, 1.0, 4))
    assert finish(merge(parts)).squared_scores is None
    assert concatenated(parts).square_shifted_twice is None
