"""Positive-advantage reweighting multiplies the gradient of tokens with A > 0, and no other."""

from __future__ import annotations

import pytest
import torch

from isentrope.methods.gate import gated_logprobs
from isentrope_wire.control import Control
from tests.probe.methods.tokens import many, selected


@pytest.mark.parametrize("weight", [0.0, 0.3, 1.0])
def test_gradient_of_the_weighted_loss(weight: float) -> None:
    of = many(100)
    assert of.importance_ratios is not None
    old = of.scores.logprobs - of.importance_ratios.log()
    selection = selected(Control(method="positive_advantage", parameters={"weight": weight}), of)
    logprobs = of.scores.logprobs.clone().requires_grad_()
    gated = gated_logprobs(logprobs, selection.factors)
    (ours,) = torch.autograd.grad(-(of.advantages * (gated - old).exp())[of.mask].mean(), logprobs)
    weights = torch.where(of.advantages > 0, weight, 1.0)
    (wanted,) = torch.autograd.grad(-(weights * of.advantages * (logprobs - old).exp())[of.mask].mean(), logprobs)
    torch.testing.assert_close(ours, wanted)
    assert torch.equal(selection.selected, of.mask & (of.advantages > 0))
