"""Failures as users reported them in public, in the names that their trainer logs: each gets a
finding in plain words."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from isentrope.cli.diagnose import diagnosis_of

Row = dict[str, float]
NOISE = random.Random(0)


def near(value: float, scatter: float = 0.05) -> float:
    return value * (1 + NOISE.gauss(0, scatter))


def nothing_is_paid(step: int) -> Row:
    return {"reward": 0.0, "reward_std": 0.0, "loss": 0.0, "grad_norm": 0.0}


def parts_cancel(step: int) -> Row:
    parts = {"rewards/rewrite/mean": -3.0, "rewards/format/mean": 2.0, "rewards/json/mean": 4.0}
    return {"reward": 3.0, "reward_std": 0.0, "frac_reward_zero_std": 1.0, **parts}


def adapters_are_not_trained(step: int) -> Row:
    paid = {"reward": near(0.34), "reward_std": near(0.44), "frac_reward_zero_std": 0.0}
    return {**paid, "grad_norm": 0.0, "kl": 0.0}


def gradient_and_entropy_jump(step: int) -> Row:
    grows = math.exp(max(0, step - 60) / 12)
    lengths = {"response_length/mean": near(300) * min(grows, 3)}
    spiking = 40.0 if step > 60 and step % 9 == 0 else near(0.3)
    return {"actor/entropy": near(0.4) * min(grows, 8), "actor/grad_norm": spiking, **lengths}


def weights_are_lost(step: int) -> Row:
    if step < 50:
        return {"critic/score/mean": near(0.5), "actor/grad_norm": near(0.3)}
    return {"critic/score/mean": 0.0, "actor/grad_norm": math.nan, "actor/entropy": math.nan}


def reward_collapses_late(step: int) -> Row:
    learnt = near(min(0.2 + step / 100, 0.9))
    return {"reward/all/mean": learnt if step < 120 else near(0.1), "optim/grad_norm": near(1.0)}


def kl_rises_and_scores_fall(step: int) -> Row:
    return {"objective/kl": 0.0004 * step * step, "objective/scores": near(0.5) - step / 300}


def format_comes_and_goes(step: int) -> Row:
    return {"reward": 0.5 + 0.4 * math.sin(step / 12) + NOISE.gauss(0, 0.02)}


def rate_is_far_too_low(step: int) -> Row:
    return {"reward": 0.3 + NOISE.gauss(0, 0.03), "learning_rate": 1e-9, "kl": 1e-7}


def generated_otherwise_than_scored(step: int) -> Row:
    return {"objective/kl": near(-5.27), "objective/rlhf_reward": near(1.0)}


def nothing_ends(step: int) -> Row:
    lengths = {"completions/clipped_ratio": 1.0, "completions/mean_length": 512.0}
    return {**lengths, "reward": 0.0, "frac_reward_zero_std": 1.0}


def policy_draws_one_answer(step: int) -> Row:
    return {"entropy": 0.001, "frac_reward_zero_std": 0.98, "reward": near(0.5)}


def critic_diverges(step: int) -> Row:
    return {"critic/vf_loss": near(0.1) * math.exp(step / 20), "critic/score/mean": near(0.4)}


def sampler_is_another(step: int) -> Row:
    return {"sampling/sampling_logp_difference/mean": near(0.6), "reward": near(0.3)}


@pytest.mark.parametrize(
    ("row_of", "findings"),
    [
        (nothing_is_paid, {"zero_advantage"}),  # trl 3452
        (parts_cancel, {"zero_advantage/constant"}),  # trl 3857
        (adapters_are_not_trained, {"gradient/zero"}),  # ms-swift 5571
        (gradient_and_entropy_jump, {"explosion", "gradient/spike"}),  # verl 1066
        (weights_are_lost, {"gradient/not_finite"}),  # verl 747
        (reward_collapses_late, {"decline/lost"}),  # prime-rl 964
        (kl_rises_and_scores_fall, {"decline/from_start"}),  # trl 1098
        (format_comes_and_goes, {"decline/lost"}),  # open-r1 403
        (rate_is_far_too_low, {"plateau"}),  # trl 495
        (generated_otherwise_than_scored, {"kl/negative"}),  # LlamaFactory 664
        (nothing_ends, {"truncation/never_ends"}),  # DeepSpeedExamples 470
        (policy_draws_one_answer, {"zero_advantage/identical"}),  # trl 204
        (critic_diverges, {"value/loss"}),
        (sampler_is_another, {"kl/sampler"}),
    ],
)
def test_a_reported_failure_is_named(row_of: Callable[[int], Row], findings: set[str]) -> None:
    diagnosis = diagnosis_of([(step, row_of(step)) for step in range(150)])
    named = {f"{finding.kind}/{finding.cause or ''}".rstrip("/") for finding in diagnosis.findings}
    assert any(name in findings or name.split("/")[0] in findings for name in named), named
    assert all(finding.message and finding.cure for finding in diagnosis.findings)
