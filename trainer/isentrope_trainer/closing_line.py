"""What a training command says last, also after Ctrl-C: how far the run came, and how to look at it again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from isentrope_wire import environment
from isentrope_wire.metrics import ENTROPY_MEAN

if TYPE_CHECKING:
    import isentrope
    from isentrope_trainer.loop import StepResult


@dataclass(slots=True)
class Course:
    """Where a run began and where it is. Follows it step by step."""

    probe: isentrope.Probe | None = None
    steps: int = 0
    first_entropy_nats: float | None = None
    reward: float = 0.0

    def follow(self, probe: isentrope.Probe, result: StepResult) -> None:
        """A step has been made."""
        self.probe, self.steps, self.reward = probe, self.steps + 1, result.reward_mean
        if self.first_entropy_nats is None:
            self.first_entropy_nats = _entropy_nats(probe)

    def __str__(self) -> str:
        """One line, once the probe has said goodbye; empty where no step was made."""
        if self.probe is None:
            return ""
        last = _entropy_nats(self.probe)
        first = last if self.first_entropy_nats is None else self.first_entropy_nats
        # Reports are built off the training thread: the last may not have come to be.
        entropy = "" if first is None or last is None else f"entropy {first:.3f} -> {last:.3f} nats, "
        run_id = self.probe.run_id
        return (
            f"{self.steps} {'step' if self.steps == 1 else 'steps'}, {entropy}reward {self.reward:.3f}; run {run_id}, "
            f"with a server (`isentrope up`) at {environment.url()}/runs/{run_id}"
        )


def _entropy_nats(probe: isentrope.Probe) -> float | None:
    return None if probe.latest is None else probe.latest.scalars.get(ENTROPY_MEAN)
