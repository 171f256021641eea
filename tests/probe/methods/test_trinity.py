"""The preset `trinity` leaves out the tokens that Trinity-RFT's advantage functions take out of the response mask."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from isentrope.methods.base import GatedTokens
from isentrope_wire.control import Control
from tests.probe.methods.tokens import many, selected, tokens


def some_without_advantage(count: int, seed: int) -> GatedTokens:
    """Random tokens, a third of them with A = 0."""
    of = many(count, seed)
    advantages = of.advantages.where(torch.rand(count, generator=torch.Generator().manual_seed(seed)) < 2 / 3, 0.0)
    return tokens(
        advantages,
        logprobs=of.scores.logprobs,
        discriminator=of.scores.discriminator_scores,
        centred=of.scores.vocab_centered_scores,
        mask=of.mask,
    )


def spread(values: Tensor, of: GatedTokens) -> Tensor:
    return (values.double() - values[of.mask].double().mean())[of.mask].square().mean().sqrt()


def trinity_clip_b(of: GatedTokens, mu: float) -> Tensor:
    """A < 0 only: S* further than mu sigma below the mean."""
    scores = of.scores.discriminator_scores
    centred = scores.double() - scores[of.mask].double().mean()
    return of.mask & (of.advantages < 0) & (centred < -mu * spread(scores, of))


def trinity_clip_v(of: GatedTokens, mu: float, share: float) -> Tensor:
    """-S_c beyond mu sigma': all tokens with A = 0, and of those with A < 0 the furthest, a share but at least one."""
    scores = -of.scores.vocab_centered_scores.double()
    beyond = of.mask & (scores > mu * spread(scores, of))
    negative = beyond & (of.advantages < 0)
    most = max(int(share * int(of.mask.sum())), 1)
    if int(negative.sum()) > most:
        furthest = scores.masked_fill(~negative, -torch.inf).topk(most).indices
        negative = torch.zeros_like(negative).index_fill(0, furthest, True)
    return negative | (beyond & (of.advantages == 0))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("share", [1e-4, 0.02, 1.0])
def test_clip_v(seed: int, share: float) -> None:
    of = some_without_advantage(2711, seed)
    control = Control(method="clip_v", mu_low=1.0, parameters={"preset": "trinity", "max_fraction": share})
    factors = selected(control, of).factors
    dropped, counted = trinity_clip_v(of, 1.0, share), int(of.mask.sum())
    assert torch.equal(of.mask & (factors == 0), dropped)
    assert factors.max().item() == pytest.approx(counted / (counted - int(dropped.sum())))
    assert int((dropped & (of.advantages < 0)).sum()) >= 1
    assert int((dropped & (of.advantages == 0)).sum()) > 50


def test_clip_b() -> None:
    of = some_without_advantage(2711, 0)
    factors = selected(Control(method="clip_b", mu_low=1.0, parameters={"preset": "trinity"}), of).factors
    dropped, counted = trinity_clip_b(of, 1.0), int(of.mask.sum())
    assert torch.equal(of.mask & (factors == 0), dropped)
    assert factors.max().item() == pytest.approx(counted / (counted - int(dropped.sum())))
