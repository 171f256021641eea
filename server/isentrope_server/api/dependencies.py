"""What routes share: the backend, the principal, the run in the path, the steps in the query,
cursors, strict queries and bodies."""

from __future__ import annotations

import base64
import binascii
import difflib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Path, Query, Request
from fastapi.dependencies.models import Dependant
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict, model_validator
from sqlalchemy import Connection

from isentrope_server.backend import Backend
from isentrope_server.errors import NotFound, RequestError, Unprocessable
from isentrope_server.security.gate import principal_of
from isentrope_server.store import runs
from isentrope_server.store.access import Principal
from isentrope_server.store.reports.series import StepRange
from isentrope_server.store.runs import Run
from isentrope_wire.answers import Page

_T = TypeVar("_T")


async def _backend(request: Request) -> Backend:
    backend = request.app.state.backend
    assert isinstance(backend, Backend)
    return backend


BackendDep = Annotated[Backend, Depends(_backend)]


async def _principal(request: Request) -> Principal:
    return principal_of(request.scope)


PrincipalDep = Annotated[Principal, Depends(_principal)]


async def _run(
    run_id: Annotated[str, Path(description="The run's id.")], backend: BackendDep
) -> Run:
    silent_after = backend.settings.silent_after_seconds
    run = await backend.read(
        lambda connection: runs.find(connection, run_id, silent_after_seconds=silent_after)
    )
    if run is None:
        raise no_such_run(
            run_id, await backend.read(lambda connection: runs.newest_named(connection, run_id))
        )
    return run


async def read_of(backend: Backend, run: Run, query: Callable[[Connection], _T]) -> _T:
    """Run a query about a run, and check in the same transaction that the run is still there;
    NotFound: it was deleted."""

    def read(connection: Connection) -> _T:
        # One connection reads one consistent state.
        check_still_there(connection, run)
        return query(connection)

    return await backend.read(read)


def check_still_there(connection: Connection, run: Run) -> None:
    """Raise NotFound where the run was deleted since it was looked up."""
    if runs.key_of(connection, run.id) != run.key:
        raise no_such_run(run.id)


def no_such_run(run_id: str, newest_of_that_name: str | None = None) -> NotFound:
    """The error of an unknown run; where `run_id` is a name, with the id of the newest run of that
    name."""
    message = f"There is no run {run_id[:140]!r} on this server."
    if newest_of_that_name is None:
        return NotFound(message, run_id=run_id[:140])
    return NotFound(
        f"{message[:-1]}; that is a name, and the newest run of that name has the id"
        f" {newest_of_that_name}.",
        run_id=run_id[:140],
        newest_of_that_name=newest_of_that_name,
    )


StepParam = Annotated[int | None, Query(ge=0, le=2**63 - 1)]


async def _step_range(from_step: StepParam = None, to_step: StepParam = None) -> StepRange:
    if from_step is not None and to_step is not None and from_step > to_step:
        raise Unprocessable(
            f"from_step must not be larger than to_step, got {from_step} > {to_step}: no step is in"
            " between.",
            from_step=from_step,
            to_step=to_step,
        )
    return StepRange(first=from_step, last=to_step)


StepRangeDep = Annotated[StepRange, Depends(_step_range)]
RunDep = Annotated[Run, Depends(_run)]


@dataclass(frozen=True, slots=True)
class ReportCursor:
    """How far a client has read a run's reports: `cursor` of a series, and its `since`."""

    position: int
    timeline: int
    """The run's timeline version: when it has risen, other reports may be shown and all must be
    read again."""

    def __str__(self) -> str:
        return encode(self.position, self.timeline)


def encode(*places: int) -> str:
    text = ".".join(str(place) for place in places)
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def decode(cursor: str, length: int) -> list[int]:
    """Read the `length` numbers in a cursor; RequestError: it is not from this server."""
    try:
        text = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode("ascii")
        places = [int(place) for place in text.split(".")]
    except (binascii.Error, ValueError):
        places = []
    if len(places) != length or not all(0 <= place < 2**63 for place in places):
        message = f"A cursor must be one of an earlier answer, unchanged; got {cursor[:80]!r}."
        raise RequestError(message, code="bad_cursor")
    return places


Limit = Annotated[int, Query(ge=1, le=500)]
"""Items of a page."""


def page_after(cursor: str | None, length: int) -> list[int] | None:
    """The place of the last item on the previous page; None for the first page. RequestError: the
    cursor is not from this server."""
    if cursor is None:
        return None
    return decode(cursor, length)


def page_of(found: Sequence[tuple[Sequence[int], _T]], limit: int) -> Page[_T]:
    """The first `limit` of items with their places; there is a next page if there are more."""
    place = None
    if len(found) > limit:
        place = found[limit - 1][0]
    return Page(
        items=[item for _, item in found[:limit]],
        next_cursor=None if place is None else encode(*place),
    )


async def refuse_unknown_parameters(request: Request) -> None:
    """Refuse unknown query parameters instead of ignoring them: RequestValidationError names each,
    and the route's closest one. Refuse NUL, which no database takes in a text."""
    route = request.scope["route"]
    if isinstance(route, APIRoute):
        known = set(_parameters(route.dependant))
    else:
        known = set()
    problems = [
        {
            "type": "string_type",
            "loc": ("query", name[:100]),
            "msg": "a text holds no NUL character",
        }
        for name, value in request.query_params.multi_items()
        if "\0" in value
    ]
    for name in (name for name in request.query_params if name not in known):
        nearest = difflib.get_close_matches(name, known, n=1)
        if nearest:
            hint = f"did you mean {nearest[0]}"
        else:
            hint = f"there are {', '.join(sorted(known))}"
        message = "this address takes no parameters"
        if known:
            message = f"there is no such parameter; {hint}"
        problems.append({"type": "extra_forbidden", "loc": ("query", name[:100]), "msg": message})
    if problems:
        raise RequestValidationError(problems)


def _parameters(dependant: Dependant) -> Iterator[str]:
    yield from (parameter.alias for parameter in dependant.query_params)
    for inner in dependant.dependencies:
        yield from _parameters(inner)


class Body(BaseModel):
    """A request's body; unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _is_plain_json(cls, value: Any) -> Any:
        """Refuse NaN, infinities and halves of characters, which Python's JSON reader accepts."""
        if isinstance(value, bytes):
            raise ValueError(  # noqa: TRY004
                "it must be JSON: send it with the header Content-Type: application/json"
            )
        try:
            json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
        except (ValueError, RecursionError) as error:
            raise ValueError(f"it must be JSON that others can read: {error}") from None
        return value
