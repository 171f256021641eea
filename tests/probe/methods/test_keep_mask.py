"""Clip_B and Clip_V keep exactly the tokens the papers' equations keep."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from isentrope.methods.base import GatedTokens
from isentrope.scores import TokenScores
from isentrope.statistics.moments import threshold_statistics
from isentrope_wire.control import Control, Scope
from tests.probe.methods.tokens import keep_mask

# mean(S*) = 1, population std 2;  S_c = S* - E[S] with std 1
DISCRIMINATOR = torch.tensor([-2.0, 0.0, 1.0, 1.0, 1.0, 1.0, 2.0, 4.0])
CENTRED = torch.tensor([-2.0, -1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 2.0]) / math.sqrt(10 / 8)
ADVANTAGES = torch.tensor([1.0, -1.0, 1.0, -1.0, 0.0, 1.0, -1.0, -1.0])


def scores(discriminator: Tensor = DISCRIMINATOR, centred: Tensor = CENTRED) -> TokenScores:
    return TokenScores(
        logprobs=torch.zeros_like(centred),
        entropies=torch.zeros_like(centred),
        discriminator_scores=discriminator,
        expected_scores=discriminator - centred,
        vocab_centered_scores=centred,
    )


def kept(document: dict[str, object], advantages: Tensor = ADVANTAGES) -> list[int]:
    """Indices of the tokens kept."""
    statistics = threshold_statistics([scores()], [torch.ones_like(CENTRED, dtype=torch.bool)])
    mask = keep_mask(Control.from_document(document), scores(), advantages, statistics)
    return mask.nonzero().flatten().tolist()


def test_sigma_is_the_population_standard_deviation_over_both_signs() -> None:
    statistics = threshold_statistics([scores()], [torch.ones(8, dtype=torch.bool)])
    assert statistics.discriminator_mean.item() == pytest.approx(1.0)
    assert statistics.discriminator_std.item() == pytest.approx(math.sqrt(20 / 8))
    assert statistics.vocab_centered_std.item() == pytest.approx(1.0)


def test_statistics_leave_out_padding_and_what_is_not_finite_and_merge_micro_batches() -> None:
    poisoned = torch.cat([CENTRED, torch.tensor([math.nan, 1e9])])
    discriminator = torch.cat([DISCRIMINATOR, torch.tensor([1.0, 1.0])])
    mask = torch.tensor([True] * 9 + [False])
    whole = threshold_statistics([scores(discriminator, poisoned)], [mask])
    halves = threshold_statistics(
        [scores(discriminator[:4], poisoned[:4]), scores(discriminator[4:], poisoned[4:])], [mask[:4], mask[4:]]
    )
    for statistics in (whole, halves):
        assert statistics.vocab_centered_std.item() == pytest.approx(1.0)
        assert statistics.discriminator_mean.item() == pytest.approx(1.0)


def test_clip_v_counts_from_zero_in_standard_deviations_of_the_centred_score() -> None:
    assert kept({"method": "clip_v", "mu_low": 1, "mu_high": 1}) == [1, 2, 3, 4, 5, 6]
    assert kept({"method": "clip_v", "mu_low": 1}) == [1, 2, 3, 4, 5, 6, 7]
    assert kept({"method": "clip_v", "mu_high": 0.5}) == [0, 1, 2, 3, 4, 5]


def test_clip_b_counts_from_the_batch_mean_in_standard_deviations_of_the_discriminator() -> None:
    # sigma = 1.58: -2 lies 1.9 sigma below the mean, 4 lies 1.9 above, 0 and 2 lie 0.63 off
    assert kept({"method": "clip_b", "mu_low": 1, "mu_high": 1}) == [1, 2, 3, 4, 5, 6]
    assert kept({"method": "clip_b", "mu_high": 0.5}) == [0, 1, 2, 3, 4, 5]
    assert kept({"method": "clip_b", "mu_low": 2, "mu_high": 2}) == list(range(8))


@pytest.mark.parametrize(
    ("scope", "expected"),
    [
        ("all", [1, 2, 3, 4, 5, 6]),
        ("positive", [1, 2, 3, 4, 5, 6, 7]),  # drops token 0 (A > 0, S_c low)
        ("negative", [0, 1, 2, 3, 4, 5, 6]),  # drops token 7 (A < 0, S_c high)
        ("decreasing", list(range(8))),  # A S_c < 0 on both tokens outside
        ("increasing", [1, 2, 3, 4, 5, 6]),
    ],
)
def test_thresholds_act_only_in_their_scope(scope: str, expected: list[int]) -> None:
    assert kept({"method": "clip_v", "mu_low": 1, "mu_high": 1, "scope": scope}) == expected


def test_decreasing_is_the_upper_side_on_positive_and_the_lower_side_on_negative_samples() -> None:
    document: dict[str, object] = {"method": "clip_v", "mu_low": 0.5, "mu_high": 0.5, "scope": "decreasing"}
    assert kept(document, torch.ones(8)) == [0, 1, 2, 3, 4, 5]
    assert kept(document, -torch.ones(8)) == [2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("method", ["clip_b", "clip_v"])
def test_wider_thresholds_keep_more_and_very_wide_ones_keep_all(method: str) -> None:
    kept_before: set[int] = set()
    for mu in (0.0, 0.3, 0.7, 1.0, 1.5, 3.0, 1e6):
        now = set(kept({"method": method, "mu_low": mu, "mu_high": mu}))
        assert kept_before <= now
        kept_before = now
    assert kept_before == set(range(8))


def test_a_score_that_is_not_finite_is_kept_not_hidden() -> None:
    broken = CENTRED.clone()
    broken[3] = math.nan
    statistics = threshold_statistics([scores(centred=broken)], [torch.ones(8, dtype=torch.bool)])
    control = Control.from_document({"method": "clip_v", "mu_low": 1, "mu_high": 1})
    mask = keep_mask(control, scores(centred=broken), ADVANTAGES, statistics)
    assert mask[3]
    assert not mask[7]


def test_every_scope_of_the_wire_is_known() -> None:
    for scope in Scope:
        of = GatedTokens(scores(), ADVANTAGES, torch.ones(8, dtype=torch.bool))
        assert of.in_scope(scope).dtype == torch.bool
