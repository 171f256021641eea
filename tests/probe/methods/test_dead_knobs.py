"""A knob that can't act is named, with the reason, and one that can is not."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch

from isentrope.scores import token_scores
from isentrope_wire.control import Control
from isentrope_wire.diagnosis.effect import dead_knobs
from isentrope_wire.methods import METHODS, StepEvidence
from tests.probe.tiny_loop import TinyLoop, probe_and_transport, reports

STEP = StepEvidence(
    tokens=1000,
    positive=400,
    negative=500,
    candidates=50,
    spared=0,
    decreasing=300,
    increasing=600,
    discriminator_mean=0.02,
    discriminator_std=0.1,
    vocab_centered_std=0.05,
    largest_entropy=2.5,
    largest_expected_score=0.4,
    ratio_spread=0.03,
    groups=4,
    old_entropies_known=True,
)


def control(
    method: str, scope: str = "all", mu_low: float | None = None, **parameters: object
) -> Control:
    return Control(method=method, scope=scope, mu_low=mu_low, parameters=parameters)


@pytest.mark.parametrize(
    "alive",
    [
        control("clip_b", mu_low=2.4),
        control("clip_v", mu_low=12.4),
        Control(method="clip_b", mu_high=24.7),
        Control(method="clip_v", mu_high=49.9),
        control("clip_v", scope="decreasing", mu_low=1),
        control("clip_v", scope="increasing", mu_low=1),
        control("clip_v", mu_low=1, max_fraction=0.1, epsilon_high=0.2),
        control("clip_cov", ratio=0.05),
    ],
    ids=lambda one: str(one.method),
)
def test_a_knob_that_acts_is_not_named(alive: Control) -> None:
    assert dead_knobs(alive, STEP) == ()


@pytest.mark.parametrize(
    ("one", "changed", "words"),
    [
        (
            control("kl_cov"),
            {"ratio_spread": None},
            "beta can't act: the importance ratio is not known",
        ),
        (
            control("kl_cov"),
            {"ratio_spread": 1e-9},
            "beta can't act: the importance ratio is 1 on every token",
        ),
        (control("ratio_clip"), {"ratio_spread": 0.0}, "epsilon_low and epsilon_high can't act"),
        (
            control("clip_v", mu_low=1, epsilon_high=0.2),
            {"ratio_spread": 0.0},
            "epsilon_high can't act",
        ),
        (control("kl_cov", beta=0), {}, "beta is 0"),
        (control("kl_cov", k=0), {}, "k is 0"),
        (control("clip_cov", ratio=0), {}, "ratio is 0"),
        (control("clip_cov"), {"candidates": 0}, "No token's covariance lies between"),
        (control("clip_cov", ratio=0.1), {}, "Only 50 of 1000 tokens .* fewer than the 100"),
        (control("unlikely", strength=0), {}, "strength is 0"),
        (control("rank_reward", beta=0), {}, "beta is 0"),
        (control("rank_reward"), {"groups": 0}, "no group of sequences is known"),
        (control("positive_advantage", weight=1), {}, "weight is 1"),
        (control("positive_advantage"), {"positive": 0}, "The positive side holds no token"),
        (control("steer", minimum_weight=1), {"candidates": 0}, "minimum_weight is 1"),
        (control("steer"), {"candidates": 0}, "No token's update is estimated to change"),
        (
            control("entropy_ratio_clip"),
            {"old_entropies_known": False},
            "old policy's entropies are not known",
        ),
        (control("entropy_ratio_clip"), {"candidates": 0}, "No token's entropy has moved"),
        (control("top_entropy", fraction=1), {}, "fraction is 1"),
        # (0.02 + 0.22388) / 0.1
        (
            control("clip_b", mu_low=2.44),
            {},
            "mu_low 2.44 clips nothing .* lower side ends at 2.44",
        ),
        (control("clip_b", mu_low=2.5), {}, "Only a smaller mu_low would clip."),
        # (2.5 - 0.02) / 0.1
        (
            Control(method="clip_b", mu_high=24.8),
            {},
            "mu_high 24.8 clips nothing .* upper side ends at 24.8",
        ),
        # (0.4 + 0.22388) / 0.05
        (
            control("clip_v", mu_low=12.5),
            {},
            "mu_low 12.5 clips nothing .* lower side ends at 12.5",
        ),
        # 2.5 / 0.05
        (
            Control(method="clip_v", mu_high=50),
            {},
            "mu_high 50 clips nothing .* upper side ends at 50",
        ),
        # A mean below 0 brings the end nearer: (-0.2 + 0.22388) / 0.1
        (
            control("clip_b", mu_low=0.25),
            {"discriminator_mean": -0.2},
            "mu_low 0.25 clips nothing .* lower side ends at 0.239",
        ),
        (
            control("clip_v", mu_low=1, scope="decreasing"),
            {"decreasing": 0},
            "scope decreasing holds no token",
        ),
        (
            control("clip_v", mu_low=1, scope="increasing"),
            {"increasing": 0},
            "scope increasing holds no token",
        ),
        (control("unlikely"), {"candidates": 0}, "No token with A > 0 is less likely than 0.2"),
        (
            control("clip_v", mu_low=1, epsilon_low=0.2),
            {"ratio_spread": None},
            "epsilon_low can't act",
        ),
        (
            control("clip_v", mu_low=1, max_fraction=0.01),
            {"spared": 40},
            "0.01 binds: 50 of 1000 .* and 10 are clipped",
        ),
        (
            control("clip_v", mu_low=1, scope="negative"),
            {"negative": 0},
            "scope negative holds no token",
        ),
        (
            control("clip_v", mu_low=1, scope="positive"),
            {"positive": 0},
            "scope positive holds no token",
        ),
        (control("unlikely"), {"positive": 0}, "The positive side holds no token"),
        (control("clip_v", mu_low=1), {"positive": 0, "negative": 0}, "Every advantage is 0"),
    ],
)
def test_a_dead_knob_is_named_with_its_reason(
    one: Control, changed: dict[str, float], words: str
) -> None:
    (sentence,) = dead_knobs(one, replace(STEP, **changed))  # type: ignore[arg-type]
    assert re.search(words, sentence), sentence


@pytest.mark.parametrize(
    ("name", "outside"), [("mu_low", "outside_low"), ("mu_high", "outside_high")]
)
def test_a_side_that_left_tokens_out_is_not_called_dead(name: str, outside: str) -> None:
    """They were counted from the step's before, whose scores spread less."""
    one = Control(method="clip_v", mu_low=50.0, mu_high=50.0)
    assert [name in sentence for sentence in dead_knobs(one, STEP)].count(True) == 1
    assert not any(
        name in sentence
        for sentence in dead_knobs(one, replace(STEP, **{outside: 3.0}))  # type: ignore[arg-type]
    )


