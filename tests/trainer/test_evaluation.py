import itertools

import pytest
import torch
from torch import Tensor

from isentrope_trainer.evaluation import avg_at_k, pass_at_k, pass_rate_shares
from isentrope_wire.errors import ConfigurationError


def right_answers(passed: list[int], samples: int) -> Tensor:
    """A table in which problem i has `passed[i]` right answers."""
    return torch.arange(samples) < torch.tensor(passed)[:, None]


@pytest.mark.parametrize("k", [1, 2, 5, 7])
def test_pass_at_k_is_the_mean_over_all_choices(k: int) -> None:
    right = right_answers([0, 1, 3, 6, 7], samples=7)
    choices = list(itertools.combinations(range(7), k))
    by_hand = torch.tensor([[row[list(choice)].any() for choice in choices] for row in right]).double().mean().item()
    assert pass_at_k(right, k) == pytest.approx(by_hand, abs=1e-12)


def test_pass_at_1_is_the_average() -> None:
    right = right_answers([0, 2, 5, 8], samples=8)
    assert pass_at_k(right, 1) == pytest.approx(avg_at_k(right), abs=1e-12)
    assert avg_at_k(right) == pytest.approx(15 / 32)


@pytest.mark.parametrize("k", [0, 5])
def test_k_beyond_the_samples_is_refused(k: int) -> None:
    with pytest.raises(ConfigurationError, match=str(k)):
        pass_at_k(right_answers([1], samples=4), k)


def test_pass_rates_fall_into_their_bins() -> None:
    shares = pass_rate_shares(right_answers([0, 1, 3, 4, 8, 12, 15, 16, 16, 16], samples=16))
    assert shares == pytest.approx({"0": 0.1, "0-25": 0.2, "25-50": 0.1, "50-75": 0.1, "75-100": 0.2, "100": 0.3})


@pytest.mark.parametrize("samples", [1, 3, 6])
def test_each_problem_falls_into_one_bin(samples: int) -> None:
    shares = pass_rate_shares(right_answers(list(range(samples + 1)), samples))
    assert sum(shares.values()) == pytest.approx(1.0)
    assert shares["0"] == shares["100"] == pytest.approx(1 / (samples + 1))
