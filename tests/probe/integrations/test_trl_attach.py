"""What attaching changes in a TRL run: nothing. And what it measures."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from isentrope.integrations.trl import ATTRIBUTE, attach
from isentrope.scores import TokenScores
from isentrope.transport.transport import InMemoryTransport
from tests.probe.integrations import tiny_trl
from tests.probe.scores.exact_heads import FIELDS
from tests.probe.scores.reference64 import scores64


def test_observing_leaves_dropout_and_the_random_numbers_of_a_run_as_they_were(tmp_path: Path) -> None:
    def after_training(head: Any) -> tuple[Tensor, Tensor]:
        trainer = tiny_trl.trained(tmp_path, head, steps=4, policy=tiny_trl.model(attention_dropout=0.3))
        return tiny_trl.parameters(trainer), torch.get_rng_state()

    (parameters, random), (parameters_alone, random_alone) = after_training("observe"), after_training(None)
    assert torch.equal(parameters, parameters_alone)
    assert torch.equal(random, random_alone)


class RecordedBatches:
    """What the probe is asked to gate, beside the logits of the same tokens in float64."""

    def __init__(self, trainer: Any, probe: Any) -> None:
        self.scores: list[TokenScores] = []
        self.expected: list[dict[str, Tensor]] = []
        self.masks: list[Tensor] = []
        self.losses = 0
        compute_loss, gate = trainer._compute_loss, probe.gate

        def recorded_loss(model: Any, inputs: dict[str, Tensor]) -> Tensor:
            ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1)
            attention = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], 1)
            with torch.no_grad():
                logits = copy.deepcopy(trainer.model).double()(ids, attention_mask=attention).logits
            completion = inputs["completion_ids"]
            rows = logits[:, -completion.shape[1] - 1 : -1]
            self.expected.append(scores64(rows, completion, trainer.temperature))
            loss: Tensor = compute_loss(model, inputs)
            return loss

        def recorded_gate(scores: TokenScores, advantages: Tensor, mask: Tensor, *rest: Any, **named: Any) -> Tensor:
            self.scores.append(scores)
            self.masks.append(mask.bool())
            gated: Tensor = gate(scores, advantages, mask, *rest, **named)
            return gated

        trainer._compute_loss, probe.gate = recorded_loss, recorded_gate


@pytest.mark.parametrize("head", ["replace", "observe"])
def test_scores_equal_the_float64_reference_on_recorded_batches(tmp_path: Path, head: Any) -> None:
    trainer = tiny_trl.trainer(tmp_path, steps=3, gradient_accumulation_steps=2, temperature=0.7)
    recorded = RecordedBatches(trainer, attach(trainer, head=head, transport=InMemoryTransport()))
    trainer.train()
    assert len(recorded.scores) == 6
    for scores, expected, mask in zip(recorded.scores, recorded.expected, recorded.masks, strict=True):
        for field in FIELDS:
            difference = (getattr(scores, field).double() - expected[field])[mask].abs().max()
            assert difference < 1e-5, field


def test_what_trl_logs_rides_along_under_its_own_and_the_promised_names(tmp_path: Path) -> None:
    trainer, transport = tiny_trl.trainer(tmp_path, steps=3), InMemoryTransport()
    attach(trainer, transport=transport)
    trainer.train()
    reports = tiny_trl.reports(transport)
    assert [report.step for report in reports] == [1, 2, 3]
    for report, logged in zip(reports, trainer.state.log_history, strict=False):
        numbers = {name: value for name, value in logged.items() if name != "step" and value is not None}
        assert {"reward", "loss", "grad_norm", "learning_rate", "clip_ratio/high_mean", "entropy"} <= set(numbers)
        assert {name: report.scalars[name] for name in numbers} == pytest.approx(numbers)
        assert report.scalars["reward/mean"] == pytest.approx(logged["reward"])
        assert report.scalars["completion/length_mean"] == pytest.approx(logged["completions/mean_length"])
        assert report.scalars["entropy/mean"] == pytest.approx(logged["entropy"], abs=1e-5)


@pytest.mark.parametrize("known", [True, False])
def test_the_share_of_groups_without_advantage_has_one_definition_in_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    def broken(_: Any) -> None:
        raise ValueError("another layout")

    if not known:
        monkeypatch.delenv("PYTEST_CURRENT_TEST")
        monkeypatch.setattr("isentrope.integrations.trl.prompt_groups", broken)
    trainer = tiny_trl.trainer(tmp_path, steps=3, logging_steps=2)
    transport = InMemoryTransport()
    attach(trainer, transport=transport)
    attachment = trainer.__dict__[ATTRIBUTE]
    theirs = attachment.log

    def log(scalars: dict[str, Any]) -> None:
        theirs({**scalars, **({"frac_reward_zero_std": 0.125} if "frac_reward_zero_std" in scalars else {})})

    monkeypatch.setattr(attachment, "log", log)
    trainer.train()
    shares = [report.scalars.get("advantage/zero_group_fraction") for report in tiny_trl.reports(transport)]
    if known:
        assert None not in shares
        assert 0.125 not in shares
    else:
        assert shares[:2] == [None, 0.125]


def test_the_tokens_that_counted_most_are_named_with_their_ids_and_text(tmp_path: Path) -> None:
    trainer, transport = tiny_trl.trainer(tmp_path, steps=2), InMemoryTransport()
    attach(trainer, transport=transport)
    trainer.train()
    assert len(tiny_trl.reports(transport)) == 2
    for report in tiny_trl.reports(transport):
        assert report.tokens
        for token in report.tokens:
            assert token.token_id is not None
            assert token.text == trainer.processing_class.decode([token.token_id])
