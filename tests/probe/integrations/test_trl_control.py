"""A control acts on a TRL run by gating gradients: same loss, same metrics, fewer tokens that
push."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from torch import Tensor
from transformers import TrainerCallback
from trl import GRPOTrainer

import isentrope
from isentrope.integrations.trl import attach
from isentrope.transport.transport import InMemoryTransport
from isentrope_wire.reports import ControlSnapshot, OutcomeState
from tests.probe.integrations import tiny_trl

LOG = "isentrope.steps.acknowledgement"
"""Names each control's outcome; nothing is wrong there."""


CLIP = isentrope.Control(method="clip_v", mu_low=0.5, mu_high=0.5)


class GatedTokens:
    """Counts, by asking autograd, the tokens whose gradient doesn't get past the gate."""

    def __init__(self, trainer: Any) -> None:
        self.gated: list[Tensor] = []
        """One boolean tensor per micro-batch."""
        self.masks: list[Tensor] = []
        self.values_differ = False
        self._before: Tensor | None = None
        logprobs_of, compute_loss = (
            trainer._get_per_token_logps_and_entropies,
            trainer._compute_loss,
        )

        def before_the_gate(*args: Any, **kwargs: Any) -> Any:
            result = logprobs_of(*args, **kwargs)
            self._before = result[0]
            return result

        def with_mask(model: Any, inputs: Any) -> Any:
            self.masks.append(inputs["completion_mask"].bool())
            return compute_loss(model, inputs)

        trainer._get_per_token_logps_and_entropies, trainer._compute_loss = (
            before_the_gate,
            with_mask,
        )

    def watch_what_is_handed_on(self, trainer: Any) -> None:
        handed_on = trainer._get_per_token_logps_and_entropies

        def after_the_gate(*args: Any, **kwargs: Any) -> Any:
            result = handed_on(*args, **kwargs)
            after, before = result[0], self._before
            if torch.is_grad_enabled() and trainer.model.training:
                assert before is not None
                (gradient,) = torch.autograd.grad(after.sum(), before, retain_graph=True)
                self.gated.append(gradient == 0)
                self.values_differ |= not torch.equal(after, before)
            return result

        trainer._get_per_token_logps_and_entropies = after_the_gate

    def fraction(self) -> float:
        gated = sum(
            int((gated & mask).sum()) for gated, mask in zip(self.gated, self.masks, strict=True)
        )
        return gated / sum(int(mask.sum()) for mask in self.masks)


def watched_run(
    tmp_path: Path, control: Any, **settings: Any
) -> tuple[GatedTokens, list[dict[str, float]], Any]:
    head = settings.pop("head", "replace")
    trainer, transport = tiny_trl.trainer(tmp_path, **settings), InMemoryTransport()
    tokens = GatedTokens(trainer)
    attach(trainer, head=head, control=control, transport=transport)
    tokens.watch_what_is_handed_on(trainer)
    trainer.train()
    return tokens, [dict(report.scalars) for report in tiny_trl.reports(transport)], trainer


@pytest.mark.parametrize(
    ("head", "kind"), [("replace", "grpo"), ("observe", "grpo"), ("replace", "rloo")]
)
def test_the_share_of_tokens_gated_is_the_clip_fraction_reported(
    tmp_path: Path, head: str, kind: str
) -> None:
    tokens, reports, _ = watched_run(
        tmp_path, CLIP, head=head, kind=kind, steps=1, gradient_accumulation_steps=2
    )
    assert len(tokens.gated) == 2
    assert 0.1 < tokens.fraction() < 0.9
    assert reports[0]["clip/fraction"] == pytest.approx(tokens.fraction())
    assert not tokens.values_differ