def test_a_threshold_that_clipped_by_the_last_step_s_spread_is_not_called_dead_in_the_report() -> (
    None
):
    loop = TinyLoop()
    far = Control(method="clip_v", mu_low=50.0, mu_high=50.0)
    probe, transport = probe_and_transport(control=far, threshold_source="previous_step")
    for step, sharpness in enumerate((0.001, 4.0, 4.0)):
        logits, token_ids, advantages = loop.sample()
        probe.gate(probe.score(sharpness * logits.detach(), token_ids), advantages, loop.mask)
        probe.step(step)
    clipped = [report.scalars["clip/fraction"] for report in reports(transport)]
    assert clipped[1] > 0.5
    assert "control/dead" not in reports(transport)[1].labels
    assert "mu_low 50 clips nothing" in reports(transport)[2].labels["control/dead"]


def test_an_update_from_the_policy_the_tokens_came_from_is_told_apart_from_a_later_one() -> None:
    probe, transport = probe_and_transport(control=control("kl_cov", k=0.2))
    loop = TinyLoop()
    logits, token_ids, advantages = loop.sample()
    old = probe.score(logits, token_ids).logprobs.detach()
    for step in (0, 1):
        scores = probe.score(loop.policy(loop.states), token_ids)
        loop.update(probe.gate(scores, advantages, loop.mask, old_logprobs=old), advantages)
        probe.step(step)
    # A sampler's log-probs are the same policy's but for round-off: a penalty of |log r| would
    # follow its sign.
    own = torch.ones_like(old, requires_grad=True)
    scores = probe.score(loop.policy(loop.states), token_ids)
    near = scores.logprobs.detach() + 1e-5 * torch.randn_like(old)
    gated = probe.gate(scores, advantages, loop.mask, logprobs=own, sampler_logprobs=near)
    assert bool((torch.autograd.grad(gated.sum(), own)[0] == 1).all())
    probe.step(2)
    on_policy, off_policy, sampled = reports(transport)
    assert "Give gate old_logprobs" in sampled.labels["control/dead"]
    assert "importance ratio is 1 on every token" in on_policy.labels["control/dead"]
    assert "control/dead" not in off_policy.labels


def test_several_dead_knobs_are_all_named() -> None:
    one = control("kl_cov", beta=0, scope="negative")
    assert len(dead_knobs(one, replace(STEP, negative=0, ratio_spread=None))) == 3


def test_a_step_without_tokens_tells_nothing() -> None:
    assert dead_knobs(control("kl_cov", beta=0), replace(STEP, tokens=0)) == ()


@pytest.mark.parametrize("vocabulary", [2, 5, 40])
@pytest.mark.parametrize("sharpness", [0.1, 1.0, 4.0, 12.0])
def test_no_token_lies_beyond_where_a_side_ends(vocabulary: int, sharpness: float) -> None:
    """Of any distributions, whichever tokens are drawn: every token of the vocabulary is scored."""
    generator = torch.Generator().manual_seed(vocabulary)
    logits = sharpness * torch.randn(200, 1, vocabulary, generator=generator, dtype=torch.float64)
    every = torch.arange(vocabulary).expand(200, vocabulary)
    scores = token_scores(logits.expand(200, vocabulary, vocabulary), every)
    s, c = scores.discriminator_scores, scores.vocab_centered_scores
    assert scores.expected_scores.min() >= -1e-12
    step = replace(
        STEP,
        discriminator_mean=s.mean().item(),
        discriminator_std=s.std(correction=0).item(),
        vocab_centered_std=c.std(correction=0).item(),
        largest_entropy=scores.entropies.max().item(),
        largest_expected_score=scores.expected_scores.max().item(),
    )
    for values, bounds in (((s - s.mean()) / s.std(correction=0), METHODS["clip_b"].bounds(step)),
                           (c / c.std(correction=0), METHODS["clip_v"].bounds(step))):  # fmt: skip
        assert bounds.low is not None
        assert bounds.high is not None
        # The lowest is rounded to five digits.
        assert -values.min().item() <= bounds.low * (1 + 1e-4)
        assert values.max().item() <= bounds.high * (1 + 1e-9)


def test_a_threshold_that_a_hold_rests_out_there_is_no_dead_knob() -> None:
    resting = Control(method="clip_v", mu_low=99, mu_high=99, hold={"target_entropy": 1.0})
    assert dead_knobs(resting, STEP) == ()


def test_scores_that_do_not_scatter_have_no_end() -> None:
    flat = replace(STEP, discriminator_std=0.0, vocab_centered_std=0.0)
    assert (
        dead_knobs(control("clip_b", mu_low=99), flat)
        == dead_knobs(control("clip_v", mu_low=99), flat)
        == ()
    )
