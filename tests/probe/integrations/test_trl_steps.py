"""When a step of a TRL run ends, what is scored again after it, and how the run ends."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from torch import Tensor
from transformers import TrainerCallback

from isentrope.integrations import trl
from isentrope.integrations.trl import attach, detach
from isentrope.steps.report import ClosedStep
from isentrope.transport.transport import InMemoryTransport
from isentrope_wire.control import Control
from isentrope_wire.reports import RunFinished, error_in_a_line
from tests.probe.integrations import tiny_trl

EVALUATING = {
    "eval_strategy": "steps",
    "eval_steps": 1,
    "per_device_eval_batch_size": 4,
    "trainer_eval_dataset": Dataset.from_list(tiny_trl.PROMPTS[:2]),
}


def rising_reward(completion_ids: list[list[int]], trainer_state: Any, **_: Any) -> list[float]:
    return [trainer_state.global_step + value for value in tiny_trl.reward(completion_ids)]


BEST = {
    **EVALUATING,
    "trainer_reward_funcs": rising_reward,
    "save_strategy": "steps",
    "save_steps": 1,
    "load_best_model_at_end": True,
    "metric_for_best_model": "eval_reward",
    "greater_is_better": False,
}


def attached(tmp_path: Path, **settings: Any) -> tuple[Any, Any, InMemoryTransport]:
    rescore_tokens = settings.pop("rescore_tokens", 1000)
    trainer, transport = tiny_trl.trainer(tmp_path, **settings), InMemoryTransport()
    return trainer, attach(trainer, rescore_tokens=rescore_tokens, transport=transport), transport


def run_ends(transport: InMemoryTransport) -> list[RunFinished]:
    return [message for message in transport.messages if isinstance(message, RunFinished)]


@pytest.mark.parametrize(("settings", "kept"), [({}, 2), (BEST, 0)], ids=["", "best"])
def test_a_step_is_closed_once_after_its_update_under_its_number(
    tmp_path: Path, settings: dict[str, Any], kept: int
) -> None:
    trainer, probe, _ = attached(tmp_path, steps=3, gradient_accumulation_steps=2, **settings)
    closed: list[tuple[int, Tensor]] = []
    probe_step = probe.step

    def step(number: int, *args: Any, **rates: Any) -> None:
        closed.append((number, tiny_trl.parameters(trainer)))
        probe_step(number, *args, **rates)

    updates: list[Tensor] = []
    probe.step, training_step = step, trainer.training_step

    def before_forward(*args: Any) -> Any:
        updates.append(tiny_trl.parameters(trainer))
        return training_step(*args)

    trainer.training_step = before_forward
    trainer.train()
    assert [number for number, _ in closed] == [1, 2, 3]
    # Each step is closed under the parameters that the next one's first forward runs with.
    assert torch.equal(closed[0][1], updates[2])
    assert torch.equal(closed[1][1], updates[4])
    assert torch.equal(closed[kept][1], tiny_trl.parameters(trainer))
    assert not torch.equal(closed[2][1], updates[4])


def test_learning_rate_and_clipping_are_those_that_the_update_was_made_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"lr_scheduler_type": "linear", "learning_rate": 0.04, "max_grad_norm": 0.01}
    trainer, probe, transport = attached(tmp_path, steps=4, rescore_tokens=0, **settings)
    steps: list[ClosedStep] = []
    theirs = probe._reports.report_of

    def report_of(closed: ClosedStep) -> Any:
        steps.append(closed)
        return theirs(closed)

    monkeypatch.setattr(probe._reports, "report_of", report_of)
    trainer.train()
    assert [float(step.learning_rate or 0) for step in steps] == pytest.approx(
        [0.04, 0.03, 0.02, 0.01]
    )
    norms = [entry["grad_norm"] for entry in trainer.state.log_history if "grad_norm" in entry]
    assert min(norms) > 0.01
    factors = [float(step.clip_factor or 0) for step in steps]
    assert factors == pytest.approx([0.01 / (norm + 1e-6) for norm in norms], rel=1e-4)
    assert all(
        "entropy/observed_change" not in report.scalars for report in tiny_trl.reports(transport)
    )


def test_a_scaled_loss_is_predicted_as_an_unscaled_one(tmp_path: Path) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)
    predicted = list[list[float]]()
    for used in (None, scaler):
        trainer, _, transport = attached(tmp_path, steps=3, max_grad_norm=0.0)
        trainer.accelerator.scaler = used
        trainer.train()
        reports = tiny_trl.reports(transport)
        predicted.append([report.scalars["entropy/unit_predicted_change"] for report in reports])
    assert scaler.get_scale() == 2048.0
    assert predicted[1] == pytest.approx(predicted[0], rel=1e-5)


def test_evaluations_are_not_observed_and_their_metrics_belong_to_the_step_before(
    tmp_path: Path,
) -> None:
    trainer, _, transport = attached(tmp_path, steps=2, **EVALUATING)
    trainer.train()
    reports = tiny_trl.reports(transport)
    evaluated = [entry for entry in trainer.state.log_history if "eval_loss" in entry]
    assert [report.scalars["eval_reward"] for report in reports] == pytest.approx(
        [e["eval_reward"] for e in evaluated]
    )
    for report in reports:
        assert report.scalars["token/count"] == pytest.approx(
            4 * report.scalars["completions/mean_length"]
        )


def test_evaluating_between_steps_leaves_the_observed_change_and_the_models_mode_alone(
    tmp_path: Path,
) -> None:
    trainer, _, transport = attached(tmp_path, steps=2, num_iterations=2, **EVALUATING)
    trainer.train()
    first, second = (report.scalars for report in tiny_trl.reports(transport))
    # The second update is made from the same tokens, so its entropy is the one after the first.
    assert second["entropy/mean"] == pytest.approx(
        first["entropy/mean"] + first["entropy/observed_change"], abs=1e-6
    )
    assert abs(first["entropy/observed_change"]) > 1e-4
    assert not any(
        module.training for module in trainer.model.modules()
    )  # as the last evaluation left it


@pytest.mark.parametrize("kind", ["grpo", "rloo"])
def test_gate_is_given_what_is_known_of_each_completion(tmp_path: Path, kind: str) -> None:
    def by_sum(completion_ids: list[list[int]], **_: Any) -> list[float]:
        return [float(sum(ids)) for ids in completion_ids]

    def by_evenness(completion_ids: list[list[int]], **_: Any) -> list[float | None]:
        return [None if sum(ids) % 2 else 1.0 for ids in completion_ids]

    settings = {"reward_weights": [2.0, 0.5], "gradient_accumulation_steps": 2, "num_iterations": 2}
    settings |= {"max_completion_length": 24, "temperature": 4.0}
    asked = Dataset.from_list([{**one, "answer": one["prompt"]} for one in tiny_trl.PROMPTS])
    known_of_trl = {"trainer_reward_funcs": [by_sum, by_evenness], "trainer_train_dataset": asked}
    trainer, probe, transport = attached(tmp_path, kind=kind, **known_of_trl, **settings)
    theirs, rewards, sums = probe.gate, list[float](), list[int]()
    cut, unended = list[bool](), list[bool]()

    def gate(scores: Any, advantages: Tensor, mask: Tensor, **known: Any) -> Tensor:
        rewards.extend(known["completions"]["reward"].tolist())
        sums.extend((scores.token_ids * mask).sum(dim=1).int().tolist())
        cut.extend(known["completions"]["truncated"].tolist())
        unended.extend(
            (~((scores.token_ids == tiny_trl.WORDS["<eos>"]) & mask.bool()).any(dim=1)).tolist()
        )
        gated: Tensor = theirs(scores, advantages, mask, **known)
        return gated

    probe.gate = gate
    trainer.train()
    assert len(set(sums)) > 1
    assert rewards == [2.0 * total + 0.5 * (total % 2 == 0) for total in sums]
    assert cut == unended
    assert len({*cut}) == 2
    assert "completion/truncated_fraction" in tiny_trl.reports(transport)[0].scalars
    shown = [rollout for report in tiny_trl.reports(transport) for rollout in report.rollouts]
    # TRL shuffles the completions: each keeps its own.
    assert len({rollout.prompt for rollout in shown}) > 1
    assert all(rollout.prompt == rollout.answer is not None for rollout in shown)
    assert all(
        rollout.reward
        == 2.0 * rollout.rewards["by_sum"] + 0.5 * rollout.rewards.get("by_evenness", 0.0)
        for rollout in shown
    )


@pytest.mark.parametrize(
    "settings", [{}, {"activation_checkpointing": True, "top_k": 40}], ids=["", "lora"]
)
def test_texts_of_a_byte_level_tokenizer_whose_end_is_its_padding_are_whole(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    """With a chat template, prompts padded at the left, and characters of several tokens."""
    tokenizer = tiny_trl.byte_level_tokenizer()
    asked = Dataset.from_list(
        [
            {"prompt": [{"role": "user", "content": text}]}
            for text in ("2 + 2?", "Größe in 字?")
            for _ in range(8)
        ]
    )
    policy = tiny_trl.model(vocab_size=len(tokenizer), eos_token_id=tokenizer.eos_token_id)
    trainer, probe, transport = attached(
        tmp_path,
        policy=tiny_trl.adapted(policy) if settings else policy,
        trainer_processing_class=tokenizer,
        trainer_train_dataset=asked,
        **settings,
    )
    theirs, completions = probe.gate, list[list[int]]()

    def gate(scores: Any, advantages: Tensor, mask: Tensor, **known: Any) -> Tensor:
        completions.extend(
            row[counts].tolist() for row, counts in zip(scores.token_ids, mask.bool(), strict=True)
        )
        gated: Tensor = theirs(scores, advantages, mask, **known)
        return gated

    probe.gate = gate
    trainer.train()
    reports = tiny_trl.reports(transport)
    assert sum(report.scalars["token/count"] for report in reports) == sum(map(len, completions))
    assert all(tokenizer.eos_token_id not in completion[:-1] for completion in completions)
    texts = {tokenizer.decode(completion) for completion in completions}
    assert any("\ufffd" in text for text in texts)
    shown = [rollout for report in reports for rollout in report.rollouts]
    assert {rollout.prompt for rollout in shown} <= {
        f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
        for text in ("2 + 2?", "Größe in 字?")
    }
    for rollout in shown:
        counts = [
            text
            for text, logprob in zip(rollout.texts, rollout.logprobs, strict=True)
            if logprob is not None
        ]
        assert "".join(counts) in texts


def test_a_training_that_fails_fails_as_before_and_the_run_says_why(tmp_path: Path) -> None:
    def failing_at_the_third(
        completion_ids: list[list[int]], trainer_state: Any, **_: Any
    ) -> list[float]:
        if trainer_state.global_step == 2:
            raise RuntimeError("the reward server is gone")
        return [float(len(ids) % 2) for ids in completion_ids]

    trainer, _, transport = attached(tmp_path, steps=4, trainer_reward_funcs=failing_at_the_third)
    with pytest.raises(RuntimeError, match="the reward server is gone"):
        trainer.train()
    assert [report.step for report in tiny_trl.reports(transport)] == [1, 2]
    ended = run_ends(transport)[0]
    assert (ended.status, error_in_a_line(ended.error)) == (
        "failed",
        "RuntimeError: the reward server is gone",
    )


def test_an_update_before_a_failed_save_is_reported(tmp_path: Path) -> None:
    trainer, _, transport = attached(tmp_path, steps=4, save_strategy="steps", save_steps=2)

    def full_disk(*_: Any) -> None:
        raise OSError("No space left on device")

    trainer._save_checkpoint = full_disk
    with pytest.raises(OSError, match="No space left"):
        trainer.train()
    assert [report.step for report in tiny_trl.reports(transport)] == [1, 2]
    assert "reward" in tiny_trl.reports(transport)[1].scalars


def test_a_second_training_is_not_observed_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trainer, _, transport = attached(tmp_path)
    trainer.train()
    messages = len(transport.messages)
    with caplog.at_level(logging.WARNING):
        trainer.train()
    assert len(transport.messages) == messages
    assert "isentrope.integrations.trl" in {record.name for record in caplog.records}


def test_a_failure_of_ours_leaves_the_run_to_trls_own_head(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    expected = tiny_trl.losses(tiny_trl.trained(tmp_path, steps=3, entropy_coef=0.02))
    trainer, _, transport = attached(tmp_path, steps=3, entropy_coef=0.02, rescore_tokens=0)

    def broken(*_: Any, **__: Any) -> None:
        raise MemoryError("no room for a tile")

    monkeypatch.setattr("isentrope.integrations.trl_head.linear_token_scores", broken)
    # The guard raises under pytest, where a person is watching.
    monkeypatch.delenv("PYTEST_CURRENT_TEST")
    trainer.train()
    assert tiny_trl.losses(trainer) == pytest.approx(expected, rel=1e-5)
    reports = tiny_trl.reports(transport)
    assert [report.step for report in reports] == [1, 2, 3]
    assert reports[-1].scalars["probe/attachment_failures"] == 3
    assert "entropy/mean" not in reports[-1].scalars
    assert [record.name for record in caplog.records if record.levelno == logging.ERROR] == [
        "isentrope"
    ]


class Interrupts(TrainerCallback):
    """Ctrl-C in the second step of the first training."""

    is_over = False

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == 1 and not self.is_over:
            self.is_over = True
            raise KeyboardInterrupt


def test_an_interrupted_trainer_is_attached_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What the log advises works; without it two lines say that nothing is reported."""
    made, first, second = tiny_trl.trainer(tmp_path), InMemoryTransport(), InMemoryTransport()
    made.add_callback(Interrupts())
    attach(made, transport=first)
    with pytest.raises(KeyboardInterrupt):
        made.train()
    with caplog.at_level(logging.WARNING, logger="isentrope"):
        made.train()
    assert [record.message[:26] for record in caplog.records if "isentrope" in record.name] == [
        "The attached run has ended",
        "The run has ended: what is",
    ]
    assert len(tiny_trl.reports(first)) == 1
    detach(made)
    attach(made, transport=second)
    made.train()
    assert [report.step for report in tiny_trl.reports(second)] == [1, 2]