def test_a_control_that_comes_while_training_acts_from_the_next_update_on(tmp_path: Path) -> None:
    trainer, transport = (
        tiny_trl.trainer(tmp_path, steps=4, gradient_accumulation_steps=2),
        InMemoryTransport(),
    )
    tokens = GatedTokens(trainer)
    probe = attach(trainer, transport=transport)
    tokens.watch_what_is_handed_on(trainer)
    score, calls = trainer._compute_loss, []

    def pushed_in_the_middle(model: Any, inputs: Any) -> Any:
        calls.append(probe.control.method)
        if len(calls) == 4:  # the second of step 2's two micro-batches
            transport.set_control(
                ControlSnapshot(version=1, control=CLIP, author="ada", requested_at=0.0)
            )
        return score(model, inputs)

    trainer._compute_loss = pushed_in_the_middle
    trainer.train()
    assert [bool(gated.any()) for gated in tokens.gated] == [False] * 4 + [True] * 4
    by_step = {report.step: report for report in tiny_trl.reports(transport)}
    assert [by_step[step].control_version for step in (1, 2, 3, 4)] == [0, 0, 1, 1]
    outcomes = [outcome for report in by_step.values() for outcome in report.outcomes]
    assert [(o.version, o.state, o.step) for o in outcomes if o.version == 1] == [
        (1, OutcomeState.APPLIED, 3)
    ]


def test_a_share_to_hold_is_given_beside_the_control(tmp_path: Path) -> None:
    transport = InMemoryTransport()
    probe = attach(
        tiny_trl.trainer(tmp_path, steps=1), control=CLIP, hold="75%", transport=transport
    )
    held = probe.control.held
    assert held is not None
    assert (held.target_share, probe.control.method, probe.control.mu_low) == (
        0.75,
        CLIP.method,
        CLIP.mu_low,
    )


def threshold_sources(tmp_path: Path, **settings: Any) -> list[str]:
    source = settings.pop("threshold_source", "auto")
    trainer, transport = tiny_trl.trainer(tmp_path, steps=3, **settings), InMemoryTransport()
    attach(trainer, control=CLIP, threshold_source=source, transport=transport)
    trainer.train()
    return [report.labels["threshold/source"] for report in tiny_trl.reports(transport)]


def test_thresholds_come_from_the_first_pass_where_trl_makes_one(tmp_path: Path) -> None:
    assert threshold_sources(tmp_path, kind="rloo") == ["first_pass"] * 3
    assert threshold_sources(tmp_path, num_iterations=2) == ["first_pass"] * 3
    # One call is the whole step.
    assert threshold_sources(tmp_path) == ["micro_batch"] * 3


def test_a_reference_forward_is_no_first_pass(tmp_path: Path, saved_policy: str) -> None:
    assert "first_pass" not in threshold_sources(tmp_path, beta=0.1, policy=saved_policy)


@pytest.mark.slow
@pytest.mark.parametrize(("settings", "parts"), [({}, []), ({"num_iterations": 2}, [1])], ids=str)
def test_the_policy_with_its_adapters_off_is_a_reference_and_no_first_pass(
    tmp_path: Path, settings: dict[str, Any], parts: list[int]
) -> None:
    trainer = tiny_trl.trainer(tmp_path, beta=0.1, policy=tiny_trl.adapted(), **settings)
    probe, seen = attach(trainer, control=CLIP, transport=InMemoryTransport()), []
    probe.first_pass = lambda scores, mask: seen.append(len(scores))  # type: ignore[assignment,method-assign,misc]
    trainer.train()
    assert seen == parts


def test_thresholds_of_a_first_pass_are_those_of_the_whole_generation(tmp_path: Path) -> None:
    trainer, transport = (
        tiny_trl.trainer(tmp_path, steps=2, steps_per_generation=2),
        InMemoryTransport(),
    )
    probe = attach(trainer, control=CLIP, transport=transport)
    seen: list[int] = []
    first_pass = probe.first_pass

    def counted(scores: Any, mask: Any) -> None:
        seen.append(sum(int(part.sum()) for part in mask))
        assert all(
            (part.entropies[m.bool()] > 0).all() for part, m in zip(scores, mask, strict=True)
        )
        first_pass(scores, mask)

    probe.first_pass = counted  # type: ignore[assignment,method-assign]
    trainer.train()
    totals = [report.scalars["token/count"] for report in tiny_trl.reports(transport)]
    assert seen == [sum(totals)]


