"""The cutoff lets the wanted share through, to a token."""

from __future__ import annotations

import math

import pytest
import torch

from isentrope.methods.base import top_share_cutoff


@pytest.mark.parametrize("fraction", [0.001, 0.004, 0.02, 0.2, 0.37, 0.5, 0.999, 1.0])
@pytest.mark.parametrize("count", [1, 2, 7, 100, 1001])
def test_the_share_above_is_the_wanted_one_within_half_a_token(count: int, fraction: float) -> None:
    values = torch.randn(count, generator=torch.Generator().manual_seed(count))
    mask = torch.arange(count) % 4 != 3
    above = int((mask & (values >= top_share_cutoff(values, mask, fraction))).sum())
    assert abs(above - fraction * int(mask.sum())) <= 0.5 + 1e-9


def test_hand_worked_values() -> None:
    values, mask = torch.tensor([5.0, 1.0, 3.0, 9.0, 2.0]), torch.tensor([True, True, True, False, True])
    assert top_share_cutoff(values, mask, 0.5) == 3.0  # two of four: 5 and 3
    assert top_share_cutoff(values, mask, 0.25) == 5.0
    assert top_share_cutoff(values, mask, 0.1) == math.inf  # 0.4 of a token
    assert top_share_cutoff(values, mask, 1.0) == 1.0


def test_at_most_rounds_down_to_one_token() -> None:
    values, mask = torch.arange(100.0), torch.ones(100, dtype=torch.bool)
    assert top_share_cutoff(values, mask, 0.29, at_most=True) == 71.0  # 29 tokens: 0.29 * 100 is a hair below 29
    assert top_share_cutoff(values, mask, 0.299, at_most=True) == 71.0
    assert top_share_cutoff(values, mask, 0.009, at_most=True) == 99.0
    assert top_share_cutoff(values, mask, 0, at_most=True) == math.inf


def test_when_few_are_ranked_all_of_them_belong_to_the_share() -> None:
    values, mask = torch.arange(10.0), torch.ones(10, dtype=torch.bool)
    few = values > 7
    assert top_share_cutoff(values, mask, 0.5, among=few) == -math.inf
    assert top_share_cutoff(values, mask, 0.1, among=few) == 9.0


def test_what_is_not_finite_ranks_last_and_no_tokens_have_no_top() -> None:
    values = torch.tensor([math.nan, 1.0, math.inf, 2.0])
    assert top_share_cutoff(values, torch.ones(4, dtype=torch.bool), 0.5) == 1.0
    assert top_share_cutoff(torch.zeros(0), torch.zeros(0, dtype=torch.bool), 0.5) == math.inf
    assert top_share_cutoff(values, torch.zeros(4, dtype=torch.bool), 0.5) == math.inf