def test_trl_s_log_probs_are_gated_though_the_diagnosis_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> None:
        raise ValueError("another layout")

    monkeypatch.delenv("PYTEST_CURRENT_TEST")
    monkeypatch.setattr("isentrope.integrations.trl.TrainerAttachment._group_numbers", broken)
    made, transport = tiny_trl.trainer(tmp_path, steps=1), InMemoryTransport()
    attach(made, control=Control(method="clip_v", mu_low=0.0, mu_high=0.0), transport=transport)
    made.train()
    (report,) = tiny_trl.reports(transport)
    assert report.scalars["clip/fraction"] > 0.9
    assert report.scalars["probe/attachment_failures"] == 1


@pytest.mark.parametrize(
    ("tokens", "forwards"),
    [(60, 2), (12, 1), (9, 1), (None, 1)],
    ids=["rows", "one", "part of one", "a sixteenth"],
)
def test_only_so_many_tokens_are_scored_again(
    tmp_path: Path, tokens: int | None, forwards: int
) -> None:
    trainer, _, transport = attached(
        tmp_path, steps=2, rescore_tokens=tokens, gradient_accumulation_steps=2
    )
    forward, again = trainer.model.model.forward, []

    def counted(*args: Any, **kwargs: Any) -> Any:
        ids = kwargs["input_ids"] if "input_ids" in kwargs else args[0]
        if not torch.is_grad_enabled() and kwargs.get("use_cache") is False:
            again.append(ids.numel())
        return forward(*args, **kwargs)

    trainer.model.model.forward = counted
    trainer.train()
    assert len(again) == 2 * forwards
    assert max(sum(again[at : at + forwards]) for at in (0, forwards)) <= (tokens or 3 + 8)
    assert all(
        "entropy/observed_change" in report.scalars for report in tiny_trl.reports(transport)
    )


