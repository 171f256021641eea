"""The draw is uniform, repeatable, and takes nothing from the run's own random numbers."""

from __future__ import annotations

import pytest
import torch

from isentrope.methods.covariance import positions_of, token_draw

_WORD = 1 << 64


def splitmix64(word: int) -> int:
    """One output of the generator of Steele, Lea and Flood (2014), in plain whole numbers."""
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) % _WORD
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) % _WORD
    return word ^ (word >> 31)


def test_the_mixing_is_splitmix64_bit_for_bit() -> None:
    golden, key = 0x9E3779B97F4A7C15, 0
    for number in (3, 14, 15):
        key = splitmix64((key + number + 1) * golden % _WORD)
    expected = [(splitmix64((position * golden + key) % _WORD) >> 11) / 2**53 for position in range(64)]
    assert token_draw(3, 14, 15, torch.arange(64)).tolist() == expected


def test_the_first_output_of_splitmix64_is_the_published_one() -> None:
    # Seed 0: the first output is that of the word golden * 1.
    assert splitmix64(0x9E3779B97F4A7C15) == 0xE220A8397B1DCDAF


def test_numbers_are_uniform_in_the_unit_interval() -> None:
    draw = token_draw(0, 1, 0, torch.arange(200_000))
    assert draw.min() >= 0
    assert draw.max() < 1
    assert draw.mean().item() == pytest.approx(0.5, abs=0.003)
    assert draw.var().item() == pytest.approx(1 / 12, abs=0.001)
    tenths = torch.histc(draw.float(), bins=10, min=0, max=1) / draw.numel()
    assert (tenths - 0.1).abs().max() < 0.003


@pytest.mark.parametrize("other", [(1, 5, 2), (0, 6, 2), (0, 5, 3)])
def test_seed_step_and_rank_each_give_another_draw(other: tuple[int, int, int]) -> None:
    positions = torch.arange(10_000)
    one, two = token_draw(0, 5, 2, positions), token_draw(*other, positions)
    assert torch.equal(one, token_draw(0, 5, 2, positions))
    assert torch.corrcoef(torch.stack([one, two]))[0, 1].abs() < 0.04


def test_a_token_s_number_does_not_depend_on_the_micro_batch_it_came_in() -> None:
    whole = token_draw(0, 0, 0, positions_of(torch.ones(3, 4, dtype=torch.bool), 0))
    rest = token_draw(0, 0, 0, positions_of(torch.ones(2, 4, dtype=torch.bool), 4))
    assert torch.equal(whole[1:], rest)


def test_the_run_s_own_random_numbers_stay_as_they_are() -> None:
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    token_draw(0, 0, 0, torch.arange(100))
    assert torch.equal(torch.rand(3), expected)
