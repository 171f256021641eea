"""Errors in the one error body, and large answers as JSON."""

from __future__ import annotations

import logging
from http import HTTPStatus

import msgspec
from fastapi import FastAPI, Request, Response
from fastapi.encoders import jsonable_encoder
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from sqlalchemy.exc import SQLAlchemyError
from starlette.exceptions import HTTPException

from isentrope_server.errors import RequestError, error_body
from isentrope_server.security.gate import BodyTooLarge
from isentrope_server.store.writer import WriterStopped
from isentrope_wire.numbers import Answer, document_of, printable

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
        message = (
            f"There is nothing at {request.url.path[:200]!r}; /openapi.json lists what there is."
        )
    elif status is HTTPStatus.METHOD_NOT_ALLOWED:
        message = f"{request.method} is not possible on {request.url.path[:200]!r}."
    else:
        message = str(error.detail)
    return JSONResponse(error_body(status.name.lower(), message), status, headers=error.headers)


async def _too_large(_request: Request, error: BodyTooLarge) -> JSONResponse:
    return error.answer()


async def _validation_error(_request: Request, error: RequestValidationError) -> JSONResponse:
    problems = [
        {"at": ".".join(str(part) for part in problem["loc"]), "problem": problem["msg"]}
        for problem in error.errors()
    ]
    first = problems[0]
    message = f"{first['at']}: {first['problem']}."
    return JSONResponse(
        error_body("invalid_request", message, {"problems": jsonable_encoder(problems)}), 422
    )


async def _store_error(request: Request, error: Exception) -> JSONResponse:
    _log.error("%s %s: the store failed: %s", request.method, printable(request.url.path), error)
    message = (
        "The database can't answer now; try again, and look at the server's log if it stays so."
    )
    return JSONResponse(error_body("store_unavailable", message), 503)


async def _bug(request: Request, error: Exception) -> JSONResponse:
    # Starlette logs the traceback and raises it again after this answer is sent.
    return JSONResponse(
        error_body("internal", "The server made a mistake; its log has the details."), 500
    )


def json_answer(answer: Answer) -> Response:
    """The response of a large answer. Call it in the thread that read the answer: other requests
    need not wait for it."""
    return Response(json_text(answer).encode(), media_type="application/json")


def json_text(answer: Answer) -> str:
    """The answer as JSON; numbers that are not finite as text."""
    return msgspec.json.encode(document_of(answer)).decode()
