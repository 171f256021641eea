"""KL-Cov adds the gradient of beta KL(pi_old || pi) on the tokens of highest covariance, through the loop's own loss."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from isentrope.methods.gate import gated_logprobs
from isentrope_wire.control import Control
from tests.probe.methods.tokens import many, selected, tokens

# mean log p = -2, mean A = 0: c = 1, -1, -1, 1, 4, 6
HAND = tokens(
    [1.0, 1.0, -1.0, -1.0, 2.0, -2.0], logprobs=[-1.0, -3.0, -1.0, -3.0, 0.0, -4.0], ratios=[2, 2, 2, 2, 2.0, 0.5]
)


def kl_cov(k: float, beta: float = 1.0, **fields: str) -> Control:
    return Control(method="kl_cov", parameters={"k": k, "beta": beta}, **fields)  # type: ignore[arg-type]


def test_the_top_share_is_chosen_and_weighted_as_worked_by_hand() -> None:
    selection = selected(kl_cov(1 / 3), HAND)
    assert selection.selected.tolist() == [False] * 4 + [True, True]
    # 1 - (1 - 1/2) / 2 and 1 - (1 - 2) / -2
    assert selection.factors.tolist() == [1, 1, 1, 1, 0.75, 0.5]
    assert selected(kl_cov(1 / 3, beta=0.1), HAND).factors[4].item() == pytest.approx(1 - 0.1 / 4)


def test_the_gradient_is_that_of_the_loss_with_the_penalty_however_the_loop_averages() -> None:
    of = many(200)
    control = kl_cov(0.1, beta=0.7)
    selection = selected(control, of)
    old = of.scores.logprobs.double() - of.importance_ratios.double().log()  # type: ignore[union-attr]
    exact = torch.where(selection.selected, selection.factors.double(), 1.0)
    for scale in (1.0, 1 / 180, 65536.0):
        logprobs = of.scores.logprobs.double().requires_grad_()
        ratios = (logprobs - old).exp()
        estimate = torch.where(selection.selected, ratios - 1 - ratios.log(), 0.0)
        (wanted,) = torch.autograd.grad(scale * (-of.advantages * ratios + 0.7 * estimate).sum(), logprobs)
        gated = gated_logprobs(logprobs, exact)
        (ours,) = torch.autograd.grad(scale * (-of.advantages * (gated - old).exp()).sum(), logprobs)
        torch.testing.assert_close(ours, wanted, rtol=1e-5, atol=scale * 1e-6)
    assert int(selection.selected.sum()) == round(0.1 * int(of.mask.sum()))


def test_the_penalty_is_the_same_whatever_the_loops_loss_makes_of_r_a() -> None:
    """By hand: w of 1/2 halves the loop's gradient, so that the factor's distance from 1 doubles; of 0 there is none."""
    weighed = replace(HAND, loss_weights=torch.tensor([1, 1, 1, 1, 0.5, 0.0]))
    assert selected(kl_cov(1 / 3), weighed).factors.tolist() == [1, 1, 1, 1, 0.5, 1]


def test_the_estimator_s_gradient_is_on_average_that_of_the_divergence() -> None:
    generator = torch.Generator().manual_seed(0)
    old = torch.randn(6, generator=generator).double().log_softmax(-1)
    logits = torch.randn(6, generator=generator).double().requires_grad_()
    logprobs = logits.log_softmax(-1)
    divergence = (old.exp() * (old - logprobs)).sum()
    (wanted,) = torch.autograd.grad(divergence, logits, retain_graph=True)
    ratios = (logprobs - old).exp()
    expected_estimate = (old.exp() * (ratios - 1 - ratios.log())).sum()
    (ours,) = torch.autograd.grad(expected_estimate, logits)
    torch.testing.assert_close(ours, wanted)


@pytest.mark.parametrize("ratios", [None, [1.0] * 6])
def test_strictly_on_policy_it_changes_nothing(ratios: list[float] | None) -> None:
    of = tokens(HAND.advantages, logprobs=HAND.scores.logprobs, ratios=ratios)
    selection = selected(kl_cov(1 / 3), of)
    assert selection.factors.tolist() == [1.0] * 6
    assert int(selection.selected.sum()) == 2


def test_beta_0_changes_nothing_and_k_0_chooses_nothing() -> None:
    assert selected(kl_cov(0.5, beta=0), HAND).factors.tolist() == [1.0] * 6
    assert not selected(kl_cov(0), HAND).selected.any()


def test_a_token_without_advantage_or_with_an_endless_ratio_stays_finite() -> None:
    of = tokens([0.0, 4.0, -4.0], logprobs=[0.0, 0.0, -9.0], ratios=[3.0, 0.0, math.inf])
    factors = selected(kl_cov(1.0), of).factors
    assert factors.isfinite().all()
    assert factors[0] == 1


def test_the_scope_restricts_it() -> None:
    assert selected(kl_cov(1 / 3, scope="positive"), HAND).factors.tolist() == [1, 1, 1, 1, 0.75, 1]
