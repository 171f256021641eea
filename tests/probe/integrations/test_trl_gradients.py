"""What the prediction is made of is the gradient of TRL's own loss, whatever the loss is."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from torch import Tensor
from trl import GRPOTrainer

from isentrope import Control
from isentrope.integrations.trl import attach
from isentrope.statistics.tokens import TokenBatch
from isentrope.transport.transport import InMemoryTransport
from tests.probe.integrations import tiny_trl


class Gradients:
    """Gradients of TRL's loss by its log-probs and entropies, from a second computation that no
    probe sees."""

    def __init__(self, trainer: Any, probe: Any) -> None:
        self._trainer, self._probe = trainer, probe
        self._leaves: tuple[Tensor, Tensor] | None = None
        self.by_logprobs: list[Tensor] = []
        self.by_entropies: list[Tensor] = []
        self.read: list[TokenBatch] = []
        self._loss, self._step = trainer._compute_loss, probe.step
        self._logprobs = trainer._get_per_token_logps_and_entropies
        trainer._compute_loss, probe.step = self.loss, self.step
        trainer._get_per_token_logps_and_entropies = self.logprobs

    def logprobs(self, *args: Any, **kwargs: Any) -> Any:
        logprobs, entropies, *rest = self._logprobs(*args, **kwargs)
        if entropies is not None:
            self._leaves = logprobs.detach().requires_grad_(), entropies.detach().requires_grad_()
        return logprobs, entropies, *rest

    def loss(self, model: Any, inputs: Any) -> Any:
        loss = self._loss(model, inputs)
        with self._leaf_forward() as (logprobs, entropies):
            alone = type(self._trainer)._compute_loss(self._trainer, model, inputs)
        found = torch.autograd.grad(alone, (logprobs, entropies), allow_unused=True)
        for kept, gradient in zip((self.by_logprobs, self.by_entropies), found, strict=True):
            kept.append(torch.zeros_like(logprobs) if gradient is None else gradient)
        return loss

    @contextmanager
    def _leaf_forward(self) -> Iterator[tuple[Tensor, Tensor]]:
        assert self._leaves is not None
        leaves, ours = self._leaves, self._trainer._get_per_token_logps_and_entropies
        self._trainer._get_per_token_logps_and_entropies = lambda *args, **kwargs: (*leaves, None)
        try:
            yield leaves
        finally:
            self._trainer._get_per_token_logps_and_entropies = ours

    def step(self, *args: Any, **kwargs: Any) -> None:
        self.read += self._probe._open.ledger.batches
        self._step(*args, **kwargs)


SEQUENCES = {"importance_sampling_level": "sequence"}
LOSSES: tuple[dict[str, Any], ...] = (
    {"loss_type": "grpo"},
    {"loss_type": "dapo", "beta": 0.5, "use_bias_correction_kl": False},
    {"loss_type": "dapo", "top_entropy_quantile": 0.2},
    {"loss_type": "dapo", "entropy_coef": 0.1},
    {"loss_type": "bnpo", "gradient_accumulation_steps": 3},
    {"loss_type": "dr_grpo"},
    {"loss_type": "dapo", "delta": 1.5},
    {"loss_type": "dapo", "beta": 0.5},
    {"loss_type": "luspo", **SEQUENCES},
    {"loss_type": "cispo"},
    {"loss_type": "cispo", "epsilon_high": 5.0},
    {"loss_type": "grpo", **SEQUENCES},
    {"loss_type": "sapo"},
    {"loss_type": "sapo", "sapo_temperature_pos": 3.0, **SEQUENCES},
    {"loss_type": "vespo", "vespo_k_pos": 1.0, "vespo_lambda_neg": 4.0},
)


@pytest.mark.parametrize(
    "settings", LOSSES, ids=lambda settings: " ".join(map(str, settings.values()))
)
def test_the_prediction_is_of_the_gradient_of_trls_loss(
    tmp_path: Path, saved_policy: str, settings: dict[str, Any]
) -> None:
    # TRL reads the reference model from a folder.
    policy = saved_policy if "beta" in settings else None
    trainer = tiny_trl.trainer(
        tmp_path,
        policy=policy,
        num_iterations=2,
        steps=2,
        learning_rate=2.0,
        optim="sgd",
        max_grad_norm=0.0,
        **settings,
    )
    transport = InMemoryTransport()
    gradients = Gradients(trainer, attach(trainer, transport=transport))
    trainer.train()
    assert len(gradients.read) == len(gradients.by_logprobs) >= 2
    for batch, theirs in zip(gradients.read, gradients.by_logprobs, strict=True):
        assert batch.gradient is not None
        read = batch.gradient.get("gated")
        assert read is not None
        torch.testing.assert_close(read, theirs, rtol=1e-5, atol=1e-9)
        assert theirs.any()
    reports = tiny_trl.reports(transport)
    calls = len(gradients.read) // len(reports)
    for number, report in enumerate(reports):
        place = slice(number * calls, (number + 1) * calls)
        unit = 0.0
        for batch, by_logprobs, by_entropies in zip(
            gradients.read[place],
            gradients.by_logprobs[place],
            gradients.by_entropies[place],
            strict=True,
        ):
            mask, scores = batch.mask, batch.scores
            unit += float((by_logprobs * scores.vocab_centered_scores)[mask].double().sum())
            if "entropy_coef" in settings:
                assert scores.squared_scores is not None
                unit -= float((by_entropies * scores.squared_scores)[mask].double().sum())
        # The sampler's temperature is 1 in these runs.
        assert report.scalars["entropy/unit_predicted_change"] == pytest.approx(
            unit, rel=1e-4, abs=1e-9
        )
        assert report.labels["entropy/prediction_basis"] == "loss_gradient"
        assert ("change/by_kl_penalty" in report.scalars) == ("use_bias_correction_kl" in settings)
        assert ("change/by_entropy_bonus" in report.scalars) == ("entropy_coef" in settings)


def test_every_loss_type_of_trl_is_tried() -> None:
    source = inspect.getsource(GRPOTrainer._compute_loss)
    asked = [line for line in source.splitlines() if "if self.loss_type" in line]
    tried = {settings["loss_type"] for settings in LOSSES}
    assert {name for line in asked for name in re.findall(r'"(\w+)"', line)} == tried


def test_the_rollouts_of_a_prompt_are_one_group(tmp_path: Path) -> None:
    trainer, transport = (
        tiny_trl.trainer(
            tmp_path,
            num_iterations=2,
            steps=2,
            learning_rate=2.0,
            optim="sgd",
            max_grad_norm=0.0,
            num_generations=4,
            per_device_train_batch_size=4,
            gradient_accumulation_steps=3,
        ),
        InMemoryTransport(),
    )
    attach(trainer, transport=transport)
    trainer.train()
    for report in tiny_trl.reports(transport):
        # TRL shuffles the twelve rollouts of three prompts over three micro-batches.
        assert report.scalars["group/count"] == 3
        assert "covariance/group" in report.scalars
        assert report.scalars["advantage/zero_group_fraction"] == 0


def reward_of_row(completion_ids: list[list[int]], scale: list[float], **_: Any) -> list[float]:
    """As of images or hidden answers: a row of scale 0 gives all of its completions 0."""
    sums = [float(sum(ids) % 7) for ids in completion_ids]
    return [size * value for size, value in zip(scale, sums, strict=True)]


@pytest.mark.parametrize("steps_per_generation", [None, 1])
def test_groups_of_one_prompt_are_told_apart(
    tmp_path: Path, steps_per_generation: int | None
) -> None:
    """Two rows of a dataset with one prompt text: TRL compares each row's completions alone."""
    rows = [{"prompt": "ab", "scale": float(row % 2)} for row in range(8)]
    trainer, transport = (
        tiny_trl.trainer(
            tmp_path,
            steps=3,
            num_generations=4,
            per_device_train_batch_size=4,
            gradient_accumulation_steps=2,
            steps_per_generation=steps_per_generation,
            trainer_reward_funcs=reward_of_row,
            trainer_train_dataset=Dataset.from_list(rows),
        ),
        InMemoryTransport(),
    )
    rank_reward = Control(method="rank_reward")
    attach(trainer, control=rank_reward, transport=transport)
    trainer.train()
    logged = [entry for entry in trainer.state.log_history if "frac_reward_zero_std" in entry]
    reports = tiny_trl.reports(transport)
    assert len(reports) == len(logged) == 3
    for report, entry in zip(reports, logged, strict=True):
        assert report.scalars["group/count"] == 2
        zero = report.scalars["advantage/zero_group_fraction"]
        assert zero == pytest.approx(entry["frac_reward_zero_std"])
    assert any(0 < entry["frac_reward_zero_std"] < 1 for entry in logged)
