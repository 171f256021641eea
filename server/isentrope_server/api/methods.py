"""The methods a control can name, and what each can be told: what a form or a script needs to ask for one."""

from __future__ import annotations

from typing import Any, Literal, Self

from fastapi import APIRouter
from pydantic import BaseModel, Field

from isentrope_server.api.schemas import Page
from isentrope_wire.methods import METHODS, Method, Parameter

router = APIRouter(tags=["control"])


class ParameterOut(BaseModel):
    """One entry of a control's `parameters`."""

    name: str
    kind: Literal["number", "whole", "choice"]
    default: float | int | str | None = Field(description="What a control that leaves it out means; null: off.")
    minimum: float | None
    minimum_excluded: bool
    maximum: float | None
    choices: list[str]
    range: str = Field(description="The same in words.")
    sense: str

    @classmethod
    def of(cls, parameter: Parameter) -> Self:
        return cls(
            name=parameter.name,
            kind="choice" if parameter.choices else "whole" if parameter.whole else "number",
            default=parameter.default,
            minimum=parameter.minimum,
            minimum_excluded=parameter.minimum_excluded,
            maximum=parameter.maximum,
            choices=list(parameter.choices),
            range=parameter.range_in_words,
            sense=parameter.sense,
        )


class MethodOut(BaseModel):
    """One method; whether a run's probe can carry it out stands in the run's capabilities."""

    method: str
    label: str = Field(description="For a person.")
    does: str = Field(description="What becomes of a token's gradient.")
    source: str = Field(description="Where it was published; empty: nowhere.")
    thresholds: bool = Field(description="Whether mu_low and mu_high act.")
    presets: list[str] = Field(description="What `parameters.preset` may name.")
    preset_values: dict[str, dict[str, Any]] = Field(
        description="The fields of a control that each of them stands for."
    )
    parameters: list[ParameterOut]

    @classmethod
    def of(cls, method: Method) -> Self:
        return cls(
            method=method,
            label=method.label,
            does=method.does,
            source=method.source,
            thresholds=method.thresholds,
            presets=list(method.presets),
            preset_values={name: dict(stands_for) for name, stands_for in method.presets.items()},
            parameters=[ParameterOut.of(parameter) for parameter in method.parameters.values()],
        )


@router.get("/methods")
async def list_methods() -> Page[MethodOut]:
    """Every method this server knows, with its parameters, their bounds and defaults."""
    return Page(items=[MethodOut.of(method) for method in METHODS.values()], next_cursor=None)
