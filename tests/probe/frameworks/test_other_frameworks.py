"""The recipe for other frameworks, as the guide has it, around a trainer of these tests."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from isentrope.integrations import attachment
from isentrope.integrations.attachment import Attachment
from tests.probe.frameworks.attached import Attached as AttachedStandIn
from tests.probe.tiny_loop import CLIP, comparable, pushed, reports

GUIDE = Path(__file__).parents[3] / "docs" / "integrations" / "others.md"
VOCABULARY, MICRO_BATCHES = 24, 2


class Trainer:
    """A small framework: two micro-batches an update, a clipped gradient, a scheduler,
    checkpoints."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Embedding(VOCABULARY, 16), nn.Linear(16, VOCABULARY))
        self.lr, self.group, self.temperature, self.reward = 1e-2, None, 0.8, 0.25
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=self.lr)
        self.scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.5)
        self.random = torch.Generator().manual_seed(1)
        self.losses: list[float] = []
        self.rates: list[float] = []
        self.norms: list[float] = []

    def compute_logprobs(self, logits: Tensor, tokens: Tensor) -> Tensor:
        return (
            (logits / self.temperature).log_softmax(-1).gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
        )

    def compute_loss(self, logprobs: Tensor, batch: Any) -> Tensor:
        ratio = (logprobs - batch.old_logprobs).exp()
        loss: Tensor = -(ratio * batch.advantages.unsqueeze(1))[batch.mask].sum() / 40
        return loss

    def clip_gradients(self, limit: float) -> Tensor:
        return nn.utils.clip_grad_norm_(self.model.parameters(), limit)

    def save_checkpoint(self, folder: Path) -> None:
        folder.mkdir()
        parts = (self.model, self.optimizer, self.scheduler)
        torch.save(
            [part.state_dict() for part in parts] + [self.random.get_state()], folder / "all.pt"
        )

    def load_checkpoint(self, folder: Path) -> None:
        *parts, random = torch.load(folder / "all.pt")
        for part, state in zip((self.model, self.optimizer, self.scheduler), parts, strict=True):
            part.load_state_dict(state)  # type: ignore[attr-defined]
        self.random.set_state(random)

    def train(self, updates: int) -> None:
        for _ in range(updates):
            self.optimizer.zero_grad()
            for _ in range(MICRO_BATCHES):
                states, tokens = torch.randint(VOCABULARY, (2, 4, 6), generator=self.random)
                with torch.no_grad():
                    old = self.compute_logprobs(self.model(states), tokens)
                mask = torch.rand(4, 6, generator=self.random) < 0.8
                signs = torch.tensor([1.0, -1.0, 0.5, -0.5])
                batch = SimpleNamespace(old_logprobs=old, mask=mask, advantages=signs)
                loss = self.compute_loss(self.compute_logprobs(self.model(states), tokens), batch)
                loss.backward()
                self.losses.append(loss.item())
            self.norms.append(float(self.clip_gradients(0.05)))
            self.rates.append(self.optimizer.param_groups[0]["lr"])
            self.optimizer.step()
            self.scheduler.step()

    def weights(self) -> Tensor:
        return torch.cat([parameter.detach().flatten() for parameter in self.model.parameters()])


class Attached(AttachedStandIn):
    """A trainer attached by the guide's own lines, and what its probe was given and has sent."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(monkeypatch, attachment)
        self.trainer = Trainer()
        (lines,) = re.findall(
            r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), flags=re.DOTALL
        )
        recipe: dict[str, Any] = {}
        exec(lines, recipe)  # noqa: S102  # our own page
        self.attachment: Attachment = recipe["attach"](self.trainer)
        self.closed: list[tuple[float, float]] = []
        """Of each update: learning rate, and what clipping left of the gradient."""
        step = self.attachment.probe.step

        def noted(number: int, optimizer: Any, *, clip_factor: Tensor) -> None:
            self.closed.append((optimizer.param_groups[0]["lr"], float(clip_factor)))
            step(number, optimizer, clip_factor=clip_factor)

        monkeypatch.setattr(self.attachment.probe, "step", noted)


def test_a_trainer_is_attached_by_the_lines_of_the_guide(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = Trainer()
    alone.train(4)
    attached = Attached(monkeypatch)
    attached.trainer.train(4)
    assert attached.trainer.losses == alone.losses
    assert torch.equal(attached.trainer.weights(), alone.weights())
    assert min(alone.norms) > 0.05  # so they were clipped
    expected = [
        (rate, 0.05 / (norm + 1e-6)) for rate, norm in zip(alone.rates, alone.norms, strict=True)
    ]
    assert attached.closed == [pytest.approx(both) for both in expected]
    found = reports(attached.transport)
    assert [report.step for report in found] == [1, 2, 3, 4]
    assert {report.labels["entropy/prediction_basis"] for report in found} == {"loss_gradient"}
    assert [report.scalars["reward/mean"] for report in found] == [0.25] * 4
    assert all("probe/attachment_failures" not in report.scalars for report in found)
    assert 0 < found[0].scalars["token/count"] < MICRO_BATCHES * 24


def test_its_checkpoint_continues_run_and_control(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ISENTROPE_RUN_ID", "the-run")
    whole, first = Attached(monkeypatch), Attached(monkeypatch)
    for one, updates in ((whole, 5), (first, 3)):
        one.transport.set_control(pushed(1, CLIP))
        one.trainer.train(updates)
    first.trainer.save_checkpoint(tmp_path / "3")
    second = Attached(monkeypatch)
    second.trainer.load_checkpoint(tmp_path / "3")
    second.trainer.train(2)
    assert torch.equal(second.trainer.weights(), whole.trainer.weights())
    rest = reports(second.transport)
    assert [comparable(report) for report in rest] == [
        comparable(report) for report in reports(whole.transport)[3:]
    ]
    assert all(report.scalars["clip/fraction"] > 0 for report in rest)