class LossOfTheModel:
    """A loss that takes its log-probs from the model's own logits."""

    def _loss_of_logits(self, model: Any, inputs: Any) -> Any:
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1)
        mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], 1)
        completion, counts = inputs["completion_ids"], inputs["completion_mask"]
        logits = model(input_ids=ids, attention_mask=mask).logits[:, -completion.shape[1] - 1 : -1]
        logprobs = logits.log_softmax(-1).gather(-1, completion.unsqueeze(-1)).squeeze(-1)
        ratio = (logprobs - logprobs.detach()).exp()
        return -(inputs["advantages"].unsqueeze(1) * ratio * counts).sum() / counts.sum()


class InnerLoss(LossOfTheModel, GRPOTrainer):  # type: ignore[misc]
    _compute_loss = LossOfTheModel._loss_of_logits


class OuterLoss(LossOfTheModel, GRPOTrainer):  # type: ignore[misc]
    def compute_loss(self, model: Any, inputs: Any, *_: Any, **__: Any) -> Any:
        return self._loss_of_logits(model, inputs)


@pytest.mark.parametrize("kind", [InnerLoss, OuterLoss])
@pytest.mark.parametrize("control", [CLIP, isentrope.Control(hold={"target_entropy": 2.0})])
def test_a_control_of_a_loss_round_the_gate_is_rejected(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: Any, control: isentrope.Control
) -> None:
    trainer, transport = tiny_trl.trainer(tmp_path, steps=4), InMemoryTransport()
    trainer.__class__ = kind
    attach(trainer, transport=transport)
    push_at_step(trainer, transport, 2, control)
    with caplog.at_level("WARNING", logger="isentrope"):
        trainer.train()
    ((outcome, _),) = outcomes_and_steps(transport)
    assert (outcome.version, outcome.state, outcome.step) == (1, OutcomeState.REJECTED, None)
    assert "probe.gate" in outcome.message
    assert [
        record.getMessage().count("probe.gate") > 0
        for record in caplog.records
        if record.name != LOG
    ] == [True]
    assert {report.control_version for report in tiny_trl.reports(transport)} == {0}


def test_evaluation_and_steps_without_tokens_are_no_bypass(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Steps before the last have no token that counts, as where all completions are
    truncated."""
    trainer = tiny_trl.trainer(
        tmp_path,
        steps=4,
        gradient_accumulation_steps=2,
        eval_strategy="steps",
        eval_steps=1,
        per_device_eval_batch_size=4,
        trainer_eval_dataset=Dataset.from_list(tiny_trl.PROMPTS[:4]),
    )
    transport = InMemoryTransport()
    leave_out_tokens_before_step(trainer, 4)
    attach(trainer, transport=transport)
    push_at_step(trainer, transport, 2, CLIP)
    with caplog.at_level("WARNING", logger="isentrope"):
        trainer.train()
    ((outcome, report),) = outcomes_and_steps(transport)
    assert (outcome.state, outcome.step, report) == (OutcomeState.APPLIED, 4, 4)
    assert {record.name for record in caplog.records} <= {LOG}


def leave_out_tokens_before_step(trainer: Any, step: int) -> None:
    generate = trainer._generate_and_score_completions

    def unfinished(*args: Any, **kwargs: Any) -> Any:
        output = generate(*args, **kwargs)
        if trainer.state.global_step < step - 1:
            output["completion_mask"] = torch.zeros_like(output["completion_mask"])
        return output

    trainer._generate_and_score_completions = unfinished


def push_at_step(trainer: Any, transport: InMemoryTransport, step: int, control: Any) -> None:
    """Push a control when the update before `step` has been made."""

    class Pushing(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, *_: Any, **__: Any) -> None:
            if state.global_step == step - 1:
                transport.set_control(
                    ControlSnapshot(version=1, control=control, author="ada", requested_at=0.0)
                )

    trainer.add_callback(Pushing())


def outcomes_and_steps(transport: InMemoryTransport) -> list[tuple[Any, int]]:
    return [
        (outcome, report.step)
        for report in tiny_trl.reports(transport)
        for outcome in report.outcomes
    ]
