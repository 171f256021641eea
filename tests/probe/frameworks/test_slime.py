"""The adapter to slime, around a stand-in for slime's Megatron backend: no Megatron, no GPU."""

from __future__ import annotations

import functools
import os
import re
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from isentrope.integrations import slime
from isentrope.integrations.attachment import STATE_FILE
from isentrope_wire.errors import ConfigurationError
from isentrope_wire.reports import StepReport
from tests.probe.frameworks.attached import Attached as AttachedStandIn
from tests.probe.frameworks.slime_stand_in import LENGTHS, PROMPT, Mpu, Reloadable, TrainOneStep
from tests.probe.ranks.gang import run_ranks
from tests.probe.tiny_loop import comparable, of_the_machine

GUIDE = Path(__file__).parents[3] / "docs" / "integrations" / "slime.md"
COUNTED = 2 * (sum(LENGTHS) - PROMPT * len(LENGTHS) - 2)
"""Response tokens of a step without the two that the mask leaves out."""


class Attached(AttachedStandIn):
    def __init__(self, monkeypatch: pytest.MonkeyPatch | None, mpu: Mpu, **settings: Any) -> None:
        # Not for good: this process may have other tests to run.
        patch = pytest.MonkeyPatch() if monkeypatch is None else monkeypatch
        super().__init__(patch, slime)
        self.trainer = TrainOneStep(patch, mpu, attached=True, **settings)
        self.gradients: list[Tensor] = []
        """Of each sample, those of slime's own log-probs before the gate."""
        own = self.trainer.loss.get_log_probs_and_entropy

        def watched(*arguments: Any, **settings: Any) -> Any:
            empty, found = own(*arguments, **settings)
            for part in found["log_probs"]:
                part.register_hook(self.gradients.append)
            return empty, found

        self.trainer.loss.get_log_probs_and_entropy = watched

    def finish(self) -> None:
        """Wait for the other ranks' numbers of the last step."""
        assert slime._training is not None
        slime._training.attachment.probe.finish()


@pytest.mark.parametrize("recompute", [False, True])
def test_a_run_without_control_is_bit_identical(
    monkeypatch: pytest.MonkeyPatch, recompute: bool
) -> None:
    alone = TrainOneStep(monkeypatch, Mpu(), attached=False, recompute_loss_function=recompute)
    losses = [alone.step() for _ in range(3)]
    attached = Attached(monkeypatch, Mpu(), recompute_loss_function=recompute)
    assert attached.train(3) == losses
    assert torch.equal(attached.trainer.weights(), alone.weights())
    assert [report.step for report in attached.reports()] == [1, 2, 3]
    assert {report.scalars["token/count"] for report in attached.reports()} == {COUNTED}
    assert {report.labels["entropy/prediction_basis"] for report in attached.reports()} == {
        "loss_gradient"
    }
    assert attached.trainer.loss.calls == 6 * (1 + recompute)


def test_a_control_pushed_live_gates_as_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    attached = Attached(monkeypatch, Mpu())
    attached.train(2, push_after=2)
    attached.gradients.clear()
    attached.train(1)
    last = attached.reports()[-1]
    assert [report.labels["control/method"] for report in attached.reports()] == [
        "none",
        "none",
        "clip_v",
    ]
    without = (
        sum(int((gradient == 0).sum()) for gradient in attached.gradients) - 2 * 2
    )  # two masked tokens a micro-batch
    assert 0 < without < COUNTED
    assert without / COUNTED == pytest.approx(last.scalars["clip/fraction"])


