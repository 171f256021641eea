"""The adapter to prime-rl, around a stand-in for its trainer: no FSDP, no GPU."""

from __future__ import annotations

from collections import OrderedDict
from importlib import import_module
from typing import Any

import pytest
import torch
from torch import Tensor

from isentrope_wire.errors import ConfigurationError
from isentrope_wire.reports import StepReport
from tests.probe.frameworks.attached import Attached as AttachedStandIn
from tests.probe.frameworks.prime_rl_stand_in import (
    COUNTED,
    LENGTHS,
    SKIPPED,
    LossInputs,
    Trainer,
    install,
)
from tests.probe.ranks.gang import run_ranks


class Attached(AttachedStandIn):
    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, rank: int = 0, gemma: bool = False, **settings: Any
    ) -> None:
        self.adapter = install(monkeypatch)
        super().__init__(monkeypatch, self.adapter)
        self.trainer = Trainer(lambda inputs: self.adapter.loss(inputs, **settings), rank, gemma)

    def gated(self) -> int:
        """Tokens of the last step that count, and whose gradient did not reach the head."""
        firsts = [0, LENGTHS[0], LENGTHS[0] + LENGTHS[1]]
        # The head's row before a token holds its log-prob.
        counting = torch.ones(sum(LENGTHS), dtype=torch.bool)
        counting[torch.tensor(firsts) - 1] = False
        counting[firsts[SKIPPED] - 1 : firsts[SKIPPED + 1] - 1] = False
        return sum(int((gradient == 0)[counting].sum()) for gradient in self.trainer.behind)


@pytest.fixture(autouse=True)
def hooks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hooks on all optimisers of this process end with the test."""
    monkeypatch.setattr(
        import_module("torch.optim.optimizer"), "_global_optimizer_post_hooks", OrderedDict()
    )


@pytest.mark.parametrize("gemma", [False, True])
def test_a_stand_in_run_without_control_is_bit_identical(
    monkeypatch: pytest.MonkeyPatch, gemma: bool
) -> None:
    alone = Trainer(gemma=gemma)
    losses = [alone.step() for _ in range(3)]
    attached = Attached(monkeypatch, gemma=gemma)
    assert attached.train(3) == losses
    assert torch.equal(attached.trainer.weights(), alone.weights())
    found = attached.reports()
    assert [report.step for report in found] == [1, 2, 3]
    assert {report.scalars["token/count"] for report in found} == {COUNTED}
    assert {report.labels["entropy/prediction_basis"] for report in found} == {"loss_gradient"}


@pytest.mark.parametrize("gemma", [False, True])
def test_samples_are_scored_at_their_places_in_the_stand_in(
    monkeypatch: pytest.MonkeyPatch, gemma: bool
) -> None:
    attached = Attached(monkeypatch, gemma=gemma)
    attached.train(1)
    training = attached.adapter._training
    apart: list[float] = []
    gate = training.attachment.probe.gate

    def watched(scores: Any, *arguments: Any, logprobs: Tensor, **known: Any) -> Tensor:
        apart.append(float((scores.logprobs - logprobs.detach())[:, 1:].abs().max()))
        gated: Tensor = gate(scores, *arguments, logprobs=logprobs, **known)
        return gated

    training.attachment.probe.gate = watched
    attached.train(1)
    assert len(apart) == 4  # two packs of two samples that have tokens to learn from
    assert max(apart) < 1e-5


def test_a_control_pushed_live_gates_as_reported_in_the_stand_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    attached = Attached(monkeypatch)
    attached.train(2, push_after=2)
    assert attached.gated() == 0
    attached.train(1)
    found = attached.reports()
    assert [report.labels["control/method"] for report in found] == ["none", "none", "clip_v"]
    assert 0 < attached.gated() == pytest.approx(found[-1].scalars["clip/fraction"] * COUNTED)


def of_rank(rank: int) -> tuple[list[StepReport], list[int], Tensor]:
    """Its reports, the tokens that were gated in each step, and its weights at the end."""
    with pytest.MonkeyPatch.context() as patch:
        attached = Attached(patch, rank)
        gated = []
        for step in range(4):
            attached.train(1, push_after=1 if rank == 0 and step == 1 else None)
            gated.append(attached.gated())
        attached.adapter._training.attachment.probe.finish()
        return attached.reports(), gated, attached.trainer.weights()


@pytest.mark.slow
def test_two_ranks_of_the_stand_in_switch_together() -> None:
    (first, gated, weights), (_, gated_too, weights_too) = run_ranks(2, of_rank)
    assert torch.equal(weights, weights_too)
    assert [report.labels["control/method"] for report in first] == ["none"] * 3 + ["clip_v"]
    share = first[-1].scalars["clip/fraction"]
    assert 0 < gated[-1] + gated_too[-1] == pytest.approx(share * 2 * COUNTED)


def first_report(rank: int) -> StepReport:
    """Of a rank whose packs are those of every other."""
    with pytest.MonkeyPatch.context() as patch:
        attached = Attached(patch)
        attached.train(1)
        attached.adapter._training.attachment.probe.finish()
        return attached.reports()[0]


@pytest.mark.slow
def test_gradients_of_ranks_are_added_up_in_the_stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    both, _ = run_ranks(2, first_report)
    alone = Attached(monkeypatch)
    alone.train(1)
    # Divided by the tokens of both ranks and added up, equal gradients are one rank's gradient.
    for name in ("entropy/unit_predicted_change", "change/positive_high"):
        assert both.scalars[name] == pytest.approx(alone.reports()[0].scalars[name], rel=1e-4)


def test_other_losses_of_the_stand_in_get_gated_log_probs(monkeypatch: pytest.MonkeyPatch) -> None:
    # The heads are the process's, so that one follows the other.
    losses = Attached(monkeypatch).train(1)
    assert Attached(monkeypatch, loss="ipo", ipo_threshold=1.0).train(1) != losses
    own = Attached(monkeypatch, loss=f"{__name__}.doubled", factor=2.0)
    assert own.train(1) == [[2 * loss for loss in step] for step in losses]


def doubled(inputs: LossInputs, factor: float) -> Any:
    """A custom loss, as a user's configuration names it."""
    from tests.probe.frameworks.prime_rl_stand_in import DefaultLossConfig, default_loss_fn

    found = default_loss_fn(inputs, DefaultLossConfig())
    found.loss = factor * found.loss
    return found


def test_a_head_with_logits_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    attached = Attached(monkeypatch)
    with pytest.raises(ConfigurationError, match=attached.adapter.FUSED):
        attached.adapter.loss(None)


def test_context_parallelism_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    attached = Attached(monkeypatch)
    attached.train(1)
    gathered = torch.zeros(2 * sum(LENGTHS))
    with pytest.raises(ConfigurationError, match="cp"):
        attached.adapter._training.gated(
            LossInputs(gathered[:7], gathered[:7], None, gathered[:7], gathered[:7] == 0)
        )
