"""r A times the weight the probe is told is what a token weighs in the gradient of TRL's own loss, and so is its KL term."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from isentrope.integrations.trl import attach
from isentrope.integrations.trl_loss import cispo_weight, sapo_weight, vespo_weight
from isentrope.scores import inside_clip
from isentrope.transport.transport import InMemoryTransport
from tests.probe.integrations import tiny_trl

# r from far below to far above the clip's range, epsilon 0.2 and 0.3
MOVED = torch.tensor([[0.5, 0.9, 1.0, 1.25, 1.4, 3.0]])


@pytest.mark.parametrize(
    ("advantage", "delta", "pushed"),
    [
        (1.0, None, [1, 1, 1, 1, 0, 0]),
        (-1.0, None, [0, 1, 1, 1, 1, 1]),
        (-1.0, 2.0, [0, 1, 1, 1, 1, 0]),
    ],
)
def test_a_token_beyond_the_clip_is_silenced(advantage: float, delta: float | None, pushed: list[int]) -> None:
    assert inside_clip(torch.full_like(MOVED, advantage), MOVED, 0.2, 0.3, delta).int().tolist() == [pushed]


def test_cispo_bounds_the_weight_at_epsilon_high() -> None:
    assert torch.allclose(cispo_weight(MOVED, 1.25) * MOVED, torch.tensor([[0.5, 0.9, 1.0, 1.25, 1.25, 1.25]]))


@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_sapos_weight_is_the_slope_of_its_gate(advantage: float) -> None:
    logprobs = MOVED.double().log().requires_grad_()
    temperature = 1.5 if advantage > 0 else 2.5
    (4 / temperature * torch.sigmoid(temperature * (logprobs.exp() - 1))).sum().backward()
    weight = sapo_weight(torch.full_like(MOVED, advantage), MOVED.double(), 1.5, 2.5)
    assert logprobs.grad is not None
    assert torch.allclose(weight * MOVED, logprobs.grad)
    assert weight[0, 2] == 1


def test_vespos_weight_is_that_of_the_sequence_and_one_where_nothing_moved() -> None:
    log_ratios = torch.tensor([[0.2, 0.3, 9.0], [0.0, 0.0, 0.0], [-100.0, 0.0, 0.0], [20.0, 20.0, 0.0]])
    mask = torch.tensor([[1, 1, 0], [1, 1, 1], [1, 1, 1], [1, 1, 1]])
    advantages = torch.tensor([1.0, -1.0, 1.0, -1.0]).unsqueeze(1).expand_as(log_ratios)
    weight = vespo_weight(advantages, log_ratios, mask, (2.0, 3.0), (3.0, 2.0))
    by_hand = torch.tensor([3 + 2 * 0.5 - 3 * torch.tensor(0.5).exp(), 0.0, 3 + 2 * torch.tensor(1e-8).log(), -1e9])
    assert torch.allclose(weight, by_hand.exp().unsqueeze(1).expand_as(log_ratios))


class Weights:
    """What the probe is told of each loss, and TRL's gradient of that loss with respect to the log-probs."""

    def __init__(self, trainer: Any, probe: Any) -> None:
        self.told: list[Tensor] = []
        self.plain: list[Tensor] = []
        self.theirs: list[Tensor] = []
        self._per_sequence = trainer.loss_type in ("grpo", "sapo")
        self._logprobs: Tensor | None = None
        self._gate, self._loss = probe.gate, trainer._compute_loss
        self._theirs = trainer._get_per_token_logps_and_entropies
        probe.gate, trainer._compute_loss = self.gate, self.loss
        trainer._get_per_token_logps_and_entropies = self.logprobs

    def logprobs(self, *args: Any, **kwargs: Any) -> Any:
        logprobs, *rest = self._theirs(*args, **kwargs)
        self._logprobs = logprobs
        return logprobs, *rest

    def gate(self, scores: Any, advantages: Tensor, mask: Tensor, old: Tensor | None, **named: Any) -> Tensor:
        assert old is not None
        ratios = (scores.logprobs.detach() - old).exp()
        per_token = advantages.view(len(advantages), -1) * named["loss_weights"]
        kl = 0.0 if named["kl_strengths"] is None else named["kl_strengths"]
        self.told.append((ratios * per_token + kl)[mask != 0])
        self._ratios, self._mask = ratios, mask
        gated: Tensor = self._gate(scores, advantages, mask, old, **named)
        return gated

    def loss(self, model: Any, inputs: Any) -> Any:
        loss = self._loss(model, inputs)
        assert self._logprobs is not None
        (gradient,) = torch.autograd.grad(loss, self._logprobs, retain_graph=True)
        if self._per_sequence:
            gradient = gradient * self._mask.sum(1, keepdim=True)
        advantages = inputs["advantages"]
        self.plain.append((self._ratios * advantages.view(len(advantages), -1))[self._mask != 0])
        self.theirs.append(-gradient[self._mask != 0])
        return loss


