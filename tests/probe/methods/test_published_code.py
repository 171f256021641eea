"""Methods against the losses and masks of the papers' own code, written out here."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from isentrope.methods.covariance import token_draw
from isentrope.methods.gate import gated_logprobs
from isentrope.methods.weights import estimated_changes
from isentrope.statistics.tokens import TokenBatch
from isentrope_wire.control import Control
from tests.probe.methods.tokens import many, selected, tokens


def control(method: str, **parameters: object) -> Control:
    return Control(method=method, parameters=parameters)


def old_logprobs(of: TokenBatch) -> Tensor:
    assert of.importance_ratios is not None
    return of.scores.logprobs.double() - of.importance_ratios.double().log()


def gradient(of: TokenBatch, one: Control, scale: float = 1.0) -> Tensor:
    """dL/dlog p of a mean of -A r over the mask, through the gate."""
    logprobs = of.scores.logprobs.double().requires_grad_()
    gated = gated_logprobs(logprobs, selected(one, of).factors)
    loss = -(of.advantages * (gated - old_logprobs(of)).exp())[of.mask].mean()
    (found,) = torch.autograd.grad(scale * loss, logprobs)
    return found


@pytest.mark.parametrize("estimator", ["abs", "k3"])
@pytest.mark.parametrize("k", [1e-4, 0.0119, 0.1])
def test_kl_cov_listing_1(k: float, estimator: str) -> None:
    """The penalty on the top tokens by covariance is added to the loss: |log r|, or r - 1 - log
    r."""
    of, scale = many(300), 65536.0
    logprobs = of.scores.logprobs.double().requires_grad_()
    differences = logprobs - old_logprobs(of)
    losses = -of.advantages.double() * differences.exp()
    with torch.no_grad():
        places = of.mask.nonzero().flatten()
        log_p, a = logprobs[places], of.advantages.double()[places]
        top = places[
            ((a - a.mean()) * (log_p - log_p.mean())).topk(max(1, int(len(places) * k))).indices
        ]
    penalty = (
        differences[top].abs()
        if estimator == "abs"
        else differences[top].exp() - 1 - differences[top]
    )
    losses = losses.index_add(0, top, 0.7 * penalty)
    (wanted,) = torch.autograd.grad(scale * losses[of.mask].mean(), logprobs)
    ours = gradient(of, control("kl_cov", k=k, beta=0.7, estimator=estimator), scale)
    torch.testing.assert_close(ours, wanted, rtol=1e-5, atol=scale * 1e-7)


@pytest.mark.parametrize(
    "ratios", [None, [1.0] * 4, [1 + 1e-7] * 4], ids=["unknown", "one", "round-off"]
)
def test_kl_cov_changes_nothing_on_policy(ratios: list[float] | None) -> None:
    of = tokens([1.0, -1.0, 2.0, 1.0], logprobs=[-1.0, -3.0, 0.0, -2.0], ratios=ratios)
    selection = selected(control("kl_cov", k=0.5), of)
    assert (selection.factors.tolist(), int(selection.selected.sum())) == ([1.0] * 4, 2)


@pytest.mark.parametrize("estimator", ["abs", "k3"])
def test_kl_cov_stays_finite(estimator: str) -> None:
    of = tokens([0.0, 4.0, -4.0], logprobs=[0.0, 0.0, -9.0], ratios=[3.0, 0.0, math.inf])
    factors = selected(control("kl_cov", k=1.0, estimator=estimator), of).factors
    assert factors.isfinite().all()
    assert factors[0] == 1


@pytest.mark.parametrize("minimum", [0.5, 0.8])
def test_steer_weights(minimum: float) -> None:
    """exp(-k |Omega|), Omega = (A / p_old) p (1 - p) (log p + H), k so that the largest of the
    batch gets the minimum."""
    of = many(500)
    p, old = of.scores.logprobs.double().exp(), old_logprobs(of).exp()
    omega = (of.advantages / old * p * (1 - p) * (p.log() + of.scores.entropies)).abs()
    k = -math.log(minimum) / max(omega[of.mask].max().item(), 0.02)
    wanted = torch.where(of.mask, (-k * omega).exp().clamp(min=minimum, max=1.0), 1.0)
    selection = selected(control("steer", minimum_weight=minimum), of)
    torch.testing.assert_close(selection.factors.double(), wanted, rtol=1e-5, atol=1e-6)
    assert torch.equal(selection.selected, of.mask & (selection.factors < 1))


def test_steer_exact_estimate_is_theorem_2() -> None:
    of = many(50)
    assert of.importance_ratios is not None
    changes = (
        (of.importance_ratios * of.advantages * of.scores.vocab_centered_scores).abs().double()
    )
    one = control("steer", estimate="exact")
    torch.testing.assert_close(estimated_changes(one, of), changes, rtol=1e-5, atol=1e-7)
    assert (selected(one, of).factors[of.mask][changes[of.mask].argsort()].diff() <= 0).all()


LENGTH = 5


def normalised(rewards: Tensor, normalise: str) -> Tensor:
    centred = rewards - rewards.mean()
    return centred / (rewards.std() + 1e-6) if normalise == "std" else centred


def answers(
    seed: int, normalise: str, sizes: tuple[int, ...] = (2, 4, 8, 8)
) -> tuple[TokenBatch, Tensor, Tensor]:
    """Groups of answers right or wrong, rows in any order, lengths from 1 to 5; the rewards and the
    old log-probs too."""
    g = torch.Generator().manual_seed(seed)
    groups = torch.cat([torch.full((size,), index) for index, size in enumerate(sizes)])
    groups = groups[torch.randperm(len(groups), generator=g)]
    rewards = torch.randint(0, 2, (len(groups),), generator=g).double()
    advantages = torch.zeros(len(groups), dtype=torch.float64)
    for group in groups.unique():
        advantages[groups == group] = normalised(rewards[groups == group], normalise)
    mask = torch.arange(LENGTH) < torch.randint(1, LENGTH + 1, (len(groups), 1), generator=g)
    old = -torch.rand(len(groups), LENGTH, generator=g, dtype=torch.float64) * 3
    ratios = (0.3 * torch.randn(len(groups), LENGTH, generator=g, dtype=torch.float64)).exp()
    of = tokens(
        advantages.unsqueeze(1).expand(-1, LENGTH),
        logprobs=old + ratios.log(),
        ratios=ratios,
        mask=mask,
        groups=groups,
    )
    return of, rewards, old


@pytest.mark.parametrize("normalise", ["std", "none"])
@pytest.mark.parametrize("seed", range(2))
def test_rank_reward_advantages(seed: int, normalise: str) -> None:
    of, rewards, old = answers(seed, normalise)
    selection = selected(control("rank_reward", beta=0.25, normalise=normalise), of)
    ours = of.advantages.double() * selection.factors.double()
    assert of.group_ids is not None
    varied = 0
    for group in of.group_ids.unique():
        rows = (of.group_ids == group).nonzero().flatten()
        likelihoods = torch.stack([old[row][of.mask[row]].mean() for row in rows])
        places = likelihoods.argsort().argsort()  # 0: the least likely
        wanted = normalised(rewards[rows] * (1 - 0.25 * places / len(rows)), normalise)
        if rewards[rows].min() == rewards[rows].max():
            wanted = torch.zeros_like(wanted)  # an advantage of 0 has no gradient to multiply
        else:
            varied += 1
        expected = wanted.unsqueeze(1).expand(-1, LENGTH)
        torch.testing.assert_close(
            ours[rows][of.mask[rows]], expected[of.mask[rows]], rtol=1e-4, atol=1e-5
        )
    assert varied >= 2
    assert torch.equal(selection.selected, of.mask & (of.advantages != 0))


def test_rank_reward_leaves_out_padding_rows_and_odd_numbers() -> None:
    of, _, _ = answers(1, "std", sizes=(4,))
    whole = selected(control("rank_reward"), of).factors
    assert of.importance_ratios is not None
    assert of.group_ids is not None
    broken = tokens(
        torch.cat([of.advantages, torch.tensor([[math.nan] * LENGTH, [5.0] * LENGTH])]),
        logprobs=torch.cat([of.scores.logprobs, torch.full((2, LENGTH), math.nan)]),
        ratios=torch.cat([of.importance_ratios, torch.ones(2, LENGTH)]),
        mask=torch.cat([of.mask, torch.tensor([[True] * LENGTH, [False] * LENGTH])]),
        groups=torch.cat([of.group_ids, torch.zeros(2)]),
    )
    assert torch.equal(
        selected(control("rank_reward"), broken).factors, torch.cat([whole, torch.ones(2, LENGTH)])
    )


@pytest.mark.parametrize(
    ("method", "share"), [("clip_b", 1.0), ("clip_v", 1e-4), ("clip_v", 0.02), ("clip_v", 1.0)]
)
def test_trinity_advantage_functions(method: str, share: float) -> None:
    """Preset `trinity`: A < 0 only, beyond mu sigma below; of Clip_V a share but at least one, and
    all tokens with A = 0."""
    of = many(2711)
    third = torch.rand(2711, generator=torch.Generator().manual_seed(0)) > 2 / 3
    s, c = of.scores.discriminator_scores, of.scores.vocab_centered_scores
    of = tokens(of.advantages.masked_fill(third, 0.0), discriminator=s, centred=c, mask=of.mask)
    below = -(s if method == "clip_b" else c).double()
    mean = below[of.mask].mean()
    sigma = (below - mean)[of.mask].square().mean().sqrt()
    beyond = of.mask & ((below - mean if method == "clip_b" else below) > sigma)
    dropped = beyond & (of.advantages < 0)
    most = max(int(share * int(of.mask.sum())), 1)
    if int(dropped.sum()) > most:
        furthest = below.masked_fill(~dropped, -torch.inf).topk(most).indices
        dropped = torch.zeros_like(dropped).index_fill(0, furthest, True)
    if method == "clip_v":
        dropped |= beyond & (of.advantages == 0)
    cap: dict[str, object] = {"max_fraction": share} if method == "clip_v" else {}
    factors = selected(
        Control(method=method, mu_low=1.0, parameters={"preset": "trinity", **cap}), of
    ).factors
    assert torch.equal(of.mask & (factors == 0), dropped)
    counted = int(of.mask.sum())
    assert factors.max().item() == pytest.approx(counted / (counted - int(dropped.sum())))


_WORD = 1 << 64


def splitmix64(word: int) -> int:
    """One output of the generator of Steele, Lea and Flood (2014), in plain whole numbers."""
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) % _WORD
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) % _WORD
    return word ^ (word >> 31)


def test_draw_is_splitmix64_bit_for_bit() -> None:
    golden, key = 0x9E3779B97F4A7C15, 0
    assert splitmix64(golden) == 0xE220A8397B1DCDAF  # seed 0: the first output, as published
    for number in (3, 14, 15):
        key = splitmix64((key + number + 1) * golden % _WORD)
    expected = [
        (splitmix64((position * golden + key) % _WORD) >> 11) / 2**53 for position in range(64)
    ]
    state = torch.get_rng_state()
    assert token_draw(3, 14, 15, torch.arange(64)).tolist() == expected
    assert torch.equal(torch.get_rng_state(), state)
