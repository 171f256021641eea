"""What a transaction announces once it is committed. Listeners read the rest from the store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StepStored:
    """One step report is durable."""

    run_id: str
    position: int
    step: int
    recorded_at: float
    control_version: int
    rank: int
    scalars: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlChanged:
    """A control version was asked for, or its state changed."""

    run_id: str
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunChanged:
    """A run began, ended, was resumed, edited or deleted."""

    run_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TokensChanged:
    """A token was made or revoked."""


RunEvent = StepStored | ControlChanged | RunChanged
Event = RunEvent | TokensChanged
