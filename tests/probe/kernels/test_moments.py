"""Slices of a vocabulary add up to the whole, in any order and any split."""

from __future__ import annotations

import itertools
import math
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from isentrope.kernels import reference
from isentrope.kernels.moments import Moments, RowScores, finish, merge, shift
from tests.probe.scores.reference64 import scores64

FIELDS = ("logprobs", "entropies", "discriminator_scores", "expected_scores")


def slices(logits: Tensor, token_ids: Tensor, cuts: list[int], temperature: float = 1.0) -> list[Moments]:
    edges = [0, *sorted(cuts), logits.shape[-1]]
    return [
        reference.row_moments(logits[:, start:end], token_ids, temperature, start)
        for start, end in itertools.pairwise(edges)
        if end > start
    ]


def assert_same(left: RowScores, right: RowScores, tolerance: float) -> None:
    for a, b in zip(left, right, strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance, equal_nan=True)


@settings(max_examples=60, deadline=None)
@given(
    vocabulary=st.integers(2, 40),
    cuts=st.lists(st.integers(1, 39), max_size=5),
    temperature=st.sampled_from([0.3, 1.0, 1.7]),
    offset=st.sampled_from([0.0, 1e4, -1e4]),
    masked=st.sampled_from([0.0, 0.3, 0.9]),
    seed=st.integers(0, 2**31),
)
def test_any_split_in_any_order_gives_the_same_scores(
    vocabulary: int, cuts: list[int], temperature: float, offset: float, masked: float, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(6, vocabulary, generator=generator, dtype=torch.float64) * 5 + offset
    logits[torch.rand(logits.shape, generator=generator) < masked] = -math.inf
    token_ids = torch.randint(0, vocabulary, (6,), generator=generator)
    whole = finish(reference.row_moments(logits, token_ids, temperature))
    parts = slices(logits, token_ids, [cut for cut in set(cuts) if cut < vocabulary], temperature)
    random.Random(seed).shuffle(parts)
    assert_same(finish(merge(parts)), whole, 1e-9)


def test_merging_pairs_first_or_all_at_once_is_the_same() -> None:
    logits = torch.randn(5, 30, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    a, b, c = slices(logits, torch.arange(5), [7, 20])
    assert_same(finish(merge([merge([a, b]), c])), finish(merge([a, merge([c, b])])), 1e-12)


def test_a_slice_far_below_the_maximum_contributes_nothing_and_no_nan() -> None:
    logits = torch.tensor([[0.0, 1.0, -5e3, -6e3]], dtype=torch.float64)
    scores = finish(merge(slices(logits, torch.tensor([1]), [2])))
    expected = scores64(logits, torch.tensor([1]))
    for field in FIELDS:
        torch.testing.assert_close(getattr(scores, field), expected[field], rtol=0, atol=1e-12)


def test_slices_masked_everywhere_are_neutral_and_a_row_masked_everywhere_is_nan() -> None:
    logits = torch.randn(2, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    logits[0, :6] = -math.inf
    logits[1] = -math.inf
    scores = finish(merge(slices(logits, torch.tensor([7, 7]), [3, 6])))
    expected = scores64(logits, torch.tensor([7, 7]))
    for field in FIELDS:
        assert getattr(scores, field)[0].item() == pytest.approx(expected[field][0].item(), abs=1e-12)
        assert getattr(scores, field)[1].isnan()


@pytest.mark.parametrize("poison", [math.nan, math.inf])
@pytest.mark.parametrize("where", [0, 5, 8])
def test_a_poisoned_slice_makes_its_row_nan_wherever_it_lies(poison: float, where: int) -> None:
    logits = torch.zeros(2, 9)
    logits[1, where] = poison
    scores = finish(merge(slices(logits, torch.tensor([0, 0]), [3, 6])))
    assert [[bool(value.isnan()) for value in field] for field in scores] == [[False, True]] * 5


def test_counting_from_a_higher_maximum_changes_no_score() -> None:
    logits = torch.randn(4, 20, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    moments = reference.row_moments(logits, torch.arange(4), 1.0)
    assert_same(finish(shift(moments, moments.maximum + 3.5)), finish(moments), 1e-12)


def test_the_moments_are_the_sums_they_say() -> None:
    logits = torch.tensor([[1.0, 3.0, 2.0]], dtype=torch.float64)
    moments = reference.row_moments(logits, torch.tensor([12]), 2.0, start=10)
    d = [-1.0, 0.0, -0.5]
    assert moments.maximum.item() == 1.5
    assert moments.total.item() == pytest.approx(sum(math.exp(x) for x in d))
    assert moments.total_shifted.item() == pytest.approx(sum(x * math.exp(x) for x in d))
    assert moments.square.item() == pytest.approx(sum(math.exp(2 * x) for x in d))
    assert moments.square_shifted.item() == pytest.approx(sum(x * math.exp(2 * x) for x in d))
    assert moments.chosen_shifted.item() == -0.5
    outside = reference.row_moments(logits, torch.tensor([9]), 2.0, start=10)
    assert outside.chosen_shifted.item() == -math.inf
