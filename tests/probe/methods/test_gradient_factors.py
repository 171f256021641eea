"""Factors multiply, gradients are what they say, and a cap leaves out only the furthest."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from isentrope.methods.gate import INTERVENTIONS, gated_logprobs
from isentrope.statistics.tokens import TokenBatch
from isentrope_wire.control import Control, Method
from isentrope_wire.methods import METHODS as ROWS
from tests.probe.methods.tokens import kept, many, selected, tokens


def control(method: str, **parameters: object) -> Control:
    thresholds = {"mu_low": 1.0, "mu_high": 1.0} if ROWS[method].thresholds else {}
    return Control.from_document({"method": method, **thresholds, "parameters": parameters})


ACTING = [
    control("clip_b"),
    control("clip_v"),
    control("clip_v", max_fraction=0.02),
    control("clip_cov", ratio=0.3, omega_low=0),
    control("kl_cov", k=0.2),
    control("score_sign"),
    control("top_entropy"),
    control("unlikely"),
    control("ratio_clip", epsilon_high=0.1),
]
METHOD_NAMES = [
    str(one.method) + ("+cap" if one.parameters.get("max_fraction") else "") for one in ACTING
]


def gradient_of(factors: Tensor, of: TokenBatch, upstream: Tensor) -> Tensor:
    logprobs = of.scores.logprobs.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(
        (gated_logprobs(logprobs, factors) * upstream).sum(), logprobs
    )
    return gradient


def test_every_method_of_the_wire_can_be_carried_out() -> None:
    assert set(INTERVENTIONS) | {Method.NONE} == set(ROWS)


@pytest.mark.parametrize("one", ACTING, ids=METHOD_NAMES)
def test_values_stay_and_the_gradient_is_multiplied_by_the_factors(one: Control) -> None:
    of = many(400)
    selection = selected(one, of)
    upstream = torch.randn(400, generator=torch.Generator().manual_seed(1))
    assert torch.equal(gated_logprobs(of.scores.logprobs, selection.factors), of.scores.logprobs)
    gradient = gradient_of(selection.factors, of, upstream)
    torch.testing.assert_close(gradient, upstream * selection.factors)
    assert (selection.factors[of.mask] != 1).any(), "the method acts here"


@pytest.mark.parametrize("one", ACTING, ids=METHOD_NAMES)
def test_no_tokens_are_no_trouble(one: Control) -> None:
    assert selected(one, tokens([], ratios=[])).factors.shape == (0,)


def test_a_nan_that_comes_back_stops_where_the_token_is_left_out() -> None:
    of = tokens([1.0, 1.0, 1.0])
    upstream = torch.tensor([math.nan, math.nan, 2.0])
    gradient = gradient_of(torch.tensor([0.0, 0.5, 0.5]), of, upstream)
    assert gradient[0] == 0
    assert gradient[1].isnan()
    assert gradient[2] == 1


@pytest.mark.parametrize("one", ACTING[:-1], ids=METHOD_NAMES[:-1])
def test_a_method_with_a_ratio_clip_gives_the_product_of_both(one: Control) -> None:
    of = many(400)
    both = Control.from_document(
        one.to_document()
        | {"parameters": {**one.parameters, "epsilon_high": 0.05, "epsilon_low": 0.1}}
    )
    clip = selected(control("ratio_clip", epsilon_high=0.05, epsilon_low=0.1), of)
    alone = selected(one, of)
    together = selected(both, of)
    assert torch.equal(together.factors, alone.factors * clip.factors)
    assert torch.equal(together.factors, clip.factors * alone.factors)
    assert set(kept(together)) == set(kept(alone)) & set(kept(clip))


def test_one_side_alone_is_clip_higher() -> None:
    of = tokens([1.0, -1.0, 1.0], ratios=[1.5, 0.1, 1.0], discriminator=[1, 1, 1])
    both = Control(
        method="score_sign", scope="negative", parameters={"sign": "negative", "epsilon_high": 0.28}
    )
    # Acts on the positive sample, though the method's own scope is the negative ones.
    assert kept(selected(both, of)) == [1, 2]


@pytest.mark.parametrize("one", ACTING, ids=METHOD_NAMES)
def test_shrink_gives_the_gradient_of_the_mean_over_the_tokens_kept(one: Control) -> None:
    of = many(400)
    keep = selected(one, of).factors
    document = one.to_document() | {"parameters": {**one.parameters, "denominator": "shrink"}}
    shrunken = selected(Control.from_document(document), of).factors
    takes_part = of.mask & (keep != 0)
    weights = torch.where(of.mask, -of.advantages, 0.0)
    ours = gradient_of(shrunken, of, weights / of.mask.sum())
    wanted = torch.where(takes_part, weights * keep / takes_part.sum(), 0.0)
    torch.testing.assert_close(torch.where(of.mask, ours, 0.0), wanted)


# S_c of standard deviation 1: 0.5 sigma is exceeded by 4, 1.5 sigma by 2
CENTRED = torch.tensor([-2.0, -1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 2.0]) / math.sqrt(10 / 8)


def test_cap_clips_the_furthest_only() -> None:
    of = tokens([1.0] * 8, centred=CENTRED)

    def left_out(
        mu_low: float | None, mu_high: float | None, max_fraction: float | None
    ) -> list[int]:
        given = {} if max_fraction is None else {"max_fraction": max_fraction}
        capped = Control(method="clip_v", mu_low=mu_low, mu_high=mu_high, parameters=given)
        return sorted(set(range(8)) - set(kept(selected(capped, of))))

    assert left_out(0.5, 0.5, None) == [0, 1, 6, 7]
    assert left_out(0.5, 0.5, 0.25) == [0, 7]
    assert left_out(0.5, 0.5, 0.99) == [0, 1, 6, 7]  # the cap doesn't bind
    assert left_out(0.5, None, 0.125) == [0]
    assert left_out(0.5, 1.0, 0.125) == [
        0
    ]  # 1.29 beyond the lower threshold, 0.79 beyond the upper
    assert left_out(0.5, None, 0.12) == [0]  # less than one token: one


def test_the_cap_ranks_within_the_scope() -> None:
    of = tokens([-1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, -1.0], centred=CENTRED)
    capped = Control(
        method="clip_v", mu_low=0.5, scope="positive", parameters={"max_fraction": 0.125}
    )
    assert kept(selected(capped, of)) == [0, 2, 3, 4, 5, 6, 7]
