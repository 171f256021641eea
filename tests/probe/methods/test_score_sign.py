"""Score sign keeps one side of S* = 0, on the samples it is told."""

from __future__ import annotations

import math

import pytest

from isentrope_wire.control import Control
from tests.probe.methods.tokens import kept, many, selected, tokens

HAND = tokens([1.0, 1.0, -1.0, -1.0, 1.0], discriminator=[0.5, -0.1, 0.5, -0.1, 0.0], centred=[1, -1, 1, -1, 0])


def score_sign(sign: str, action: str, scope: str = "all") -> Control:
    return Control(method="score_sign", scope=scope, parameters={"sign": sign, "action": action})


@pytest.mark.parametrize(
    ("sign", "action", "scope", "expected"),
    [
        ("positive", "mask", "all", [1, 3, 4]),
        ("negative", "mask", "all", [0, 2, 4]),
        ("positive", "keep", "all", [0, 2]),
        ("negative", "keep", "all", [1, 3]),
        ("positive", "mask", "positive", [1, 2, 3, 4]),
        ("negative", "mask", "positive", [0, 2, 3, 4]),
        ("positive", "mask", "negative", [0, 1, 3, 4]),
        ("positive", "keep", "negative", [0, 1, 2, 4]),
    ],
)
def test_the_tokens_of_figure_1_are_left_out(sign: str, action: str, scope: str, expected: list[int]) -> None:
    assert kept(selected(score_sign(sign, action, scope), HAND)) == expected


@pytest.mark.parametrize("sign", ["positive", "negative"])
def test_mask_and_keep_share_the_tokens_between_them(sign: str) -> None:
    of = many(300)
    masked, only = (set(kept(selected(score_sign(sign, action), of))) for action in ("mask", "keep"))
    assert masked | only == set(range(300))
    assert not masked & only


def test_the_two_kinds_of_samples_make_up_all() -> None:
    of = many(300)
    out = {
        scope: set(range(300)) - set(kept(selected(score_sign("positive", "mask", scope), of)))
        for scope in ("all", "positive", "negative")
    }
    assert out["positive"] | out["negative"] == out["all"]
    assert not out["positive"] & out["negative"]


@pytest.mark.parametrize("action", ["mask", "keep"])
def test_a_score_that_is_not_finite_is_kept(action: str) -> None:
    of = tokens([1.0, 1.0], discriminator=[math.nan, -1.0])
    assert 0 in kept(selected(score_sign("positive", action), of))