def test_a_recomputed_loss_is_observed_once_and_gated_alike(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended: list[tuple[Tensor, list[dict[str, float]]]] = []
    for recompute in (False, True):
        attached = Attached(monkeypatch, Mpu(), recompute_loss_function=recompute)
        attached.train(4, push_after=2)
        numbers = [
            {name: value for name, value in report.scalars.items() if not of_the_machine(name)}
            for report in attached.reports()
        ]
        ended.append((attached.trainer.weights(), numbers))
    assert torch.equal(ended[0][0], ended[1][0])
    assert ended[0][1] == ended[1][1]
    assert ended[1][1][-1]["clip/fraction"] > 0


def test_the_loss_scale_of_fp16_is_taken_out_of_the_gradient(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    changes = []
    for scale in (1.0, 1024.0):
        attached = Attached(monkeypatch, Mpu())
        attached.trainer.optimizer.loss_scale = scale
        attached.train(1)
        changes.append(attached.reports()[0].scalars["entropy/unit_predicted_change"])
    assert changes[0] == pytest.approx(changes[1])
    assert changes[0] != 0


def test_a_step_without_update_is_discarded(monkeypatch: pytest.MonkeyPatch) -> None:
    attached = Attached(monkeypatch, Mpu())
    attached.trainer.skip_update = True
    attached.train(1)
    assert attached.reports() == []
    attached.trainer.skip_update = False
    attached.train(1)
    (report,) = attached.reports()
    assert report.scalars["token/count"] == COUNTED
    assert report.scalars["token/discarded"] >= COUNTED


def two_ranks(rank: int, split: str) -> tuple[list[StepReport], list[Tensor]]:
    """Its reports, and the gradients of its log-probs in the last step."""
    attached = Attached(None, Mpu(**{split: (rank, 2)}, group=torch.distributed.group.WORLD))
    attached.train(3, push_after=2 if rank == 0 else None)
    attached.gradients.clear()
    attached.train(1)
    attached.finish()
    return attached.reports(), attached.gradients


@pytest.mark.slow
@pytest.mark.parametrize(("split", "copies"), [("tensor", 2), ("context", 1)])
def test_two_ranks_score_and_switch_together(
    monkeypatch: pytest.MonkeyPatch, split: str, copies: int
) -> None:
    whole = Attached(monkeypatch, Mpu())
    whole.train(1)
    of_ranks = run_ranks(2, two_ranks, split)
    first = of_ranks[0][0][0].scalars
    assert first["token/count"] == COUNTED
    same = [
        "entropy/mean",
        "score/vocab_centered_std",
        "score/discriminator_mean",
        "score/self_check_z",
    ]
    if split == "tensor":
        same.append("entropy/unit_predicted_change")
    for name in same:
        assert first[name] == pytest.approx(whole.reports()[0].scalars[name], rel=1e-5)
    for reported, _ in of_ranks:
        assert [report.labels["control/method"] for report in reported] == ["none"] * 3 + ["clip_v"]
    assert 0 < of_ranks[0][0][-1].scalars["clip/fraction"] < 1
    without = [
        sum(int((gradient == 0).sum()) for gradient in gradients) for _, gradients in of_ranks
    ]
    masked = copies * 4
    assert (sum(without) - masked) / (copies * COUNTED) == pytest.approx(
        of_ranks[0][0][-1].scalars["clip/fraction"]
    )
    if split == "tensor":
        gradients = [[gradient == 0 for gradient in of_rank] for _, of_rank in of_ranks]
        assert all(torch.equal(mine, theirs) for mine, theirs in zip(*gradients, strict=True))


def two_ranks_offloaded(rank: int) -> list[StepReport]:
    """As with --offload-train: all groups are destroyed after each rollout, and made again for the
    next."""
    reload = Reloadable.hand_out()
    attached = Attached(None, Mpu(tensor=(rank, 2), group=torch.distributed.new_group([0, 1])))
    for step in range(1, 5):
        attached.train(1, push_after=1 if rank == 0 and step == 2 else None)
        reload()
    attached.finish()
    return attached.reports()


@pytest.mark.slow
def test_groups_that_slime_makes_again_after_each_rollout_are_followed() -> None:
    of_ranks = run_ranks(2, two_ranks_offloaded)
    for reported in of_ranks:
        assert [report.labels["control/method"] for report in reported] == ["none"] * 3 + ["clip_v"]
        assert all("probe/failures" not in report.scalars for report in reported)
    assert {report.scalars["token/count"] for report in of_ranks[0]} == {COUNTED}


def test_other_stages_and_the_critic_have_no_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    mpu = Mpu()
    attached = Attached(monkeypatch, mpu)
    mpu.last_stage = False
    slime.before_train_step(
        attached.trainer.args, 0, 0, [object()], attached.trainer.optimizer, None
    )
    with pytest.raises(ConfigurationError, match="before_train_step"):
        slime.policy_loss(attached.trainer.args, {}, torch.zeros(1, 1, 1), torch.sum)


def in_two_parts(rank: int, folder: Path, ranks: int) -> list[StepReport]:
    """Five rollouts, broken off after three; the reports of the last two. Rank 1 finds no state
    where it looks."""
    os.environ["ISENTROPE_RUN_ID"] = "resumed"
    mpu = Mpu(tensor=(rank, ranks), group=None if ranks == 1 else torch.distributed.group.WORLD)
    own = folder / f"rank-{rank}"
    first = Attached(None, mpu, save=own)
    first.train(3, push_after=1 if rank == 0 else None)
    first.trainer.save()
    first.finish()
    assert (own / "iter_0000002" / STATE_FILE).exists() == (rank == 0)
    second = Attached(None, mpu, load=own, finetune=False)
    second.train(2)
    second.finish()
    return second.reports()


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_resumed_training_continues_where_it_was_saved(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, ranks: int
) -> None:
    of_ranks = run_ranks(ranks, in_two_parts, tmp_path, ranks)
    for resumed in of_ranks:
        assert [report.step for report in resumed] == [4, 5]
        assert {report.labels["control/method"] for report in resumed} == {"clip_v"}
    if ranks == 1:
        whole = Attached(monkeypatch, Mpu())
        whole.train(5, push_after=1)
        assert [comparable(report) for report in of_ranks[0]] == [
            comparable(report) for report in whole.reports()[3:]
        ]


@pytest.mark.parametrize("loaded", ["iter_0000001", "."])
def test_a_checkpoint_found_by_rollout_holds_closed_steps(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, loaded: str
) -> None:
    first = Attached(monkeypatch, Mpu(), save=tmp_path)
    first.train(1)
    first.trainer.skip_update = True
    first.train(1)
    first.trainer.save()
    # No update was made of the second.
    assert [report.step for report in first.reports()] == [1]
    weights_alone = Attached(monkeypatch, Mpu(), load=tmp_path / loaded, finetune=True)
    weights_alone.train(1)
    continued = Attached(monkeypatch, Mpu(), load=tmp_path / loaded, finetune=False)
    continued.train(1)
    assert [report.step for report in weights_alone.reports() + continued.reports()] == [1, 2]


def test_a_loss_and_a_hook_of_ones_own_call_ours(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    attached = Attached(monkeypatch, Mpu())
    (recipe,) = re.findall(
        r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), flags=re.DOTALL
    )
    mine: dict[str, Any] = {}
    exec(recipe, mine)  # noqa: S102  # our own page
    attached.trainer.flags = Namespace(**mine)
    losses = attached.train(2, push_after=1)
    plain = Attached(monkeypatch, Mpu())
    assert plain.train(2, push_after=1) != losses
    for report, of_plain in zip(attached.reports(), plain.reports(), strict=True):
        assert report.scalars["clip/fraction"] == of_plain.scalars["clip/fraction"]
    assert attached.reports()[-1].scalars["clip/fraction"] > 0
    assert capsys.readouterr().out.split() == ["rollout", "0", "rollout", "1"]


def test_a_loss_that_passes_by_the_gate_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    attached = Attached(monkeypatch, Mpu())
    own = attached.trainer.loss.policy_loss_function
    attached.trainer.flags = Namespace(before_train_step=slime.before_train_step, policy_loss=own)
    attached.train(1)
    with pytest.raises(ConfigurationError, match="custom-loss-function-path"):
        attached.train(1)
    attached = Attached(monkeypatch, Mpu())
    elsewhere = functools.partial(
        slime.policy_loss, loss=lambda args, batch, logits, mean: (logits.sum(), {})
    )
    attached.trainer.flags = Namespace(
        before_train_step=slime.before_train_step, policy_loss=elsewhere
    )
    with pytest.raises(ConfigurationError, match="get_log_probs_and_entropy"):
        attached.train(1)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"allgather_cp": True}, "allgather-cp"),
        ({"custom_loss_function_path": None}, "custom-loss-function-path"),
        ({"loss_type": "policy_loss"}, "loss-type"),
    ],
)
def test_a_set_up_that_cannot_work_is_refused(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], reason: str
) -> None:
    attached = Attached(monkeypatch, Mpu())
    vars(attached.trainer.args).update(settings)
    with pytest.raises(ConfigurationError, match=reason):
        attached.trainer.step()


def test_another_layout_of_slime_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    attached = Attached(monkeypatch, Mpu())
    monkeypatch.setattr(
        attached.trainer.loss, "get_responses", lambda logits: iter(()), raising=False
    )
    with pytest.raises(ConfigurationError, match="get_responses"):
        attached.trainer.step()
