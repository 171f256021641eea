"""What the mirrors need of a tracker, and what its metrics are called there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

PREFIX = "isentrope/"
"""In front of each name. Trainers log an `entropy` and a `reward/mean` of their own, against another step; and a tracker
shows what has one prefix together."""


@dataclass(frozen=True, slots=True)
class StepScalars:
    """The scalars of one report. What was not measured is absent; what is there may be NaN or infinite."""

    step: int
    """The trainer's own number, as given to `probe.step`."""
    recorded_at: float
    """Seconds since the epoch."""
    scalars: Mapping[str, float]

    def prefixed(self) -> dict[str, float]:
        """Under the names that trackers get."""
        return {PREFIX + name: value for name, value in self.scalars.items()}


class Tracker(Protocol):
    """An active run of a tracker. Called from the mirror's own thread, one call at a time; it may block and may raise."""

    def write(self, report: StepScalars) -> None:
        """Take the scalars of one step. Steps come in the order of the training, which may go back (a resume)."""
        ...

    def close(self) -> None:
        """Hand on what was held back. The run stays open: it is the training's."""
        ...


class Destination(Protocol):
    """What `mirror=` asked for."""

    @property
    def name(self) -> str:
        """Of the tracker, for messages."""
        ...

    @property
    def remedy(self) -> str:
        """What to do where no run is active, as a sentence."""
        ...

    def prepare(self, run_id: str) -> None:
        """Called once, where the probe is built.

        Args:
            run_id: of the probe's own run.

        Raises:
            ConfigurationError: it can't be written to.
        """
        ...

    def find(self) -> Tracker | None:
        """The active run; None: there is none yet. On the training thread, where it must cost microseconds."""
        ...
