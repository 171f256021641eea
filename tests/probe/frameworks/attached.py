"""What the stand-ins of frameworks have in common: a trainer with a probe in it, and what the probe
sent."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

from isentrope.integrations.attachment import in_worker
from isentrope.transport.transport import InMemoryTransport
from isentrope_wire.reports import StepReport
from tests.probe.tiny_loop import CLIP, pushed, reports


class Attached:
    """`trainer.step()` makes an update and gives the losses of its micro-batches."""

    trainer: Any

    def __init__(self, monkeypatch: pytest.MonkeyPatch, adapter: ModuleType) -> None:
        """Probes that the adapter builds from now on send to `transport`."""
        self.transport = transport = InMemoryTransport()
        monkeypatch.setattr(
            adapter, "in_worker", lambda **about: in_worker(**about, transport=transport)
        )

    def train(self, steps: int, push_after: int | None = None) -> list[list[float]]:
        """The losses of some steps; a clip is pushed live after one of them."""
        losses = []
        for step in range(1, steps + 1):
            losses.append(self.trainer.step())
            if step == push_after:
                self.transport.set_control(pushed(1, CLIP))
        return losses

    def reports(self) -> list[StepReport]:
        return reports(self.transport)
