"""The description of the API: FastAPI's own, and what holds for all routes; and `/docs`, the page
that shows it.

Added are what FastAPI can't derive: the token and its scope, every possible error with its code,
the docstrings of the answers, and descriptions of parameters that several routes share.

Swagger UI draws the page. Every file comes from this server: `fastapi-swagger` packages the files
that Swagger UI releases, unchanged. Its own page is not used, because that has an inline script.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from functools import cache
from http import HTTPStatus
from importlib.resources import files
from inspect import cleandoc, getsource
from itertools import pairwise
from pathlib import Path
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.responses import FileResponse
from starlette.exceptions import HTTPException

from isentrope_server.errors import error_body
from isentrope_server.security.permissions import OPEN_PATHS, required_scope
from isentrope_wire.numbers import Answer

_ERROR_SCHEMA = {"$ref": "#/components/schemas/ErrorBody"}
_GENERATED = ("HTTPValidationError", "ValidationError")
"""FastAPI's own error bodies, which this server never sends."""

_DESCRIPTION = (
    "Runs, what they reported, and their controls. Every request but those under *health* needs a"
    " token, as `Authorization: Bearer TOKEN`, or comes from a browser that is logged in; `x-scope`"
    " is the scope the token needs. Every error has the same body, `ErrorBody`."
)
_TOKEN_DESCRIPTION = (
    "Made by `isentrope token create --scope SCOPE`. A browser that is logged in needs none; a"
    " token given here is used instead of its cookie."
)
_PARAMETERS = {
    "cursor": "`next_cursor` of the page before.",
    "limit": "How many items at most.",
    "project": "Only runs of this project; given several times, of one of these.",
    "status": "Only runs of this status, or of one of several.",
    "tag": "Only runs with this tag, or with one of several.",
    "order": "`attention`: runs that need attention first.",
    "from_step": "First step; default: from the beginning.",
    "to_step": "Last step; default: to the end.",
    "points": "Reduce to so many points.",
    "step": "The step; where it is optional, default: the newest step with an answer.",
    "name": "A metric's or histogram's name.",
    "scope": "On which tokens the method acts.",
    "token_id": "The token's id, as the list shows it.",
    "last-event-id": "Id of the last event that came: what followed is sent first.",
    "idempotency-key": "Sent again with the same key, a request is answered and not repeated.",
}
"""Descriptions of parameters by name; a route's own description is used first."""

_ERRORS = {
    400: ("bad_cursor", "A cursor must be one of an earlier answer, unchanged; got '***'."),
    401: ("unauthenticated", "A valid token is needed: send Authorization: Bearer TOKEN."),
    403: ("forbidden", "The token 'read' has the scope read; this address needs control."),
    404: ("not_found", "There is no run 'nobody' on this server."),
    409: ("conflict", "Run countdown-1a2b3c has finished: no probe will apply a control."),
    412: (
        "version_mismatch",
        "The newest control is version 3, If-Match names 2. Read it and decide again.",
    ),
    413: ("body_too_large", "A request's body may have 1048576 bytes, this one has more."),
    422: ("invalid_request", "query.limit: Input should be greater than or equal to 1."),
    428: ("if_match_required", "If-Match must name the version the change builds on."),
    500: ("internal", "The server made a mistake; its log has the details."),
    503: (
        "store_unavailable",
        "The database can't answer now; try again, and look at the server's log.",
    ),
}
_OWN_ERRORS = {
    ("delete", "/api/v1/runs/{run_id}"): (409,),
    ("put", "/api/v1/runs/{run_id}/control"): (409, 412, 428),
}


def install(app: FastAPI) -> None:
    """Complete the document of `/openapi.json`."""
    plain = app.openapi

    def described() -> dict[str, Any]:
        if app.openapi_schema is None:
            root_path = app.state.settings.root_path
            app.openapi_schema = _completed(plain())
            if root_path:
                app.openapi_schema["servers"] = [{"url": root_path}]
        return app.openapi_schema

    app.openapi = described  # type: ignore[method-assign]


