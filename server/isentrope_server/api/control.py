"""Control: the requested and the active one, and its history. A change needs If-Match, so that none
is lost."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Response
from pydantic import ConfigDict, Field, TypeAdapter
from sqlalchemy import Connection

from isentrope_server.api.dependencies import (
    BackendDep,
    Body,
    Limit,
    PrincipalDep,
    RunDep,
    check_still_there,
    page_after,
    page_of,
    read_of,
)
from isentrope_server.api.openapi import describe_fields
from isentrope_server.control.diagnosis import measured
from isentrope_server.control.requests import control_from, request_control
from isentrope_server.control.versions import control_version, judged, run_control
from isentrope_server.errors import PreconditionFailed, PreconditionRequired
from isentrope_server.store import controls
from isentrope_server.store.controls import ControlItem
from isentrope_server.store.runs import Run
from isentrope_server.store.writer import Transaction
from isentrope_wire.answers import ErrorBody, Page
from isentrope_wire.control import Control, ControlFields
from isentrope_wire.control_answers import ControlVersion, PredictedEffect, RunControl
from isentrope_wire.diagnosis.health import Preview, preview
from isentrope_wire.diagnosis.outlook import Outlook, outlook, promise

router = APIRouter(tags=["control"])


def _add_control_fields(schema: dict[str, Any]) -> None:
    known = TypeAdapter(ControlFields).json_schema()["properties"]
    describe_fields(ControlFields, known)
    schema["properties"] = {**known, **schema["properties"]}
    schema["additionalProperties"] = False


class ControlDocument(Body):
    """The requested control: the fields of `Control`, which checks them, and when the change
    expires."""

    model_config = ConfigDict(strict=True, extra="allow", json_schema_extra=_add_control_fields)

    method: str
    expires_in_seconds: int | None = Field(
        default=None,
        ge=1,
        le=7 * 24 * 3600,
        description=(
            "null: after ISENTROPE_CONTROL_TTL_SECONDS, 600, and no sooner than after three"
            " of the run's steps; every change expires."
        ),
    )


ASSISTANT = r"[!-~]([ -~]{0,58}[!-~])?"
"""The name of the assistant that makes a request for a token's holder: at most 60 printable ASCII
characters."""

_REFUSALS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorBody} for status in (409, 412, 422, 428)
}


@router.get("/runs/{run_id}/control")
async def get_control(run: RunDep, backend: BackendDep, response: Response) -> RunControl:
    """The newest version with its state; `active` is the version active when the newest report was
    made."""
    view = await read_of(backend, run, lambda connection: run_control(connection, run))
    response.headers["ETag"] = _etag(view.version)
    return view


@router.put(
    "/runs/{run_id}/control",
    status_code=202,
    responses={200: {"model": ControlVersion}, **_REFUSALS},
)
async def put_control(
    run: RunDep,
    document: ControlDocument,
    backend: BackendDep,
    principal: PrincipalDep,
    response: Response,
    if_match: Annotated[
        str | None, Header(description='ETag of the version it builds on, e.g. `"3"`.')
    ] = None,
    idempotency_key: Annotated[str | None, Header(min_length=1, max_length=200)] = None,
    isentrope_assistant: Annotated[
        str | None,
        Header(
            pattern=f"^{ASSISTANT}$",
            description="The assistant that asks for the token's holder; named in `author`.",
        ),
    ] = None,
) -> ControlVersion:
    """Request a new version. 202: stored; its probe will report the outcome. 200: the same request
    came before."""
    control = control_from(document.model_dump(exclude={"expires_in_seconds"}), run)
    if isentrope_assistant is not None and control.guard is None:
        control = replace(control, guard="revert")
    if isentrope_assistant is not None:
        principal = replace(principal, name=f"{principal.name} via {isentrope_assistant}")
    expected_version = _version_in(if_match)
    seconds = document.expires_in_seconds or _time_to_live(
        run, backend.settings.control_ttl_seconds
    )
    # Read before the transaction: the writer waits for nothing that is not its own.
    predicted, warnings = await read_of(
        backend, run, lambda connection: _predict(connection, run, control)
    )

    def request(transaction: Transaction) -> tuple[ControlItem, bool]:
        check_still_there(transaction.connection, run)
        return request_control(
            transaction,
            run,
            control,
            by=principal,
            expected_version=expected_version,
            time_to_live_seconds=seconds,
            now=time.time(),
            idempotency_key=idempotency_key,
            predicted=predicted,
        )

    item, is_new = await backend.write(request)
    if not is_new:
        response.status_code = 200
    response.headers["ETag"] = _etag(item.version)
    return replace(control_version(item), warnings=warnings)


@router.get("/runs/{run_id}/control/history")
async def list_history(
    run: RunDep, backend: BackendDep, cursor: str | None = None, limit: Limit = 50
) -> Page[ControlVersion]:
    """Every requested version, newest first."""
    before = page_after(cursor, 1)
    found = await read_of(
        backend, run, lambda connection: _history(connection, run, before, limit + 1)
    )
    return page_of([((one.version,), one) for one in found], limit)


@router.post("/runs/{run_id}/control/preview", responses={422: {"model": ErrorBody}})
async def preview_control(
    run: RunDep,
    document: ControlDocument,
    backend: BackendDep,
    curves: Annotated[bool, Query(description="Also the thresholds over their range.")] = False,
) -> Preview:
    """What a control would do if it were pushed now: the forecast under it, what it clips, its
    pace, what would have no effect.

    Nothing is changed. 422: no probe could apply it.
    """
    control = control_from(document.model_dump(exclude={"expires_in_seconds"}), run)
    return await read_of(
        backend, run, lambda connection: preview(measured(connection, run), control, curves=curves)
    )


class OutlookRequest(Body):
    """What to preview beside the suggestion."""

    control: ControlDocument | None = Field(default=None, description="null: nothing.")
    curves: bool = Field(
        default=False,
        description="Also its thresholds over their range; without a control, those suggested.",
    )


@router.post("/runs/{run_id}/outlook", responses={422: {"model": ErrorBody}})
async def get_outlook(run: RunDep, asked: OutlookRequest, backend: BackendDep) -> Outlook:
    """The diagnosis, what its suggestion would do, and what another control would: all of one step.

    Nothing is changed. 422: no probe could apply the control.
    """
    control = None
    if asked.control is not None:
        control = control_from(asked.control.model_dump(exclude={"expires_in_seconds"}), run)
    return await read_of(
        backend,
        run,
        lambda connection: outlook(measured(connection, run), control, curves=asked.curves),
    )


_LEAST_STEPS_TO_LIVE = 3.0


def _time_to_live(run: Run, least_seconds: float) -> float:
    """Of a change that names none, in seconds: the run reaches the start of a step within it."""
    if run.digest is None or run.digest.seconds_per_step is None:
        return least_seconds
    return max(least_seconds, _LEAST_STEPS_TO_LIVE * run.digest.seconds_per_step)


def _predict(
    connection: Connection, run: Run, control: Control
) -> tuple[PredictedEffect | None, list[str]]:
    """What is promised of a control, and what its preview warns of."""
    found = measured(connection, run)
    return promise(found, control), preview(found, control).warnings


def _history(
    connection: Connection, run: Run, before: Sequence[int] | None, limit: int
) -> list[ControlVersion]:
    found = controls.page(
        connection, run.key, before_version=None if before is None else before[0], limit=limit
    )
    return judged(connection, run, [control_version(item) for item in found])


def _etag(version: int) -> str:
    return f'"{version}"'


_ETAG = re.compile(r'(?:W/)?"?([0-9]{1,18})(?:-\w+)?"?')
"""Also as proxies that compress give it to clients: `W/"3"` (nginx), `"3-gzip"` (Apache)."""


def _version_in(if_match: str | None) -> int:
    if if_match is None:
        raise PreconditionRequired(
            "If-Match must name the version the change builds on: send the ETag that GET control"
            " answers."
        )
    version = _ETAG.fullmatch(if_match.strip())
    if version is None:
        raise PreconditionFailed(
            f'If-Match must be an ETag of this control, e.g. "3"; got {if_match[:80]!r}.'
        )
    return int(version[1])
