"""Unlikely weights positive tokens up as their probability falls, and touches no other."""

from __future__ import annotations

import math

import pytest
import torch

from isentrope_wire.control import Control
from tests.probe.methods.tokens import many, selected, tokens


def unlikely(strength: float = 1.0, below: float = 0.2, scope: str = "all") -> Control:
    return Control(method="unlikely", scope=scope, parameters={"strength": strength, "below": below})


def test_the_factors_worked_by_hand() -> None:
    of = tokens([1.0, 1.0, 1.0, -1.0, 0.0, 2.0], logprobs=[math.log(p) for p in (0.05, 0.25, 0.9, 0.05, 0.05, 1e-9)])
    selection = selected(unlikely(strength=2, below=0.2), of)
    assert selection.factors.tolist() == pytest.approx([2.5, 1, 1, 1, 1, 3])
    assert selection.selected.tolist() == [True, False, False, False, False, True]


def test_factors_lie_between_1_and_1_plus_strength_and_fall_with_the_probability() -> None:
    logprobs = torch.linspace(-8, 0, 100)
    factors = selected(unlikely(strength=3, below=0.6), tokens(torch.ones(100), logprobs=logprobs)).factors
    assert factors.min() == 1
    assert factors.max() <= 4
    assert (factors.diff() <= 0).all()


def test_strength_0_and_negative_samples_are_left_alone() -> None:
    of = many(100)
    assert torch.equal(selected(unlikely(strength=0), of).factors, torch.ones(100))
    factors = selected(unlikely(strength=5), of).factors
    assert torch.equal(factors[of.advantages <= 0], torch.ones(int((of.advantages <= 0).sum())))
    assert (factors > 1).any()


def test_padding_and_what_is_not_finite_are_not_weighted() -> None:
    of = tokens([1.0, 1.0], logprobs=[-9.0, math.nan], mask=[False, True])
    assert selected(unlikely(), of).factors.tolist() == [1, 1]
