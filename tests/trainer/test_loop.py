from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch

import isentrope
from isentrope.transport.transport import InMemoryTransport
from isentrope_trainer.experience import Panel
from isentrope_trainer.loop import train
from isentrope_trainer.models.policy import Policy
from isentrope_trainer.models.warm_start import WordTokenizer, build_policy
from isentrope_trainer.settings import (
    ALGORITHMS,
    AdaptiveEntropyConfig,
    EvaluationConfig,
    LossConfig,
    PolicyConfig,
    TrainingConfig,
)
from isentrope_trainer.tasks.base import Problem
from isentrope_trainer.tasks.countdown import Countdown
from isentrope_wire.reports import RunFinished, StepReport
from tests.probe.tiny_loop import of_the_machine

CONFIG = TrainingConfig(steps=3, seed=5, prompts=3, group_size=8, learning_rate=1e-3)
EVALUATION = EvaluationConfig(every=2, problems=4, samples=4, k=2)

TOKENIZER = WordTokenizer(Countdown.words)


class EndingIsEnough(Countdown):
    """An untrained policy solves nothing and would learn nothing; it can learn to end."""

    def reward(self, problem: Problem, completion: str | None) -> float:
        return 0.0 if completion is None else 1.0


@cache
def trained(
    policy_config: PolicyConfig,
    config: TrainingConfig = CONFIG,
    control: isentrope.Control | None = None,
    **settings: Any,
) -> tuple[torch.Tensor, list[dict[str, float]]]:
    """Final weights, and the scalars of each step's report but its times."""
    policy, transport = (
        Policy(build_policy(policy_config, TOKENIZER, seed=1), TOKENIZER),
        InMemoryTransport(),
    )
    with isentrope.Probe(name="loop", control=control, transport=transport, **settings) as probe:
        train(
            policy,
            EndingIsEnough(config.seed, hold_out=config.evaluation is not None),
            probe,
            config,
        )
    assert isinstance(transport.messages[-1], RunFinished)
    reports = [message for message in transport.messages if isinstance(message, StepReport)]
    timeless = [
        {n: v for n, v in report.scalars.items() if not of_the_machine(n)} for report in reports
    ]
    return (
        torch.cat([parameter.detach().flatten() for parameter in policy.model.parameters()]),
        timeless,
    )


def test_the_same_seed_gives_the_same_run_bit_for_bit(tiny_policy_config: PolicyConfig) -> None:
    first_weights, first_reports = trained(tiny_policy_config)
    second_weights, second_reports = trained.__wrapped__(tiny_policy_config)
    assert torch.equal(first_weights, second_weights)
    assert first_reports == second_reports
    assert len(first_reports) == CONFIG.steps


def test_another_seed_gives_another_run(tiny_policy_config: PolicyConfig) -> None:
    assert not torch.equal(
        trained(tiny_policy_config)[0], trained(tiny_policy_config, replace(CONFIG, seed=6))[0]
    )


def test_evaluating_changes_nothing_but_the_problems(tiny_policy_config: PolicyConfig) -> None:
    often, once = (replace(CONFIG, evaluation=replace(EVALUATION, every=every)) for every in (1, 9))
    (weights, reports), (other_weights, _) = (
        trained(tiny_policy_config, often),
        trained(tiny_policy_config, once),
    )
    assert torch.equal(weights, other_weights)
    assert all(0.0 <= report["eval/avg_at_k"] <= report["eval/pass_at_k"] for report in reports)


@pytest.mark.parametrize(("updates", "evaluated"), [(1, [1, 3, 5]), (3, [1, 4])])
def test_held_out_problems_are_evaluated_every_few_steps(
    tiny_policy_config: PolicyConfig, updates: int, evaluated: list[int]
) -> None:
    config = replace(CONFIG, steps=6, updates_per_batch=updates, evaluation=EVALUATION)
    _, reports = trained(tiny_policy_config, config)
    assert [
        step for step, report in enumerate(reports, 1) if "eval/pass_at_k" in report
    ] == evaluated


