"""Errors in the one error body, and large answers as JSON."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, fields
from http import HTTPStatus

import numpy as np
from fastapi import FastAPI, Request, Response
from fastapi.encoders import jsonable_encoder
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from numpy.typing import NDArray
from sqlalchemy.exc import SQLAlchemyError
from starlette.exceptions import HTTPException

from isentrope_server.errors import RequestError, error_body
from isentrope_server.security.gate import BodyTooLarge
from isentrope_server.store.writer import WriterStopped
from isentrope_wire.numbers import Answer, number, plain_json, printable

_log = logging.getLogger(__name__)


def install(app: FastAPI) -> None:
    """Answer every error of every route in one shape."""
    app.exception_handler(RequestError)(_request_error)
    app.exception_handler(HTTPException)(_http_error)
    app.exception_handler(BodyTooLarge)(_too_large)
    app.exception_handler(RequestValidationError)(_validation_error)
    app.exception_handler(SQLAlchemyError)(_store_error)
    app.exception_handler(WriterStopped)(_store_error)
    app.exception_handler(Exception)(_bug)


async def _request_error(_request: Request, error: RequestError) -> JSONResponse:
    return JSONResponse(error_body(error.code, error.message, error.details), error.status)


async def _http_error(request: Request, error: HTTPException) -> JSONResponse:
    status = HTTPStatus(error.status_code)
    if status is HTTPStatus.NOT_FOUND:
        message = f"There is nothing at {request.url.path[:200]!r}; /openapi.json lists what there is."
    elif status is HTTPStatus.METHOD_NOT_ALLOWED:
        message = f"{request.method} is not possible on {request.url.path[:200]!r}."
    else:
        message = str(error.detail)
    return JSONResponse(error_body(status.name.lower(), message), status, headers=error.headers)


async def _too_large(_request: Request, error: BodyTooLarge) -> JSONResponse:
    return error.answer()


async def _validation_error(_request: Request, error: RequestValidationError) -> JSONResponse:
    problems = [
        {"at": ".".join(str(part) for part in problem["loc"]), "problem": problem["msg"]} for problem in error.errors()
    ]
    first = problems[0]
    message = f"{first['at']}: {first['problem']}."
    return JSONResponse(error_body("invalid_request", message, {"problems": jsonable_encoder(problems)}), 422)


async def _store_error(request: Request, error: Exception) -> JSONResponse:
    _log.error("%s %s: the store failed: %s", request.method, printable(request.url.path), error)
    message = "The database can't answer now; try again, and look at the server's log if it stays so."
    return JSONResponse(error_body("store_unavailable", message), 503)


async def _bug(request: Request, error: Exception) -> JSONResponse:
    # Starlette logs the traceback and raises it again after this answer is sent.
    return JSONResponse(error_body("internal", "The server made a mistake; its log has the details."), 500)


_ITEMS_AT_ONCE = 1_000
"""Items encoded in one call, a millisecond of numbers. Answers in a list go one by one: a run's may be large."""


def _by_field(value: object) -> dict[str, object]:
    if not isinstance(value, Answer):
        raise TypeError(f"{type(value).__name__} is no JSON")
    return {field.name: getattr(value, field.name) for field in fields(value)}  # type: ignore[arg-type]


_JSON = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_by_field)


def json_answer(answer: Answer) -> Response:
    """The response of a large answer, made in pieces so that no other request waits for it.

    Call it in the thread that read the answer. A thread alone is not enough: encoding a list is one call, and no other
    Python code runs until it ends.
    """
    return Response(json_text(answer).encode("utf-8", "replace"), media_type="application/json")


def json_text(answer: Answer) -> str:
    """The answer as JSON; numbers that are not finite as text."""
    return "".join(_pieces(answer))


def _pieces(value: object) -> Iterator[str]:
    if isinstance(value, Answer):
        yield from _object(_by_field(value).items())
    elif isinstance(value, Mapping):
        yield from _object(value.items())
    elif isinstance(value, list) and value and isinstance(value[0], Answer):
        for index, inner in enumerate(value):
            yield "," if index else "["
            yield _encoded(inner)
        yield "]"
    elif isinstance(value, list):
        yield "["
        for start in range(0, len(value), _ITEMS_AT_ONCE):
            yield f"{',' if start else ''}{_encoded(value[start : start + _ITEMS_AT_ONCE])[1:-1]}"
        yield "]"
    else:
        yield _encoded(value)


def _object(fields: Iterable[tuple[str, object]]) -> Iterator[str]:
    yield "{"
    for index, (name, inner) in enumerate(fields):
        yield f"{',' if index else ''}{_JSON.encode(name)}:"
        yield from _pieces(inner)
    yield "}"


def _encoded(value: object) -> str:
    try:
        return _JSON.encode(value)
    except ValueError:  # a number that is not finite
        return _JSON.encode(plain_json(asdict(value) if isinstance(value, Answer) else value))  # type: ignore[call-overload]


def numbers(values: NDArray[np.float64]) -> list[float | str]:
    """A column of an export in JSON."""
    if bool(np.isfinite(values).all()):
        finite: list[float | str] = values.tolist()
        return finite
    return [number(value) for value in values.tolist()]
