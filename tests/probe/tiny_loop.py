"""A policy of one linear layer under a probe, for tests."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import isentrope
from isentrope.transport.transport import InMemoryTransport
from isentrope_wire.reports import ControlSnapshot, StepReport

VOCABULARY = 24
CLIP = isentrope.Control(method="clip_v", mu_low=1.0, mu_high=1.0)


def of_the_machine(name: str) -> bool:
    """Whether a metric says something of the machine and its clock, not of the training."""
    return name.startswith(("time/", "system/")) or name in (
        "probe/seconds",
        "probe/rescore_seconds",
    )


class TinyLoop:
    """A policy of one linear layer and its on-policy updates, seeded."""

    def __init__(self, seed: int = 0) -> None:
        torch.manual_seed(seed)
        self.policy = nn.Linear(8, VOCABULARY)
        self.optimizer = torch.optim.AdamW(self.policy.parameters(), lr=1e-2)
        self.states = torch.randn(16, 5, 8)
        self.mask = torch.rand(16, 5) < 0.9

    def sample(self) -> tuple[Tensor, Tensor, Tensor]:
        logits = self.policy(self.states)
        token_ids = torch.distributions.Categorical(logits=logits.detach()).sample()
        return logits, token_ids, (token_ids % 3).float() - 1

    def update(self, logprobs: Tensor, advantages: Tensor) -> None:
        ratio = (logprobs - logprobs.detach()).exp()
        loss = -(ratio * advantages * self.mask).sum() / self.mask.sum()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

    def weights(self) -> Tensor:
        return torch.cat([parameter.detach().flatten() for parameter in self.policy.parameters()])


def probe_and_transport(**kwargs: Any) -> tuple[isentrope.Probe, InMemoryTransport]:
    transport = InMemoryTransport()
    return isentrope.Probe("test", transport=transport, **kwargs), transport


def reports(transport: InMemoryTransport) -> list[StepReport]:
    return [message for message in transport.messages if isinstance(message, StepReport)]


def comparable(report: StepReport) -> dict[str, Any]:
    """All of a report but what the machine makes of it."""
    return {
        "step": report.step,
        "scalars": {
            name: value for name, value in report.scalars.items() if not of_the_machine(name)
        },
        "histograms": report.histograms,
        "control_version": report.control_version,
        "labels": report.labels,
        "what_if": report.what_if,
        "alerts": report.alerts,
        "tokens": report.tokens,
    }


def run_steps(loop: TinyLoop, probe: isentrope.Probe, steps: int, first: int = 0) -> None:
    for step in range(first, first + steps):
        logits, token_ids, advantages = loop.sample()
        scores = probe.score(logits, token_ids)
        loop.update(probe.gate(scores, advantages, loop.mask), advantages)
        probe.step(
            step,
            loop.optimizer,
            lambda ids=token_ids: probe.score(loop.policy(loop.states), ids),  # type: ignore[misc]
        )


def pushed(
    version: int, control: isentrope.Control = CLIP, expires_at: float | None = None
) -> ControlSnapshot:
    return ControlSnapshot(
        version=version, control=control, author="ada", requested_at=0.0, expires_at=expires_at
    )
