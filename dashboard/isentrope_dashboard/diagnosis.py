"""What the API says of single tokens and of alerts. Reading is lenient: unknown fields are ignored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from isentrope_wire.numbers import measured


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRow:
    """One of the tokens that counted most. Its text is whatever a model or a user wrote."""

    text: str | None
    token_id: int | None
    sequence: int | None
    position: int | None
    probability_log: float | None
    entropy: float | None
    score: float | None
    advantage: float | None
    contribution: float | None
    kept: bool

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> TokenRow:
        return cls(
            text=body.get("text"),
            token_id=body.get("token_id"),
            sequence=body.get("sequence"),
            position=body.get("position"),
            probability_log=measured(body.get("logprob")),
            entropy=measured(body.get("entropy")),
            score=measured(body.get("vocab_centered_score")),
            advantage=measured(body.get("advantage")),
            contribution=measured(body.get("contribution")),
            kept=bool(body.get("kept", True)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertRow:
    """Something a person should know."""

    step: int
    kind: str
    reason: str

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> AlertRow:
        return cls(step=int(body["step"]), kind=str(body.get("kind", "")), reason=str(body.get("reason", "")))


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedTokens:
    """The tokens of one step that counted most."""

    step: int | None = None
    rows: Sequence[TokenRow] = ()
    """Largest first."""
