"""Every failure becomes the one error body.

Large answers: their JSON is made where they are read, in pieces, so that no other answer waits for it.

A thread of its own is not enough: encoding a list is one call, and nothing else of the process runs until it is over.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
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
from isentrope_server.security.gate import RequestRefused
from isentrope_server.store.writer import WriterStopped
from isentrope_wire.numbers import Number, number, printable

_log = logging.getLogger(__name__)


def install(app: FastAPI) -> None:
    """Answer every error of every route in one shape."""
    app.exception_handler(RequestError)(_request_error)
    app.exception_handler(HTTPException)(_http_error)
    app.exception_handler(RequestRefused)(_refused)
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


async def _refused(_request: Request, error: RequestRefused) -> JSONResponse:
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
"""A millisecond for numbers, some for rows of them. Documents go one by one: a run's may be large."""
_JSON = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def json_answer(document: Mapping[str, object]) -> Response:
    """The answer to a request. Call it in the thread that read the document.

    Raises:
        ValueError: a number in it is not finite; `numbers.number` spells those.
    """
    return Response("".join(_pieces(document)).encode(), media_type="application/json")


def _pieces(value: object) -> Iterator[str]:
    if isinstance(value, Mapping):
        yield "{"
        for index, (name, inner) in enumerate(value.items()):
            yield f"{',' if index else ''}{_JSON.encode(name)}:"
            yield from _pieces(inner)
        yield "}"
    elif isinstance(value, list):
        yield "["
        at_once = 1 if value and isinstance(value[0], Mapping) else _ITEMS_AT_ONCE
        for start in range(0, len(value), at_once):
            yield f"{',' if start else ''}{_JSON.encode(value[start : start + at_once])[1:-1]}"
        yield "]"
    else:
        yield _JSON.encode(value)


def numbers(values: NDArray[np.float64]) -> list[Number]:
    if bool(np.isfinite(values).all()):
        finite: list[Number] = values.tolist()
        return finite
    return [number(value) for value in values.tolist()]