def test_coupling_samples_are_scored_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[int] = []
    rescored = trl.TrainerAttachment._rescored

    def counted(self: Any, inputs: Any, chosen: Tensor, tokens: int) -> Any:
        rows.append(len(chosen))
        return rescored(self, inputs, chosen, tokens)

    monkeypatch.setattr(trl.TrainerAttachment, "_rescored", counted)
    trainer = tiny_trl.trainer(tmp_path, steps=1, gradient_accumulation_steps=2)
    attach(trainer, coupling="model", coupling_samples=6, transport=InMemoryTransport())
    trainer.train()
    assert rows == [4, 2]


@pytest.mark.parametrize("kind", ["grpo", "rloo"])
def test_a_rank_that_cant_read_its_first_pass_meets_the_others_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    trainer, probe, transport = attached(tmp_path, kind=kind, steps=2, num_iterations=2)
    met: list[tuple[Any, Any]] = []
    monkeypatch.setattr(probe, "first_pass", lambda scores, mask: met.append((scores, mask)))

    def broken(*_: Any) -> None:
        raise MemoryError("no room for the scores")

    monkeypatch.setattr("isentrope.integrations.trl._select_policy", broken)
    # The guard raises under pytest, where a person is watching.
    monkeypatch.delenv("PYTEST_CURRENT_TEST")
    trainer.train()
    assert met == [([], [])]
    assert tiny_trl.reports(transport)[-1].scalars["probe/attachment_failures"] == 1


def test_what_is_scored_again_has_tokens(tmp_path: Path) -> None:
    """All but the last of four sequences are left out, as truncated ones are."""
    trainer, _, transport = attached(tmp_path, steps=2, rescore_tokens=None)
    generate = trainer._generate_and_score_completions

    def mostly_left_out(*args: Any, **kwargs: Any) -> Any:
        output = generate(*args, **kwargs)
        output["completion_mask"][:-1] = 0
        return output

    trainer._generate_and_score_completions = mostly_left_out
    trainer.train()
    for report in tiny_trl.reports(transport):
        assert report.scalars["token/count"] <= 8
        assert abs(report.scalars["entropy/observed_change"]) > 0
