"""ERC keeps the tokens whose entropy is near that of the old policy, as in the authors' mask."""

from __future__ import annotations

import math

import pytest
import torch

from isentrope.methods.base import GatedTokens
from isentrope_wire.control import Control
from tests.probe.methods.tokens import kept, selected, tokens


def erc(scope: str = "all", **parameters: float) -> Control:
    return Control(method="entropy_ratio_clip", scope=scope, parameters=parameters)


def some(count: int = 400) -> GatedTokens:
    g = torch.Generator().manual_seed(0)
    old = torch.rand(count, generator=g) * 2
    ratios = (0.1 * torch.randn(count, generator=g)).exp()
    return tokens(
        torch.randn(count, generator=g), entropies=old * ratios, old_entropies=old, mask=torch.arange(count) % 7 != 0
    )


@pytest.mark.parametrize(("low", "high"), [(0.05, 0.05), (0.2, 0.1), (1.0, 0.05)])
def test_mask_of_the_authors(low: float, high: float) -> None:
    of = some()
    assert of.old_entropies is not None
    ratio = (of.scores.entropies.double() + 1e-8) / (of.old_entropies.double() + 1e-8)
    inside = (ratio > 1 - low) & (ratio < 1 + high)
    selection = selected(erc(beta_low=low, beta_high=high), of)
    assert torch.equal(selection.factors[of.mask], inside[of.mask])
    assert torch.equal(selection.selected, of.mask & ~inside)
    assert 0 < int(selection.selected.sum()) < int(of.mask.sum())


def test_equal_unknown_and_odd_entropies_are_kept() -> None:
    zeros = tokens([1.0] * 4, entropies=[0.0, 0.0, 1.0, math.nan], old_entropies=[0.0, 1.0, 1.0, 1.0])
    assert kept(selected(erc(), zeros)) == [0, 2, 3]
    assert kept(selected(erc(), tokens([1.0] * 2, entropies=[5.0, 0.1]))) == [0, 1]


def test_scope_restricts_it() -> None:
    of = some()
    clipped = ~selected(erc(scope="negative"), of).factors
    assert clipped.any()
    assert not clipped[of.advantages >= 0].any()