SEQUENCES = {"importance_sampling_level": "sequence"}


@pytest.mark.parametrize(
    "settings",
    [
        {"loss_type": "grpo"},
        {"loss_type": "dapo", "beta": 0.5},
        {"loss_type": "cispo"},
        *(
            pytest.param(settings, marks=pytest.mark.slow)
            for settings in (
                {"loss_type": "dapo", "delta": 1.5},
                {"loss_type": "dapo", "beta": 0.5, "use_bias_correction_kl": False},
                {"loss_type": "luspo", **SEQUENCES},
                {"loss_type": "cispo", "epsilon_high": 5.0},
                {"loss_type": "cispo", **SEQUENCES},
                {"loss_type": "sapo"},
                {"loss_type": "sapo", "sapo_temperature_pos": 3.0, **SEQUENCES},
                {"loss_type": "vespo"},
                {"loss_type": "vespo", "vespo_k_pos": 1.0, "vespo_lambda_neg": 4.0},
            )
        ),
    ],
    ids=lambda settings: " ".join(map(str, settings.values())),
)
def test_what_the_prediction_counts_is_the_gradient_of_trls_loss(
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
    weights = Weights(trainer, attach(trainer, transport=InMemoryTransport()))
    trainer.train()
    assert len(weights.told) == 2
    # The losses' denominators are one number per micro-batch.
    for told, theirs in zip(weights.told, weights.theirs, strict=True):
        scale = (told @ theirs) / (theirs @ theirs)
        assert scale > 0
        assert torch.allclose(told, scale * theirs, rtol=1e-4, atol=1e-6)
    # After the first update the plain ratio would tell something else.
    assert not torch.allclose(weights.plain[1] / weights.plain[1].norm(), weights.told[1] / weights.told[1].norm())


def test_the_rollouts_of_a_prompt_are_one_group_and_the_clip_is_told_apart(tmp_path: Path) -> None:
    trainer, transport = tiny_trl.trainer(
        tmp_path, num_iterations=2, steps=2, learning_rate=2.0, optim="sgd", max_grad_norm=0.0, num_generations=4,
        per_device_train_batch_size=4, gradient_accumulation_steps=3,
    ), InMemoryTransport()  # fmt: skip
    attach(trainer, transport=transport)
    trainer.train()
    on_policy, off_policy = tiny_trl.reports(transport)
    for report in (on_policy, off_policy):
        # TRL shuffles the twelve rollouts of three prompts over three micro-batches.
        assert report.scalars["group/count"] == 3
        assert "covariance/group" in report.scalars
        assert report.scalars["advantage/zero_group_fraction"] == 0
        parts = [report.scalars[f"change/{part}"] for part in ("with_nothing_in_force", "by_ratio_clip")]
        assert sum(parts) == pytest.approx(report.scalars["entropy/unit_predicted_change"], rel=1e-9, abs=1e-12)
    assert on_policy.scalars["change/by_ratio_clip"] == 0
    assert off_policy.scalars["change/by_ratio_clip"] != 0
