"""The description of the API: what FastAPI knows of the routes, and what holds for all of them.

A summary is the name of the route's function, a description its docstring. Every error a route can answer stands beside it, with its code.
"""

from __future__ import annotations

from collections.abc import Iterator
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI

from isentrope_server.api.openapi_examples import example_of, field_example
from isentrope_server.errors import error_body
from isentrope_server.security.permissions import OPEN_PATHS, required_scope

_ERROR_SCHEMA = {"$ref": "#/components/schemas/ErrorBody"}
_GENERATED = ("HTTPValidationError", "ValidationError")
"""FastAPI's own error bodies, which this server never sends."""

_PARAMETERS = {
    "cursor": "`next_cursor` of the page before.",
    "limit": "How many items at most.",
    "project": "Only runs of this project.",
    "status": "Only runs of this status.",
    "from_step": "The first step wanted; left out: from the beginning.",
    "to_step": "The last step wanted; left out: to the end.",
    "points": "Reduce to so many points.",
    "step": "The step; where it may be left out, the newest that can answer.",
    "name": "A metric's or histogram's name.",
    "scope": "On which tokens the thresholds act.",
    "token_id": "The token's id, as the list shows it.",
    "last-event-id": "Id of the last event that came: what followed is sent first.",
    "idempotency-key": "Sent again with the same key, a request is answered and not repeated.",
}
"""What parameters mean, by name; a route's own words come first."""

_ERRORS = {
    400: ("bad_cursor", "A cursor is what an earlier answer gave, unchanged; got '***'."),
    401: ("unauthenticated", "A token this server knows is needed: Authorization: Bearer TOKEN."),
    403: ("forbidden", "The token 'read' has the scope read; this address, if there is one, needs control."),
    404: ("not_found", "There is no run 'nobody' on this server."),
    409: ("conflict", "Run countdown-1a2b3c has finished: no probe will apply a control."),
    412: ("version_mismatch", "The newest control is version 3, If-Match names 2. Read it, and decide again."),
    413: ("body_too_large", "A request's body may have 1048576 bytes, this one has more."),
    422: ("invalid_request", "query.limit: Input should be greater than or equal to 1."),
    428: ("if_match_required", "If-Match must name the version the change builds on."),
    429: ("too_many_open", "The token 'ada' holds 512 requests and streams open, as many as one may."),
    431: ("headers_too_large", "A request's address and headers may have 16 KiB, these have more."),
    500: ("internal", "The server made a mistake; its log has the details."),
    503: ("store_unavailable", "The database can't answer now; try again, and look at the server's log."),
}
_OWN_ERRORS = {
    ("delete", "/api/v1/runs/{run_id}"): (409,),
    ("put", "/api/v1/runs/{run_id}/control"): (409, 412, 428),
}
_TEXT_EXAMPLES = {
    "text/event-stream": 'id: NDEuMQ\nevent: step\ndata: {"step": 41, "scalars": {"entropy/mean": 0.81}}\n\n',
    "text/csv": "step,incarnation,rank,time,entropy/mean\r\n0,first,0,1767226210.4,0.81\r\n",
    "text/plain": '# TYPE isentrope_runs gauge\nisentrope_runs{status="running"} 1.0\n',
}
_STREAMS = {"/api/v1/runs/{run_id}/live": "text/event-stream"}


def install(app: FastAPI) -> None:
    """Have `/openapi.json` tell all of it."""
    plain = app.openapi

    def described() -> dict[str, Any]:
        if app.openapi_schema is None or "x-described" not in app.openapi_schema:
            app.openapi_schema = _completed(plain())
        return app.openapi_schema

    app.openapi = described  # type: ignore[method-assign]


def _completed(document: dict[str, Any]) -> dict[str, Any]:
    components = document["components"]["schemas"]
    for name in _GENERATED:
        components.pop(name, None)
    for verb, path, operation in _operations(document):
        _summarise(operation)
        for parameter in operation.get("parameters", ()):
            _explain(parameter, components)
        if "requestBody" in operation:
            _show(operation["requestBody"]["content"], components)
        _complete_answers(verb, path, operation, components)
        if path not in OPEN_PATHS:
            operation["security"] = [{"token": []}]
            operation["x-scope"] = str(required_scope(verb.upper(), path))
    document["components"]["securitySchemes"] = {
        "token": {"type": "http", "scheme": "bearer", "description": "`isentrope token create --scope SCOPE`"}
    }
    document["x-described"] = True
    return document


def _operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, verbs in document["paths"].items():
        for verb, operation in verbs.items():
            yield verb, path, operation


def _summarise(operation: dict[str, Any]) -> None:
    # FastAPI's is the function's name with a capital at each word.
    operation["summary"] = operation["summary"].capitalize()


def _explain(parameter: dict[str, Any], components: dict[str, Any]) -> None:
    name = parameter["name"]
    if not parameter.get("description"):
        parameter["description"] = _PARAMETERS.get(name, "")
    parameter.setdefault("example", field_example(name, parameter["schema"], components))


def _show(content: dict[str, Any], components: dict[str, Any]) -> None:
    for media_type, medium in content.items():
        medium["schema"] = medium.get("schema") or {"type": "string", "format": "binary"}
        if "example" not in medium and "examples" not in medium:
            text = _TEXT_EXAMPLES.get(media_type)
            medium["example"] = example_of(medium.get("schema", {}), components) if text is None else text


def _complete_answers(verb: str, path: str, operation: dict[str, Any], components: dict[str, Any]) -> None:
    answers = operation["responses"]
    answers.pop("default", None)
    for status, answer in answers.items():
        if status.startswith("2") and path in _STREAMS:
            answer["content"] = {_STREAMS[path]: {"schema": {"type": "string"}}}
        _show(answer.get("content", {}), components)
        if answer.get("description") in (None, "Successful Response"):
            answer["description"] = HTTPStatus(int(status)).phrase
    for error in _possible_errors(verb, path, operation):
        code, message = _ERRORS[error]
        answers[str(error)] = {
            "description": f"{HTTPStatus(error).phrase}, e.g. `{code}`.",
            "content": {"application/json": {"schema": _ERROR_SCHEMA, "example": error_body(code, message)}},
        }
    operation["responses"] = dict(sorted(answers.items()))


def _possible_errors(verb: str, path: str, operation: dict[str, Any]) -> list[int]:
    # Told wrongly how long its body is, any address answers 413; and 431 where its parameters are too long.
    possible = {413, 431, 500}
    if path not in OPEN_PATHS:
        possible |= {400, 401, 403, 429, 503}
    if path == "/readyz":
        possible |= {503}
    if operation.get("parameters") or "requestBody" in operation:
        possible.add(422)
    if "{" in path:
        possible.add(404)
    possible.update(_OWN_ERRORS.get((verb, path), ()))
    return sorted(possible)
