"""What attaching changes in a TRL run: nothing. And what it measures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from isentrope.integrations.trl import attach
from isentrope.transport.transport import InMemoryTransport
from isentrope_wire.reports import StepReport
from tests.probe.integrations import tiny_trl
from tests.probe.trackers.tracked import OwnTracker, wait_for_trackers


def test_observing_leaves_dropout_and_the_random_numbers_of_a_run_as_they_were(
    tmp_path: Path,
) -> None:
    def after_training(head: Any) -> tuple[Tensor, Tensor]:
        trainer = tiny_trl.trained(
            tmp_path, head, steps=4, policy=tiny_trl.model(attention_dropout=0.3)
        )
        return tiny_trl.parameters(trainer), torch.get_rng_state()

    (parameters, random), (parameters_alone, random_alone) = (
        after_training("observe"),
        after_training(None),
    )
    assert torch.equal(parameters, parameters_alone)
    assert torch.equal(random, random_alone)


@pytest.mark.parametrize("coupling", ["model", "last_block"])
@pytest.mark.parametrize("policy", [tiny_trl.model, tiny_trl.adapted])
@pytest.mark.parametrize("head", ["replace", "observe"])
def test_a_coupled_prediction_changes_nothing_either(
    tmp_path: Path, coupling: Any, policy: Any, head: Any
) -> None:
    def weights_of(coupling: Any) -> tuple[Tensor, list[StepReport]]:
        trainer = tiny_trl.trainer(
            tmp_path, steps=3, policy=policy(), gradient_accumulation_steps=2
        )
        transport, every = InMemoryTransport(), 2 if coupling == "model" else 0
        attach(trainer, head=head, coupling=coupling, influence_every=every, transport=transport)
        trainer.train()
        return tiny_trl.parameters(trainer), tiny_trl.reports(transport)

    (plain, _), (coupled, reports) = weights_of(None), weights_of(coupling)
    assert torch.equal(plain, coupled)
    assert reports[-1].labels["entropy/prediction_basis"] == "entropy_gradient"
    assert reports[-1].scalars["entropy/predicted_change"] != 0
    checks = {
        one.step: one.scalars["entropy/influence_check"]
        for one in reports
        if one.rollouts[0].influences
    }
    assert checks == pytest.approx({2: 1} if coupling == "model" else {}, abs=0.02)


def test_what_trl_logs_rides_along_under_its_own_and_the_promised_names(tmp_path: Path) -> None:
    trainer = tiny_trl.trainer(tmp_path, steps=3, temperature=0.7)
    transport, tracker = InMemoryTransport(), OwnTracker()
    attach(trainer, trackers=tracker, transport=transport)
    trainer.train()
    wait_for_trackers()
    reports = tiny_trl.reports(transport)
    assert tracker.written == [(report.step, report.scalars) for report in reports]
    assert [report.step for report in reports] == [1, 2, 3]
    for report, logged in zip(reports, trainer.state.log_history, strict=False):
        numbers = {
            name: value for name, value in logged.items() if name != "step" and value is not None
        }
        assert {
            "reward",
            "loss",
            "grad_norm",
            "learning_rate",
            "clip_ratio/high_mean",
            "entropy",
        } <= set(numbers)
        assert {name: report.scalars[name] for name in numbers} == pytest.approx(numbers)
        assert report.scalars["reward/mean"] == pytest.approx(logged["reward"])
        assert report.scalars["completion/length_mean"] == pytest.approx(
            logged["completions/mean_length"]
        )
        assert report.scalars["entropy/mean"] == pytest.approx(logged["entropy"], abs=1e-5)
        assert all(
            token.text == trainer.processing_class.decode([token.token_id])
            for token in report.tokens
        )
