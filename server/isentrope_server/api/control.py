"""Control: what a run should do, asked for with If-Match, so that nobody overwrites what they haven't seen.

The methods a control can name, and what each can be told: what a form or a script needs to ask for one.
"""

from __future__ import annotations

import time
from typing import Annotated, Any, Literal, Self

from fastapi import APIRouter, Header, Query, Response
from pydantic import BaseModel, Field

from isentrope_server.api import dependencies
from isentrope_server.api.control_schemas import ControlDocument, ControlItemOut, ControlView
from isentrope_server.api.dependencies import BackendDep, PrincipalDep, RunDep, check_still_there, read_of
from isentrope_server.api.schemas import ErrorBody, Page
from isentrope_server.control.requests import ControlRequest, Requested, control_from, request_control
from isentrope_server.control.state import standing
from isentrope_server.errors import PreconditionFailed, PreconditionRequired
from isentrope_server.store import controls
from isentrope_server.store.runs import Run
from isentrope_server.store.writer import Transaction
from isentrope_wire.methods import METHODS, Method, Parameter

router = APIRouter(tags=["control"])

_REFUSALS: dict[int | str, dict[str, Any]] = {status: {"model": ErrorBody} for status in (409, 412, 422, 428)}


@router.get("/runs/{run_id}/control")
async def get_control(run: RunDep, backend: BackendDep, response: Response) -> ControlView:
    """The newest version and where it stands; `in_force` is what the newest report was made under."""
    view = ControlView.of(await read_of(backend, run, lambda connection: standing(connection, run)))
    response.headers["ETag"] = _etag(view.version)
    return view


@router.put(
    "/runs/{run_id}/control",
    status_code=202,
    responses={200: {"model": ControlItemOut}, **_REFUSALS},
)
async def put_control(
    run: RunDep,
    document: ControlDocument,
    backend: BackendDep,
    principal: PrincipalDep,
    response: Response,
    if_match: Annotated[str | None, Header(description='ETag of the version it builds on, e.g. `"3"`.')] = None,
    idempotency_key: Annotated[str | None, Header(min_length=1, max_length=200)] = None,
) -> ControlItemOut:
    """Ask for a new version. 202: recorded, its probe will say what became of it. 200: this request had come before."""
    fields = document.model_dump(exclude={"expires_in_seconds"})
    request = ControlRequest(
        control=control_from(fields),
        author=principal.name,
        token_id=principal.token_id,
        expected_version=_version_in(if_match),
        time_to_live_seconds=document.expires_in_seconds or backend.settings.control_ttl_seconds,
        idempotency_key=idempotency_key,
    )
    requested = await backend.write(lambda transaction: _request(transaction, run, request))
    if not requested.is_new:
        response.status_code = 200
    response.headers["ETag"] = _etag(requested.item.version)
    return ControlItemOut.of(requested.item)


@router.get("/runs/{run_id}/control/history")
async def list_history(
    run: RunDep,
    backend: BackendDep,
    cursor: str | None = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
) -> Page[ControlItemOut]:
    """Every version ever asked for, newest first."""
    before = None if cursor is None else dependencies.decode(cursor, 1)[0]
    found = await read_of(
        backend, run, lambda connection: controls.page(connection, run.key, before_version=before, limit=limit + 1)
    )
    items = found[:limit]
    return Page(
        items=[ControlItemOut.of(item) for item in items],
        next_cursor=dependencies.encode(items[-1].version) if len(found) > limit else None,
    )


def _request(transaction: Transaction, run: Run, request: ControlRequest) -> Requested:
    check_still_there(transaction.connection, run)
    return request_control(transaction, run, request, time.time())


def _etag(version: int) -> str:
    return f'"{version}"'


def _version_in(if_match: str | None) -> int:
    if if_match is None:
        raise PreconditionRequired(
            "If-Match must name the version the change builds on: send the ETag that GET control answers."
        )
    version = if_match.strip().removeprefix('"').removesuffix('"')
    if not version.isascii() or not version.isdecimal() or len(version) > 18:
        raise PreconditionFailed(f'If-Match must be an ETag of this control, e.g. "3"; got {if_match[:80]!r}.')
    return int(version)


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
