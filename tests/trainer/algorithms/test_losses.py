import pytest
import torch

from isentrope_trainer.algorithms.losses import (
    AdaptiveEntropyCoefficient,
    aggregated,
    reference_kl,
    surrogate,
    value_loss,
)
from isentrope_trainer.settings import AdaptiveEntropyConfig, Aggregation

MASK = torch.tensor([[True, True, True], [True, False, False]])


def gradient_of_surrogate(
    ratio: float, advantage: float, low: float | None, high: float | None
) -> float:
    old = torch.tensor([[-1.0]])
    logprobs = (old + torch.tensor(ratio).log()).requires_grad_()
    surrogate(
        logprobs, old, torch.tensor([[advantage]]), clip_low=low, clip_high=high
    ).sum().backward()
    assert logprobs.grad is not None
    return logprobs.grad.item()


@pytest.mark.parametrize("clip", [None, 0.2])
def test_on_policy_the_surrogate_and_its_gradient_are_the_negative_advantage(
    clip: float | None,
) -> None:
    logprobs = torch.tensor([[-1.0, -2.0]], requires_grad=True)
    losses = surrogate(
        logprobs, logprobs.detach(), torch.tensor([[1.5, -2.0]]), clip_low=clip, clip_high=clip
    )
    losses.sum().backward()
    assert losses.tolist() == [[-1.5, 2.0]]
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == [[-1.5, 2.0]]


@pytest.mark.parametrize(
    ("ratio", "advantage", "moved"),
    [
        (1.25, 1.0, False),  # rewarded, and already more likely by more than 0.2
        (1.25, -1.0, True),  # the clip never keeps a token from being pushed back
        (0.75, -1.0, False),
        (0.75, 1.0, True),
        (1.15, 1.0, True),
        (0.85, -1.0, True),
    ],
)
def test_the_clip_stops_what_has_moved_far_enough(
    ratio: float, advantage: float, moved: bool
) -> None:
    expected = -advantage * ratio if moved else 0.0
    assert gradient_of_surrogate(ratio, advantage, 0.2, 0.2) == pytest.approx(expected, abs=1e-6)
    assert gradient_of_surrogate(ratio, advantage, None, None) == pytest.approx(-advantage * ratio)


def test_clip_higher_opens_the_upper_side_alone() -> None:
    assert gradient_of_surrogate(1.25, 1.0, 0.2, 0.28) == pytest.approx(-1.25)
    assert gradient_of_surrogate(1.3, 1.0, 0.2, 0.28) == 0
    assert gradient_of_surrogate(0.75, -1.0, 0.2, 0.28) == 0
    assert gradient_of_surrogate(9.0, 1.0, 0.2, None) == pytest.approx(-9.0)


@pytest.mark.parametrize(
    ("aggregation", "expected"),
    # Sums of the rows: 6 and 10; 3 tokens and 1; at most 5 tokens a completion.
    [("token", 16 / 4), ("sequence", (6 / 3 + 10 / 1) / 2), ("constant", 16 / (2 * 5))],
)
def test_aggregations_by_hand(aggregation: Aggregation, expected: float) -> None:
    values = torch.tensor([[1.0, 2.0, 3.0], [10.0, 99.0, 99.0]], requires_grad=True)
    total = aggregated(values, MASK, aggregation, max_tokens=5)
    total.backward()
    assert total.item() == pytest.approx(expected)
    assert values.grad is not None
    assert values.grad[~MASK].eq(0).all()


@pytest.mark.parametrize("aggregation", ["token", "sequence", "constant"])
def test_the_mean_over_two_shares_is_that_of_the_whole(aggregation: Aggregation) -> None:
    values = torch.tensor([[1.0, 2.0, 3.0], [10.0, 99.0, 99.0]])
    whole = aggregated(values, MASK, aggregation, max_tokens=5)
    tokens = MASK.sum() / 2
    shares = [
        aggregated(values[i : i + 1], MASK[i : i + 1], aggregation, max_tokens=5, tokens=tokens)
        for i in (0, 1)
    ]
    torch.testing.assert_close(torch.stack(shares).mean(), whole)


def test_the_divergence_from_the_reference_has_the_true_one_as_its_mean() -> None:
    logits, ref_logits = torch.randn(
        2, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    )
    logprobs, ref_logprobs = logits.log_softmax(dim=-1), ref_logits.log_softmax(dim=-1)
    policy = torch.distributions.Categorical(logits=logits)
    divergence = torch.distributions.kl_divergence(
        policy, torch.distributions.Categorical(logits=ref_logits)
    )
    estimates = reference_kl(logprobs, ref_logprobs)
    assert (estimates >= 0).all()
    torch.testing.assert_close((logprobs.exp() * estimates).sum(), divergence)
    assert reference_kl(logprobs, logprobs).eq(0).all()


def test_the_value_loss_is_half_the_squared_error() -> None:
    assert value_loss(torch.tensor([1.0, 3.0]), torch.tensor([2.0, 0.0])).tolist() == [0.5, 4.5]


def bonuses(entropies: list[float], **settings: float) -> list[float]:
    """The coefficient of the adaptive entropy bonus in each step."""
    rule, coefficients = (
        AdaptiveEntropyCoefficient(AdaptiveEntropyConfig(target_entropy=0.5, **settings)),
        [],
    )
    for entropy in entropies:
        coefficients.append(rule.applied)
        rule.step(entropy)
    return coefficients


def test_the_coefficient_rises_below_the_target_and_falls_above_it() -> None:
    # At the target counts as below. Applied in a step is what the step before left, and nothing
    # where it lay above.
    assert bonuses([0.5, 0.4, 0.4, 0.6, 0.4, 0.4]) == pytest.approx(
        [0.0, 0.005, 0.010, 0.015, 0.0, 0.015]
    )


def test_the_first_step_has_no_bonus_whatever_the_coefficient() -> None:
    assert bonuses([0.4, 0.4], initial_coefficient=0.1) == pytest.approx([0.0, 0.105])


def test_the_coefficient_stays_within_its_bounds() -> None:
    assert bonuses([0.4] * 4, change_per_step=0.4, largest_coefficient=0.7) == pytest.approx(
        [0, 0.4, 0.7, 0.7]
    )
    assert bonuses([0.6, 0.6, 0.4, 0.4], change_per_step=0.4) == pytest.approx([0, 0, 0, 0.4])


def test_a_loaded_coefficient_continues() -> None:
    config = AdaptiveEntropyConfig(target_entropy=0.5)
    first, second = AdaptiveEntropyCoefficient(config), AdaptiveEntropyCoefficient(config)
    first.step(0.4)
    second.load_state_dict(first.state_dict())
    assert second.applied == first.applied == pytest.approx(0.005)
