"""KL-Cov penalises the distance to the old policy on the tokens of highest covariance, through the loop's own loss."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from isentrope.methods.base import GatedTokens
from isentrope.methods.gate import gated_logprobs
from isentrope_wire.control import Control
from tests.probe.methods.tokens import many, selected, tokens

# mean log p = -2, mean A = 0: c = 1, -1, -1, 1, 4, 6
HAND = tokens(
    [1.0, 1.0, -1.0, -1.0, 2.0, -2.0], logprobs=[-1.0, -3.0, -1.0, -3.0, 0.0, -4.0], ratios=[2, 2, 2, 2, 2.0, 0.5]
)


def kl_cov(k: float, beta: float = 1.0, estimator: str = "abs", **fields: str) -> Control:
    return Control(method="kl_cov", parameters={"k": k, "beta": beta, "estimator": estimator}, **fields)  # type: ignore[arg-type]


def old_logprobs(of: GatedTokens) -> Tensor:
    assert of.importance_ratios is not None
    return of.scores.logprobs.double() - of.importance_ratios.double().log()


@pytest.mark.parametrize(
    ("estimator", "factors"),
    # abs: 1 - 1 / (2 * 2) and 1 + 1 / (1/2 * -2); k3: 1 - (2 - 1) / (2 * 2) and 1 - (1/2 - 1) / (1/2 * -2)
    [("abs", [0.75, 0.0]), ("k3", [0.75, 0.5])],
)
def test_top_share_weighted_by_hand(estimator: str, factors: list[float]) -> None:
    selection = selected(kl_cov(1 / 3, estimator=estimator), HAND)
    assert selection.selected.tolist() == [False] * 4 + [True, True]
    assert selection.factors.tolist() == pytest.approx([1, 1, 1, 1, *factors])
    assert selected(kl_cov(1 / 3, beta=0.1), HAND).factors[4].item() == pytest.approx(1 - 0.1 / 4)


def listing_gradient(of: GatedTokens, k: float, beta: float) -> Tensor:
    """dL/dlog p of the loss of listing 1: a mean of -A r, plus beta |log p - log p_old| on the top tokens."""
    logprobs = of.scores.logprobs.double().requires_grad_()
    advantages, old = of.advantages.double(), old_logprobs(of)
    losses = -advantages * (logprobs - old).exp()
    with torch.no_grad():
        places = of.mask.nonzero().flatten()
        log_p, a = logprobs[places], advantages[places]
        covariances = (a - a.mean()) * (log_p - log_p.mean())
        top = places[covariances.topk(max(1, int(len(places) * k))).indices]
    losses = losses.index_add(0, top, beta * (logprobs[top] - old[top]).abs())
    (gradient,) = torch.autograd.grad(losses[of.mask].mean(), logprobs)
    return gradient


@pytest.mark.parametrize("k", [1e-4, 0.0119, 0.1])
@pytest.mark.parametrize("scale", [1.0, 65536.0])
def test_gradient_of_listing_1(k: float, scale: float) -> None:
    of = many(300)
    logprobs = of.scores.logprobs.double().requires_grad_()
    gated = gated_logprobs(logprobs, selected(kl_cov(k, beta=0.7), of).factors)
    loss = -(of.advantages * (gated - old_logprobs(of)).exp())[of.mask].mean()
    (ours,) = torch.autograd.grad(scale * loss, logprobs)
    torch.testing.assert_close(ours, scale * listing_gradient(of, k, 0.7), rtol=1e-5, atol=scale * 1e-9)


@pytest.mark.parametrize("log_ratio", [0.001, 0.01, 0.05, 0.2, -0.2])
def test_penalty_does_not_fade_near_old_policy(log_ratio: float) -> None:
    """dL/dlog p = -r A (factor) = -r A + penalty: of size beta with `abs`, some log r with `k3`."""
    of = tokens([1.0], logprobs=[-1.0], ratios=[math.exp(log_ratio)])
    surrogate = math.exp(log_ratio)

    def penalty(estimator: str) -> float:
        factor = selected(kl_cov(1.0, estimator=estimator), of).factors.item()
        return surrogate * (1 - factor)

    assert penalty("abs") == pytest.approx(math.copysign(1, log_ratio), rel=1e-4)
    assert penalty("k3") == pytest.approx(math.expm1(log_ratio), rel=1e-3)


def test_gradient_of_k3_loss() -> None:
    of = many(200)
    selection = selected(kl_cov(0.1, beta=0.7, estimator="k3"), of)
    logprobs, old = of.scores.logprobs.double().requires_grad_(), old_logprobs(of)
    ratios = (logprobs - old).exp()
    estimate = torch.where(selection.selected, ratios - 1 - ratios.log(), 0.0)
    (wanted,) = torch.autograd.grad((-of.advantages * ratios + 0.7 * estimate).sum(), logprobs)
    gated = gated_logprobs(logprobs, selection.factors)
    (ours,) = torch.autograd.grad((-of.advantages * (gated - old).exp()).sum(), logprobs)
    torch.testing.assert_close(ours, wanted, rtol=1e-5, atol=1e-6)


def test_share_is_rounded_down_to_at_least_one() -> None:
    of = many(200)
    counted = int(of.mask.sum())
    for k in (1e-6, 0.1, 0.5):
        assert int(selected(kl_cov(k), of).selected.sum()) == max(1, int(k * counted))


def test_k3_is_on_average_the_divergence() -> None:
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


@pytest.mark.parametrize("ratios", [None, [1.0] * 6, [1 + 1e-7] * 6], ids=["unknown", "one", "round-off"])
def test_on_policy_changes_nothing(ratios: list[float] | None) -> None:
    of = tokens(HAND.advantages, logprobs=HAND.scores.logprobs, ratios=ratios)
    selection = selected(kl_cov(1 / 3), of)
    assert selection.factors.tolist() == [1.0] * 6
    assert int(selection.selected.sum()) == 2


def test_beta_0_and_k_0_do_nothing() -> None:
    assert selected(kl_cov(0.5, beta=0), HAND).factors.tolist() == [1.0] * 6
    assert not selected(kl_cov(0), HAND).selected.any()


@pytest.mark.parametrize("estimator", ["abs", "k3"])
def test_no_advantage_and_endless_ratio_stay_finite(estimator: str) -> None:
    of = tokens([0.0, 4.0, -4.0], logprobs=[0.0, 0.0, -9.0], ratios=[3.0, 0.0, math.inf])
    factors = selected(kl_cov(1.0, estimator=estimator), of).factors
    assert factors.isfinite().all()
    assert factors[0] == 1


def test_scope_restricts_it() -> None:
    assert selected(kl_cov(1 / 3, scope="positive"), HAND).factors.tolist() == [1, 1, 1, 1, 0.75, 1]
