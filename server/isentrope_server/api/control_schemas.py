"""Controls as they go over the line: the document people send, the versions they read."""

from __future__ import annotations

from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field

from isentrope_server.api.dependencies import Body
from isentrope_server.control.state import ControlStanding
from isentrope_server.store.controls import ControlItem, RankOutcome, State
from isentrope_wire.numbers import plain_json

JsonObject = dict[str, Any]


class ControlDocument(Body):
    """What a run should do from now on."""

    # Text is no number and true is no threshold: whoever sends them meant something else.
    model_config = ConfigDict(strict=True)

    method: str
    mu_low: float | None = None
    mu_high: float | None = None
    scope: str | None = Field(default=None, description="null: all, or what a preset says.")
    parameters: JsonObject = Field(
        default_factory=dict, description="The method's own, see GET /methods; preset fills in what is left out."
    )
    hold: JsonObject | None = None
    reason: str = Field(default="", max_length=2_000)
    expires_in_seconds: int | None = Field(
        default=None, ge=1, le=7 * 24 * 3600, description="null: the server's default; every change has an end."
    )


class ControlItemOut(BaseModel):
    """One version of a run's control."""

    version: int
    state: State
    method: str
    mu_low: float | None
    mu_high: float | None
    scope: str
    parameters: dict[str, Any]
    hold: dict[str, Any] | None
    reason: str
    author: str
    requested_at: float
    requested_step: int | None
    expires_at: float | None
    applied_step: int | None
    applied_at: float | None
    ended_at: float | None
    code: str
    message: str

    @classmethod
    def of(cls, item: ControlItem) -> Self:
        return cls.model_validate(_control_fields(item))


class RankOutcomeOut(BaseModel):
    """What one rank made of a version."""

    incarnation: str
    rank: int
    state: str
    step: int | None
    at: float
    code: str
    message: str

    @classmethod
    def of(cls, outcome: RankOutcome) -> Self:
        return cls(
            incarnation=outcome.incarnation,
            rank=outcome.rank,
            state=outcome.state,
            step=outcome.step,
            at=outcome.at,
            code=outcome.code,
            message=outcome.message,
        )


class ControlView(ControlItemOut):
    """The newest version, and the one in force."""

    in_force: ControlItemOut | None = Field(description="The version the newest report was made under.")
    outcomes: list[RankOutcomeOut]

    @classmethod
    def of(cls, standing: ControlStanding) -> Self:  # type: ignore[override]
        return cls.model_validate(
            _control_fields(standing.newest)
            | {
                "in_force": None if standing.in_force is None else ControlItemOut.of(standing.in_force),
                "outcomes": [RankOutcomeOut.of(outcome) for outcome in standing.outcomes],
            }
        )


def _plain_document(item: ControlItem) -> dict[str, object]:
    return {name: plain_json(value) for name, value in item.document.items()}


def _control_fields(item: ControlItem) -> dict[str, object]:
    return _plain_document(item) | {name: getattr(item, name) for name in _CONTROL_FIELDS}


_CONTROL_FIELDS = [
    "version",
    "state",
    "author",
    "requested_at",
    "requested_step",
    "expires_at",
    "applied_step",
    "applied_at",
    "ended_at",
    "code",
    "message",
]
