"""Each method on tokens worked by hand: the factors of their gradients. Turn a sign of a method,
and its cases break."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from isentrope.methods.base import Centres, top_share_cutoff
from isentrope.methods.covariance import covariance_scores
from isentrope.methods.gate import gated_logprobs
from isentrope.methods.targets import ENTROPY_BONUS, follow_entropy
from isentrope.statistics.moments import threshold_statistics
from isentrope.statistics.tokens import TokenBatch
from isentrope_wire.control import Control
from tests.probe.methods.tokens import kept, many, own_centres, selected, tokens

# mean(S*) = 1, sigma = 1.58; S_c of mean 0 and sigma' = 1
SCORED = tokens(
    [1.0, -1.0, 1.0, -1.0, 0.0, 1.0, -1.0, -1.0],
    discriminator=[-2.0, 0.0, 1.0, 1.0, 1.0, 1.0, 2.0, 4.0],
    centred=torch.tensor([-2.0, -1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 2.0]) / math.sqrt(10 / 8),
)
RAISED = tokens([1.0] * 8, centred=SCORED.scores.vocab_centered_scores)
LOWERED = tokens([-1.0] * 8, centred=SCORED.scores.vocab_centered_scores)
# mean log p = -2, mean A = 0: c = (log p + 2) A = 1, -1, -1, 1, 4, 4
COVARIANT = tokens(
    [1.0, 1.0, -1.0, -1.0, 2.0, -2.0],
    logprobs=[-1.0, -3.0, -1.0, -3.0, 0.0, -4.0],
    ratios=[2, 2, 2, 2, 2.0, 0.5],
)
SIGNED = tokens([1.0, 1.0, -1.0, -1.0, 1.0], discriminator=[0.5, -0.1, 0.5, -0.1, 0.0])
UNDECIDED = tokens([1.0, -1.0, 1.0, -1.0, 1.0], entropies=[0.1, 0.9, 0.5, 0.3, 0.7])
RARE = tokens(
    [1.0, 1.0, 1.0, -1.0, 0.0, 2.0],
    logprobs=[math.log(p) for p in (0.05, 0.25, 0.9, 0.05, 0.05, 1e-9)],
)
MOVED = tokens([1.0, 1.0, 1.0, -1.0, -1.0, -1.0, 0.0], ratios=[1.25, 1.3, 0.5, 0.9, 0.7, 1.5, 9.0])
FLATTER = tokens(
    [1.0, 1.0, -1.0, 1.0], entropies=[0.0, 0.0, 1.0, 1.2], old_entropies=[0.0, 1.0, 1.0, 1.0]
)
# Rewards 1, 1, 0; the first answer is the likeliest: 1 - 0.3 * 2/3 = 0.8, then 1 - 0.3 * 1/3 = 0.9,
# and 0; mean 1.7 / 3
GROUP = tokens(
    torch.tensor([[1 / 3], [1 / 3], [-2 / 3]]),
    logprobs=torch.tensor([[-1.0], [-2.0], [-3.0]]),
    groups=torch.ones(3),
)
# p = 1/2, H = log 2 + 0.01, A = 1: Omega = 0.005, a quarter of the way to 0.02
# mean H = 0.5
BATCH = tokens(
    [1.0, 1.0, 1.0, -1.0, -2.0, 0.0],
    logprobs=[-0.5, -2.0, -1.0, -3.0, -1.0, -9.0],
    entropies=[0.25, 0.75, 0.5, 1.0, 0.5, 0.0],
)
STEADY = tokens([1.0], logprobs=[-math.log(2)], entropies=[math.log(2) + 0.01])


def control(
    method: str,
    scope: str = "all",
    mu: tuple[float | None, float | None] = (None, None),
    **parameters: object,
) -> Control:
    return Control(method=method, mu_low=mu[0], mu_high=mu[1], scope=scope, parameters=parameters)


@pytest.mark.parametrize(
    ("one", "of", "expected"),
    [
        (control("clip_v", mu=(1, 1)), SCORED, [1, 2, 3, 4, 5, 6]),
        (control("clip_v", mu=(1, None)), SCORED, [1, 2, 3, 4, 5, 6, 7]),
        (control("clip_v", mu=(None, 0.5)), SCORED, [0, 1, 2, 3, 4, 5]),
        (control("clip_v", "positive", mu=(1, 1)), SCORED, [1, 2, 3, 4, 5, 6, 7]),
        (control("clip_v", "negative", mu=(1, 1)), SCORED, [0, 1, 2, 3, 4, 5, 6]),
        (
            control("clip_v", "decreasing", mu=(1, 1)),
            SCORED,
            list(range(8)),
        ),  # A S_c < 0 on both tokens outside
        (control("clip_v", "increasing", mu=(1, 1)), SCORED, [1, 2, 3, 4, 5, 6]),
        # The upper side on positive and the lower side on negative samples.
        (control("clip_v", "decreasing", mu=(0.5, 0.5)), RAISED, [0, 1, 2, 3, 4, 5]),
        (control("clip_v", "decreasing", mu=(0.5, 0.5)), LOWERED, [2, 3, 4, 5, 6, 7]),
        # -2 lies 1.9 sigma below the mean, 4 lies 1.9 above, 0 and 2 lie 0.63 off
        (control("clip_b", mu=(1, 1)), SCORED, [1, 2, 3, 4, 5, 6]),
        (control("clip_b", mu=(None, 0.5)), SCORED, [0, 1, 2, 3, 4, 5]),
        (control("clip_b", mu=(2, 2)), SCORED, list(range(8))),
        (control("clip_cov", ratio=1, omega_low=0.5, omega_high=5), COVARIANT, [1, 2]),
        (
            control("clip_cov", ratio=1, omega_low=1, omega_high=4),
            COVARIANT,
            list(range(6)),
        ),  # the bounds are out
        (control("clip_cov", ratio=1, omega_low=0, omega_high=2), COVARIANT, [1, 2, 4, 5]),
        (control("clip_cov", ratio=0, omega_low=-100), COVARIANT, list(range(6))),
        (control("clip_cov", "negative", ratio=1, omega_low=0.5), COVARIANT, [0, 1, 2, 4]),
        (control("score_sign"), SIGNED, [1, 3, 4]),
        (control("score_sign", sign="negative"), SIGNED, [0, 2, 4]),
        (control("score_sign", action="keep"), SIGNED, [0, 2]),
        (control("score_sign", "positive"), SIGNED, [1, 2, 3, 4]),
        (control("score_sign", "negative", action="keep"), SIGNED, [0, 1, 2, 4]),
        (control("top_entropy", fraction=0.4), UNDECIDED, [1, 4]),
        (control("top_entropy", fraction=1.0), UNDECIDED, list(range(5))),
        (control("top_entropy", "positive", fraction=0.2), UNDECIDED, [1, 3]),
        (control("ratio_clip"), MOVED, [0, 2, 3, 5, 6]),
        (control("ratio_clip", epsilon_low=0.05, epsilon_high=0.2), MOVED, [2, 5, 6]),
        (control("ratio_clip", "positive"), MOVED, [0, 2, 3, 4, 5, 6]),
        (control("ratio_clip"), tokens([1.0, -1.0]), [0, 1]),
        (control("entropy_ratio_clip"), FLATTER, [0, 2]),
        (control("entropy_ratio_clip", beta_high=0.3), FLATTER, [0, 2, 3]),
        (control("entrocraft", low=0.51, high=0.6), BATCH, [3, 4, 5]),
        (control("entrocraft", low=0.3, high=0.49), BATCH, [0, 1, 2, 5]),
        (control("entrocraft", low=0.3, high=0.5), BATCH, list(range(6))),
        (control("entrocraft", "negative", low=0.51, high=0.6), BATCH, list(range(6))),
        # Half of the way from 0.6 to 0.44 the lower edge is 0.52, at its end 0.44.
        (
            control("entrocraft", low=0.6, high=0.7, low_end=0.44, high_end=0.54, steps=10),
            replace(BATCH, step=5),
            [3, 4, 5],
        ),
        (
            control("entrocraft", low=0.6, high=0.7, low_end=0.44, high_end=0.54, steps=10),
            replace(BATCH, step=20),
            list(range(6)),
        ),
        (control("entropy_ratio_clip"), tokens([1.0, 1.0], entropies=[5.0, 0.1]), [0, 1]),
    ],
)
def test_tokens_kept(one: Control, of: TokenBatch, expected: list[int]) -> None:
    assert kept(selected(one, of)) == expected


@pytest.mark.parametrize(
    ("one", "of", "expected"),
    [
        # abs: 1 - 1 / (2 * 2) and 1 + 1 / (1/2 * -2); k3: 1 - (2 - 1) / (2 * 2) and 1 - (1/2 - 1) /
        # (1/2 * -2)
        (control("kl_cov", k=1 / 3), COVARIANT, [1, 1, 1, 1, 0.75, 0]),
        (control("kl_cov", k=1 / 3, estimator="k3"), COVARIANT, [1, 1, 1, 1, 0.75, 0.5]),
        (control("kl_cov", k=1 / 3, beta=0.1), COVARIANT, [1, 1, 1, 1, 0.975, 0.9]),
        (control("kl_cov", "positive", k=1 / 3), COVARIANT, [1, 1, 1, 1, 0.75, 1]),
        (control("kl_cov", k=0.5, beta=0), COVARIANT, [1] * 6),
        (control("kl_cov", k=0), COVARIANT, [1] * 6),
        (control("unlikely", strength=2, below=0.2), RARE, [2.5, 1, 1, 1, 1, 3]),
        (control("unlikely", strength=0), RARE, [1] * 6),
        (control("positive_advantage", weight=0.3), RARE, [0.3, 0.3, 0.3, 1, 1, 0.3]),
        (
            control("rank_reward", beta=0.3, normalise="none"),
            GROUP,
            [3 * (0.8 - 1.7 / 3), 3 * (0.9 - 1.7 / 3), 0.85],
        ),
        (control("rank_reward", beta=0), GROUP, [1, 1, 1]),
        (control("steer", minimum_weight=0.8), STEADY, [0.8**0.25]),
        (control("steer", minimum_weight=1.0), STEADY, [1]),
        # Of three tokens with A > 0 a tenth, and of two with A < 0, is one: the least likely.
        (control("stare", target_entropy=0.51), BATCH, [1, 1.1, 1, 1, 1, 1]),
        (control("stare", target_entropy=0.51, attenuate=0.9), BATCH, [1, 1.1, 1, 0.9, 1, 1]),
        (control("stare", target_entropy=0.51, share=0.5), BATCH, [1, 1.1, 1.1, 1, 1, 1]),
        (control("stare", target_entropy=0.5, attenuate=0.9), BATCH, [1] * 6),
        # 1 - 0.1 (log p + H) / A
        (
            control("entropy_bonus", coefficient=0.1),
            BATCH,
            [1.025, 1.125, 1.05, 1 - 0.2, 1 - 0.1 * 0.25, 1],
        ),
        (control("entropy_bonus", "negative", coefficient=-0.1), BATCH, [1, 1, 1, 1.2, 1.025, 1]),
        (control("entropy_bonus", coefficient=0.1, target_entropy=0.5), BATCH, [1] * 6),
    ],
)
def test_weights(one: Control, of: TokenBatch, expected: list[float]) -> None:
    assert selected(one, of).factors.flatten().tolist() == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(
    ("one", "of"),
    [
        (control("clip_v", mu=(1, 1)), tokens([1.0, 1.0], centred=[math.nan, 0.0])),
        (control("score_sign", action="keep"), tokens([1.0, 1.0], discriminator=[math.nan, 1.0])),
        (control("top_entropy", fraction=1.0), tokens([1.0, 1.0], entropies=[math.nan, 0.2])),
        (control("unlikely"), tokens([1.0, 1.0], logprobs=[math.nan, -0.1])),
        (control("entrocraft"), tokens([1.0, 1.0], entropies=[math.nan] * 2)),
        (control("stare"), tokens([1.0, 1.0], logprobs=[math.nan] * 2)),
        (control("stare"), tokens([1.0, 1.0], entropies=[math.nan] * 2)),
        (control("entropy_bonus"), tokens([0.0, 1.0], logprobs=[-1.0, math.nan])),
        (control("unlikely"), tokens([1.0, 1.0], logprobs=[-9.0, -0.1], mask=[False, True])),
        (
            control("entropy_ratio_clip"),
            tokens([1.0, 1.0], entropies=[math.nan, 1], old_entropies=[1.0, 1]),
        ),
        (
            control("steer"),
            tokens([1.0, math.nan, 1.0], logprobs=[math.nan, -1.0, -math.inf], entropies=[1.0] * 3),
        ),
        (
            control("rank_reward"),
            tokens(
                [[1.0, 1.0], [-1.0, -1.0]],  # type: ignore[list-item]
                logprobs=[[-1.0, -1], [-2, -2]],  # type: ignore[list-item]
            ),
        ),
        (
            control("rank_reward"),
            tokens(
                [[1.0], [-1.0]],  # type: ignore[list-item]
                logprobs=[[-1.0], [-2]],  # type: ignore[list-item]
                groups=torch.tensor([1, 2]),
            ),
        ),
        (
            control("clip_cov", ratio=1, omega_low=-99, omega_high=99),
            tokens([1.0, math.nan], logprobs=[math.nan, -1.0]),
        ),
    ],
)
def test_what_is_unknown_or_not_finite_keeps_its_gradient(one: Control, of: TokenBatch) -> None:
    assert (selected(one, of).factors == 1).all()


def test_entropy_bonus_follows_the_entropy() -> None:
    """TRL: off in the first step; on after a step at or below the target, by the coefficient moved
    since."""
    numbers = {"coefficient": 0.1, "target_entropy": 0.5, "change_per_step": 0.02, "largest": 0.11}
    one = Control(method="entropy_bonus", parameters=numbers)
    at, above = BATCH, replace(BATCH, scores=replace(BATCH.scores, entropies=torch.ones(6)))
    state = follow_entropy(one, at, None)
    assert state.tolist() == pytest.approx([0.11, 0.5])  # 0.12, and no more than the largest
    factors = ENTROPY_BONUS.select(one, at, own_centres(at), state).factors
    assert factors[0].item() == pytest.approx(1 + 0.11 * 0.25)
    state = follow_entropy(one, above, state)
    assert state.tolist() == pytest.approx([0.09, 1.0])
    assert (ENTROPY_BONUS.select(one, at, own_centres(at), state).factors == 1).all()
    nothing = replace(BATCH, mask=torch.zeros(6, dtype=torch.bool))
    assert follow_entropy(one, nothing, state)[0].item() == pytest.approx(0.09)


def test_sampled_bonus_has_the_gradient_of_the_entropy() -> None:
    """Summed over every token, weighted by its probability: the gradient of -A log p - alpha H."""
    logits = torch.tensor([0.3, -1.0, 2.0, 0.5], dtype=torch.float64, requires_grad=True)
    logprobs = torch.log_softmax(logits, 0)
    p, entropy = logprobs.exp().detach(), -(logprobs.exp() * logprobs).sum()
    advantages = torch.tensor([1.0, -1.0, 0.5, -2.0])
    batch = tokens(
        advantages, logprobs=logprobs.detach(), entropies=entropy.detach().expand(4).clone()
    )
    factors = selected(control("entropy_bonus", coefficient=0.3), batch).factors
    gated = gated_logprobs(logprobs, factors)
    (got,) = torch.autograd.grad(-(p * advantages * gated).sum(), logits, retain_graph=True)
    plain = -(p * advantages * logprobs).sum() - 0.3 * entropy
    (wanted,) = torch.autograd.grad(plain, logits)
    assert got.tolist() == pytest.approx(wanted.tolist(), abs=1e-6)


def test_sigma_leaves_out_padding_and_what_is_not_finite_and_merges_micro_batches() -> None:
    """Over both signs of A, of the population."""
    scores = SCORED.scores
    poisoned = tokens(
        [1.0] * 10,
        discriminator=torch.cat([scores.discriminator_scores, torch.tensor([1.0, 1.0])]),
        centred=torch.cat([scores.vocab_centered_scores, torch.tensor([math.nan, 1e9])]),
    ).scores
    mask = torch.tensor([True] * 9 + [False])
    halves = [
        type(poisoned)(*(getattr(poisoned, name)[part] for name in poisoned.__slots__[:5]))
        for part in (slice(0, 4), slice(4, None))
    ]
    for found in (
        threshold_statistics([poisoned], [mask]),
        threshold_statistics(halves, [mask[:4], mask[4:]]),
    ):
        assert found.discriminator_mean.item() == pytest.approx(1.0)
        assert found.discriminator_std.item() == pytest.approx(math.sqrt(20 / 8))
        assert found.vocab_centered_std.item() == pytest.approx(1.0)


def test_covariance_is_counted_from_the_batch_s_means() -> None:
    one_sequence = tokens([1.0, 1.0, 1.0], logprobs=[0.0, -2.0, -4.0])
    statistics = threshold_statistics([one_sequence.scores], [one_sequence.mask])
    of_the_batch = Centres(statistics, torch.tensor(-2.0).double(), torch.tensor(0.0).double())
    one = control("clip_cov", ratio=1, omega_low=1)
    assert kept(selected(one, one_sequence)) == [0, 1, 2]  # counted from itself: nothing
    assert kept(selected(one, one_sequence, of_the_batch)) == [1, 2]


def test_clip_cov_leaves_out_its_share_however_small_the_micro_batch() -> None:
    dropped = valid = 0
    for part in range(100):
        of = many(60, seed=part)
        of = tokens(
            of.advantages, logprobs=of.scores.logprobs, mask=of.mask, first_position=60 * part
        )
        selection = selected(control("clip_cov", ratio=0.05, omega_low=0), of)
        assert torch.equal(
            selection.selected,
            of.mask & ((c := covariance_scores(of, own_centres(of))) > 0) & (c < 5),
        )
        assert not (~selection.factors & ~selection.selected).any()
        dropped += int((~selection.factors).sum())
        valid += int(of.mask.sum())
    assert abs(dropped - 0.05 * valid) < 4 * math.sqrt(0.05 * valid)


def test_clip_cov_draws_by_seed_step_and_rank_alone() -> None:
    of = many(1000)

    def choice(seed: int = 0, step: int = 4, rank: int = 1) -> list[int]:
        again = tokens(
            of.advantages, logprobs=of.scores.logprobs, mask=of.mask, step=step, rank=rank
        )
        return kept(selected(control("clip_cov", ratio=0.1, omega_low=0, seed=seed), again))

    first = choice()
    torch.rand(1)
    assert choice() == first
    assert all(other != first for other in (choice(seed=1), choice(step=5), choice(rank=0)))


def test_top_share_worked_by_hand() -> None:
    values, mask = (
        torch.tensor([5.0, 1.0, 3.0, 9.0, 2.0]),
        torch.tensor([True, True, True, False, True]),
    )
    assert [top_share_cutoff(values, mask, share).item() for share in (0.5, 0.25, 0.1, 1)] == [
        3,
        5,
        math.inf,
        1,
    ]
    hundred, all_of_them = torch.arange(100.0), torch.ones(100, dtype=torch.bool)
    # 0.29 * 100 is a hair below 29; rounded down, but to no less than one.
    found = [
        top_share_cutoff(hundred, all_of_them, share, at_most=True).item()
        for share in (0.29, 0.299, 0.009, 0)
    ]
    assert found == [71, 71, 99, math.inf]
    few = hundred > 97
    assert top_share_cutoff(hundred, all_of_them, 0.5, among=few) == -math.inf
    assert top_share_cutoff(hundred, all_of_them, 0.01, among=few) == 99
    odd = torch.tensor([math.nan, 1.0, math.inf, 2.0])
    assert top_share_cutoff(odd, torch.ones(4, dtype=torch.bool), 0.5) == 1
    assert top_share_cutoff(torch.zeros(0), torch.zeros(0, dtype=torch.bool), 0.5) == math.inf
