"""STEER's weights are those of the authors' formula, and fall with the size of the estimated entropy change."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from isentrope.methods.base import GatedTokens
from isentrope.methods.steer import estimated_changes
from isentrope_wire.control import Control
from tests.probe.methods.tokens import many, selected, tokens


def steer(minimum_weight: float = 0.8, estimate: str = "authors", scope: str = "all") -> Control:
    return Control(method="steer", scope=scope, parameters={"minimum_weight": minimum_weight, "estimate": estimate})


def authors_weights(of: GatedTokens, minimum: float) -> Tensor:
    """exp(-k |Omega|), Omega = (A / p_old) p (1 - p) (log p + H), k so that the largest of the batch gets the minimum."""
    assert of.importance_ratios is not None
    p = of.scores.logprobs.double().exp()
    old = p / of.importance_ratios.double()
    omega = (of.advantages / old * p * (1 - p) * (p.log() + of.scores.entropies)).abs()
    k = -math.log(minimum) / max(omega[of.mask].max().item(), 0.02)
    return (-k * omega).exp().clamp(min=minimum, max=1.0)


@pytest.mark.parametrize("minimum", [0.5, 0.8])
def test_weights_of_the_authors_formula(minimum: float) -> None:
    of = many(500)
    selection = selected(steer(minimum), of)
    torch.testing.assert_close(
        selection.factors[of.mask].double(), authors_weights(of, minimum)[of.mask], rtol=1e-5, atol=1e-6
    )
    assert selection.factors[of.mask].min().item() == pytest.approx(minimum)
    assert (selection.factors[~of.mask] == 1).all()
    assert torch.equal(selection.selected, of.mask & (selection.factors < 1))


def test_exact_estimate_is_theorem_2() -> None:
    of = many(50)
    assert of.importance_ratios is not None
    changes = (of.importance_ratios * of.advantages * of.scores.vocab_centered_scores).abs()
    torch.testing.assert_close(estimated_changes(steer(estimate="exact"), of), changes.double(), rtol=1e-5, atol=1e-7)
    order = changes[of.mask].argsort()
    assert (selected(steer(estimate="exact"), of).factors[of.mask][order].diff() <= 0).all()


def test_small_changes_are_hardly_weighted() -> None:
    """By hand: p = 1/2, H = log 2 + 0.01, A = 1: Omega = 0.005, a quarter of the way to 0.02."""
    of = tokens([1.0], logprobs=[-math.log(2)], entropies=[math.log(2) + 0.01])
    assert selected(steer(0.8), of).factors.item() == pytest.approx(0.8**0.25, rel=1e-4)


def test_weight_of_1_and_odd_numbers_change_nothing() -> None:
    of = many(100)
    assert (selected(steer(1.0), of).factors == 1).all()
    odd = tokens([1.0, math.nan, 1.0], logprobs=[math.nan, -1.0, -math.inf], entropies=[1.0, 1.0, 1.0])
    assert selected(steer(), odd).factors.tolist() == [1, 1, 1]


def test_scope_restricts_it() -> None:
    of = many(200)
    factors = selected(steer(scope="positive"), of).factors
    assert (factors[of.advantages <= 0] == 1).all()
    assert (factors[of.mask & (of.advantages > 0)] < 1).all()
