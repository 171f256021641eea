"""Clip-Cov detaches, on average, the asked share of the step's tokens, from among those between the bounds."""

from __future__ import annotations

import math

import pytest
import torch

from isentrope.methods.base import Centres
from isentrope.methods.covariance import covariance_scores
from isentrope.statistics.moments import threshold_statistics
from isentrope_wire.control import Control
from tests.probe.methods.tokens import kept, many, own_centres, selected, tokens

# mean log p = -2, mean A = 0: c = (log p + 2) A
HAND = tokens([1.0, 1.0, -1.0, -1.0, 2.0, -2.0], logprobs=[-1.0, -3.0, -1.0, -3.0, 0.0, -4.0])
HAND_COVARIANCES = [1.0, -1.0, -1.0, 1.0, 4.0, 4.0]


def clip_cov(**parameters: object) -> Control:
    return Control(method="clip_cov", parameters=parameters)


def test_the_covariance_scores_are_those_worked_by_hand() -> None:
    assert covariance_scores(HAND, own_centres(HAND)).tolist() == HAND_COVARIANCES


def test_the_covariance_scores_average_to_the_covariance() -> None:
    of = many(500)
    scores = covariance_scores(of, own_centres(of))[of.mask]
    both = torch.stack([of.scores.logprobs, of.advantages]).double()[:, of.mask]
    assert scores.mean().item() == pytest.approx(torch.cov(both, correction=0)[0, 1].item())


def test_all_between_the_bounds_go_when_as_many_are_asked_for() -> None:
    assert kept(selected(clip_cov(ratio=1, omega_low=0.5, omega_high=5), HAND)) == [1, 2]
    assert kept(selected(clip_cov(ratio=1, omega_low=1, omega_high=4), HAND)) == list(range(6))  # the bounds are out
    assert kept(selected(clip_cov(ratio=1, omega_low=0, omega_high=2), HAND)) == [1, 2, 4, 5]


def test_ratio_0_keeps_all() -> None:
    selection = selected(clip_cov(ratio=0, omega_low=-100), HAND)
    assert kept(selection) == list(range(6))
    assert selection.selected.all()


def test_only_tokens_between_the_bounds_and_in_the_mask_are_left_out() -> None:
    of = many(5000)
    selection = selected(clip_cov(ratio=0.01, omega_low=0.5, omega_high=2), of)
    covariances = covariance_scores(of, own_centres(of))
    candidates = of.mask & (covariances > 0.5) & (covariances < 2)
    assert torch.equal(selection.selected, candidates)
    assert not (~selection.factors & ~candidates).any()
    assert 0 < int((~selection.factors).sum()) < int(candidates.sum())


def test_the_share_left_out_is_the_ratio_of_all_tokens_however_small_the_micro_batch() -> None:
    dropped = valid = 0
    for part in range(400):
        of = many(60, seed=part)
        of = tokens(of.advantages, logprobs=of.scores.logprobs, mask=of.mask, first_position=60 * part)
        selection = selected(clip_cov(ratio=0.02, omega_low=0), of)
        dropped += int((~selection.factors).sum())
        valid += int(of.mask.sum())
    expected = 0.02 * valid
    assert abs(dropped - expected) < 4 * math.sqrt(expected), (dropped, expected)


def test_the_same_step_decides_the_same_and_each_seed_step_and_rank_another_way() -> None:
    of = many(3000)

    def choice(seed: int = 0, step: int = 4, rank: int = 1) -> list[int]:
        again = tokens(of.advantages, logprobs=of.scores.logprobs, mask=of.mask, step=step, rank=rank)
        return kept(selected(clip_cov(ratio=0.1, omega_low=0, seed=seed), again))

    torch.manual_seed(1)
    first = choice()
    torch.manual_seed(2)
    assert choice() == first
    others = [choice(seed=1), choice(step=5), choice(rank=0)]
    assert all(other != first for other in others)


def test_means_are_the_batch_s_so_that_one_sequence_alone_still_has_a_covariance() -> None:
    one_sequence = tokens([1.0, 1.0, 1.0], logprobs=[0.0, -2.0, -4.0])
    statistics = threshold_statistics([one_sequence.scores], [one_sequence.mask])
    of_the_batch = Centres(statistics, torch.tensor(-2.0).double(), torch.tensor(0.0).double())
    control = clip_cov(ratio=1, omega_low=1)
    assert kept(selected(control, one_sequence)) == [0, 1, 2]  # counted from itself: nothing
    assert kept(selected(control, one_sequence, of_the_batch)) == [1, 2]


def test_the_scope_restricts_the_choice() -> None:
    control = Control(method="clip_cov", scope="negative", parameters={"ratio": 1, "omega_low": 0.5})
    assert kept(selected(control, HAND)) == [0, 1, 2, 4]


def test_a_token_that_is_not_finite_is_kept() -> None:
    broken = tokens([1.0, math.nan, -1.0], logprobs=[math.nan, -1.0, -2.0])
    statistics = threshold_statistics([broken.scores], [broken.mask])
    centres = Centres(statistics, torch.tensor(-9.0).double(), torch.tensor(-9.0).double())
    control = clip_cov(ratio=1, omega_low=-100, omega_high=100)
    assert kept(selected(control, broken, centres)) == [0, 1]