def _completed(document: dict[str, Any]) -> dict[str, Any]:
    components = document["components"]["schemas"]
    for name in _GENERATED:
        components.pop(name, None)
    _describe_answers(components)
    operations = [
        (verb, path, one)
        for path, verbs in document["paths"].items()
        for verb, one in verbs.items()
    ]
    for verb, path, operation in operations:
        # FastAPI's summary has a capital at each word.
        operation["summary"] = operation["summary"].capitalize()
        for parameter in operation.get("parameters", ()):
            parameter.setdefault("description", _PARAMETERS.get(parameter["name"], ""))
        _complete_answers(verb, path, operation)
        if path not in OPEN_PATHS:
            operation["security"] = [{"token": []}]
            operation["x-scope"] = str(required_scope(verb.upper(), path))
    document["info"]["description"] = _DESCRIPTION
    document["components"]["securitySchemes"] = {
        "token": {"type": "http", "scheme": "bearer", "description": _TOKEN_DESCRIPTION}
    }
    return document


def _describe_answers(components: dict[str, Any]) -> None:
    answers = {answer.__name__: answer for answer in _subclasses(Answer)}
    for name, schema in components.items():
        if answer := answers.get(name.partition("_")[0]):  # `Page_Alert_` is a Page
            schema["description"] = answer.__doc__
            describe_fields(answer, schema.get("properties", {}))


def describe_fields(answer: type, properties: dict[str, Any]) -> None:
    """Add the docstrings of an answer's fields, also of those it has from another, to their
    descriptions in OpenAPI. Pydantic can do it, but does so for each route of each server that
    starts: it takes a second."""
    for base in (base for base in answer.__mro__ if issubclass(base, Answer)):
        for field, description in _field_docstrings(base.__module__).get(base.__name__, {}).items():
            if field in properties:
                properties[field].setdefault("description", description)


def _subclasses(of: type[Answer]) -> Iterator[type[Answer]]:
    for subclass in of.__subclasses__():
        yield subclass
        yield from _subclasses(subclass)


@cache
def _field_docstrings(module: str) -> dict[str, dict[str, str]]:
    """The texts below the fields of a module's classes, by class and field."""
    return {
        one.name: {
            field.target.id: cleandoc(text.value.value)
            for field, text in pairwise(one.body)
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
            if isinstance(text, ast.Expr)
            and isinstance(text.value, ast.Constant)
            and isinstance(text.value.value, str)
        }
        for one in ast.parse(getsource(sys.modules[module])).body
        if isinstance(one, ast.ClassDef)
    }


def _complete_answers(verb: str, path: str, operation: dict[str, Any]) -> None:
    responses = operation["responses"]
    for status, answer in responses.items():
        for content in answer.get("content", {}).values():
            content["schema"] = content.get("schema") or {"type": "string", "format": "binary"}
        if answer.get("description") in (None, "Successful Response"):
            answer["description"] = HTTPStatus(int(status)).phrase
    for error in _possible_errors(verb, path, operation):
        code, message = _ERRORS[error]
        responses[str(error)] = {
            "description": f"{HTTPStatus(error).phrase}, e.g. `{code}`.",
            "content": {
                "application/json": {"schema": _ERROR_SCHEMA, "example": error_body(code, message)}
            },
        }
    operation["responses"] = dict(sorted(responses.items()))


def _possible_errors(verb: str, path: str, operation: dict[str, Any]) -> list[int]:
    # Any address answers 413 to a body that is too long, or whose length is announced wrongly.
    possible = {413, 500}
    if path not in OPEN_PATHS:
        possible |= {400, 401, 403, 503}
    if path == "/readyz":
        possible |= {503}
    if operation.get("parameters") or "requestBody" in operation:
        possible.add(422)
    if "{" in path:
        possible.add(404)
    possible.update(_OWN_ERRORS.get((verb, path), ()))
    return sorted(possible)


router = APIRouter(include_in_schema=False)

_PAGE = Path(__file__).parents[1] / "reference"
_SWAGGER_UI = Path(str(files("fastapi_swagger"))) / "resources"
_FILES = {
    "start.js": _PAGE / "start.js",
    "swagger-ui-bundle.js": _SWAGGER_UI / "swagger-ui-bundle.js",
    "swagger-ui.css": _SWAGGER_UI / "swagger-ui.css",
}
# Without it a browser guesses from the files' dates, which are years old, and keeps them across an
# upgrade.
_KEPT_FOR_AN_HOUR = {"cache-control": "private, max-age=3600"}


@router.get("/docs")
async def read_the_reference() -> FileResponse:
    return FileResponse(_PAGE / "page.html", headers={"cache-control": "no-cache"})


@router.get("/docs/{file}")
async def read_a_file_of_the_reference(file: str) -> FileResponse:
    """What the page loads."""
    if file not in _FILES:
        raise HTTPException(404)
    return FileResponse(_FILES[file], headers=_KEPT_FOR_AN_HOUR)