def test_the_panel_scores_what_a_gradient_needs(
    tiny_policy_config: PolicyConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest block after each update; the three before it where a gradient is taken, and one
    update before, with the one that goes."""
    drawn, scored = [], []
    scores = Panel.scores

    def counted(self: Panel, *given: Any) -> list[isentrope.TokenScores]:
        parts = scores(self, *given)
        drawn.append(len(self._blocks[-1].prompts))
        scored.append([part.logprobs.requires_grad for part in parts])
        return parts

    monkeypatch.setattr(Panel, "scores", counted)
    config = replace(CONFIG, steps=21, coupling_samples=30)
    trained.__wrapped__(tiny_policy_config, config, coupling="model", coupling_every=4)
    assert set(drawn) == {5}
    plain = [False]
    assert scored[:5] == [[True], plain, plain, plain, [True, False]]
    assert scored[11:13] == [plain * 3, [True] * 3 + plain]
    assert scored[15:17] == [plain * 4, plain + [True] * 3 + plain]
    assert scored[19:] == [plain * 4, plain + [True] * 3 + plain]


def test_a_run_learns_what_is_rewarded(tiny_policy_config: PolicyConfig) -> None:
    _, reports = trained(
        tiny_policy_config, replace(CONFIG, steps=25, prompts=8, learning_rate=5e-3)
    )
    assert reports[-1]["reward/mean"] >= 3 * reports[0]["reward/mean"] > 0
    assert reports[-1]["completion/length_mean"] < reports[0]["completion/length_mean"]


def test_an_intervention_changes_the_weights_but_not_the_first_rollouts(
    tiny_policy_config: PolicyConfig,
) -> None:
    vanilla_weights, vanilla = trained(tiny_policy_config)
    control = isentrope.Control(method="clip_v", mu_low=0.5, mu_high=0.5)
    clipped_weights, clipped = trained.__wrapped__(tiny_policy_config, control=control)
    assert clipped[0]["reward/mean"] == vanilla[0]["reward/mean"]
    assert clipped[0]["entropy/mean"] == vanilla[0]["entropy/mean"]
    assert 0 < clipped[0]["clip/fraction"] < 1
    assert not torch.equal(clipped_weights, vanilla_weights)


def test_an_entropy_bonus_holds_up_the_entropy_and_says_its_coefficient(
    tiny_policy_config: PolicyConfig,
) -> None:
    config = replace(CONFIG, steps=20, prompts=8, learning_rate=5e-3)
    bonus = AdaptiveEntropyConfig(target_entropy=3.9, change_per_step=0.5, largest_coefficient=5.0)
    _, alone = trained(tiny_policy_config, config)
    _, held = trained(tiny_policy_config, replace(config, adaptive_entropy=bonus))
    assert [report["train/entropy_coefficient"] for report in held[:2]] == [0.0, 0.0]
    assert max(report["train/entropy_coefficient"] for report in held) > 0
    assert held[-1]["entropy/mean"] > alone[-1]["entropy/mean"] + 0.3
    assert all("train/entropy_coefficient" not in report for report in alone)


@pytest.mark.parametrize("algorithm", list(ALGORITHMS))
def test_every_algorithm_learns_and_its_prediction_reads_the_loss(
    tiny_policy_config: PolicyConfig, algorithm: str
) -> None:
    weights, reports = trained(tiny_policy_config, replace(CONFIG, algorithm=algorithm))
    assert weights.isfinite().all()
    assert not torch.equal(
        weights, trained(tiny_policy_config, replace(CONFIG, steps=1, learning_rate=1e-9))[0]
    )
    assert all(report["entropy/unit_predicted_change"] != 0 for report in reports)
    assert all(("train/value_loss" in report) == (algorithm == "ppo") for report in reports)
    assert all(
        ("train/process_reward_loss" in report) == (algorithm == "prime") for report in reports
    )


def test_updates_of_one_batch_move_away_from_the_policy_that_sampled_it(
    tiny_policy_config: PolicyConfig,
) -> None:
    config = replace(CONFIG, steps=6, prompts=6, updates_per_batch=3)
    _, reports = trained(tiny_policy_config, config)
    away = [report["ratio/max"] - 1 for report in reports]
    assert len(reports) == 6
    for first, *later in (away[:3], away[3:]):
        assert first == pytest.approx(0, abs=1e-4)
        assert min(later) > 1e-3
    assert all(
        "ratio/max" not in report or report["ratio/max"] < 1 + 1e-4
        for report in trained(tiny_policy_config)[1]
    )


def test_a_stale_sampler_is_seen_as_the_distance_of_sampler_and_trainer(
    tiny_policy_config: PolicyConfig,
) -> None:
    config = replace(CONFIG, steps=4, prompts=8, sampler_lag=2, learning_rate=5e-3)
    _, reports = trained(tiny_policy_config, config)
    _, fresh = trained(tiny_policy_config, replace(config, sampler_lag=0))
    assert reports[0]["sampler/kl_k3"] == pytest.approx(fresh[0]["sampler/kl_k3"], abs=1e-6)
    assert reports[-1]["sampler/kl_k3"] > 1e-4 > fresh[-1]["sampler/kl_k3"]


def test_a_divergence_term_keeps_the_policy_near_where_it_began(
    tiny_policy_config: PolicyConfig,
) -> None:
    config = replace(CONFIG, steps=10, prompts=8, learning_rate=5e-3)
    distances = []
    for coefficient in (1e-6, 10.0):
        _, reports = trained(
            tiny_policy_config, replace(config, loss=LossConfig(kl_coefficient=coefficient))
        )
        distances.append(reports[-1]["train/reference_kl"])
    assert distances[1] < distances[0] / 2


@pytest.mark.slow
def test_a_fixed_entropy_bonus_holds_up_the_entropy(tiny_policy_config: PolicyConfig) -> None:
    config = replace(CONFIG, steps=10, prompts=8, learning_rate=5e-3)
    _, alone = trained(tiny_policy_config, config)
    _, helped = trained(
        tiny_policy_config, replace(config, loss=LossConfig(entropy_coefficient=1.0))
    )
    assert helped[-1]["entropy/mean"] > alone[-1]["entropy/mean"]
