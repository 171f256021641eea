"""Top entropy updates the wanted share of the tokens: those of highest entropy."""

from __future__ import annotations

import math

import pytest
import torch

from isentrope.methods import entropy
from isentrope_wire.control import Control
from tests.probe.methods.tokens import kept, many, own_centres, selected, tokens


def top(fraction: float, scope: str = "all") -> Control:
    return Control(method="top_entropy", scope=scope, parameters={"fraction": fraction})


HAND = tokens([1.0, -1.0, 1.0, -1.0, 1.0], entropies=[0.1, 0.9, 0.5, 0.3, 0.7])


def test_the_tokens_worked_by_hand_are_kept() -> None:
    assert kept(selected(top(0.4), HAND)) == [1, 4]
    assert kept(selected(top(0.2), HAND)) == [1]
    assert kept(selected(top(1.0), HAND)) == list(range(5))
    assert kept(selected(top(0.2, "positive"), HAND)) == [1, 3]


@pytest.mark.parametrize("fraction", [0.01, 0.2, 0.5, 0.8])
def test_the_share_updated_is_the_wanted_one_within_a_token(fraction: float) -> None:
    of = many(777)
    updated = int((selected(top(fraction), of).factors & of.mask).sum())
    assert abs(updated - fraction * int(of.mask.sum())) < 1


def test_a_larger_share_holds_the_smaller_one() -> None:
    of = many(300)
    before: set[int] = set()
    for fraction in (0.1, 0.3, 0.6, 1.0):
        now = set(kept(selected(top(fraction), of)))
        assert before <= now
        before = now


def test_padding_does_not_move_the_threshold() -> None:
    padded = tokens([1.0] * 7, entropies=[0.1, 0.9, 0.5, 0.3, 0.7, 99, 99], mask=[True] * 5 + [False] * 2)
    assert kept(selected(top(0.4), padded))[:2] == [1, 4]


def test_the_threshold_of_one_batch_serves_another() -> None:
    control = top(0.4)
    cutoff = entropy.TOP_ENTROPY.cutoff(control, HAND, own_centres(HAND))
    next_step = tokens([1.0] * 3, entropies=[0.71, 0.69, 0.7])
    assert kept(entropy.select_top_entropy(control, next_step, own_centres(next_step), cutoff)) == [0, 2]


def test_an_entropy_that_is_not_finite_is_kept() -> None:
    of = tokens([1.0, 1.0, 1.0], entropies=[math.nan, 0.2, 0.3])
    assert kept(selected(top(0.3), of)) == [0, 2]
    assert torch.equal(selected(top(0.3), of).selected, torch.tensor([False, True, False]))
