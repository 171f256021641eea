"""The description of the API: the routes as FastAPI knows them, and what holds for all of them.

A summary is the name of the route's function, a description its docstring. Answers are described by the docstrings of
their dataclasses, and every possible error is listed with its code. Examples are made from the schemas: a field is
shown with its value in `FIELD_VALUES`; one without a value, with the plainest of its type.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI

from isentrope_server.errors import error_body
from isentrope_server.security.permissions import OPEN_PATHS, required_scope
from isentrope_wire import answers, control_answers
from isentrope_wire.methods import Method
from isentrope_wire.metrics import ENTROPY_MEAN, REWARD_MEAN

Schema = Mapping[str, Any]

FIELD_VALUES: dict[str, Any] = {
    "id": "countdown-1a2b3c",
    "run_id": "countdown-1a2b3c",
    "token_id": "5f2c9a10",
    "name": str(ENTROPY_MEAN),
    "project": "demo",
    "tags": ["baseline"],
    "notes": "Entropy falls from step 40 on.",
    "config": {"learning_rate": 1e-4},
    "probe_version": "0.1.0",
    "capabilities": ["method:none", "method:clip_v"],
    "incarnation": "20260301T101500-7f3a",
    "incarnations": 1,
    "world_size": 1,
    "rank": 0,
    "step": 41,
    "planned_steps": 200,
    "created_at": 1767225600.0,
    "last_report_at": 1767226210.5,
    "recorded_at": 1767226210.4,
    "received_at": 1767226210.5,
    "requested_at": 1767226205.0,
    "expires_at": 1767226805.0,
    "applied_at": 1767226210.4,
    "last_used_at": 1767226210.0,
    "at": 1767226205.0,
    "finished_at": None,
    "revoked_at": None,
    "ended_at": None,
    "error": "",
    "scalars": {str(ENTROPY_MEAN): 0.81, str(REWARD_MEAN): 0.42},
    "labels": {"control/method": "clip_v"},
    "series": {str(ENTROPY_MEAN): {"step": [40, 41], "value": [0.83, 0.81], "min": None, "max": None}},
    "cursor": "NDEuMQ",
    "next_cursor": None,
    "since": "NDEuMQ",
    "last-event-id": "NDEuMQ",
    "reset": True,
    "version": 3,
    "control_version": 3,
    "method": str(Method.CLIP_V),
    "label": Method.CLIP_V.label,
    "does": Method.CLIP_V.does,
    "source": Method.CLIP_V.source,
    "mu_low": 1.0,
    "mu_high": 1.0,
    "scope": "negative",
    "parameters": {},
    "hold": None,
    "reason": "Entropy falls too fast.",
    "author": "ada",
    "actor": "ada",
    "action": "control.requested",
    "subject": "runs/countdown-1a2b3c/control/3",
    "change": {"old": {"method": "none"}, "new": {"method": "clip_v", "mu_low": 1.0}},
    "chain_hash": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "head": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "broken_at": None,
    "code": "",
    "message": "",
    "token": "ise_shown_once_and_nowhere_else",
    "text": " therefore",
    "kind": "collapse",
    "evidence": {str(ENTROPY_MEAN): 0.2},
    "if-match": '"2"',
    "idempotency-key": "7d1f0a5e-change-of-ada",
    "expires_in_seconds": 600,
    "q": "countdown",
    "total": 14,
    "statuses": {"running": 7, "silent": 1, "finished": 5, "failed": 1, "ended": 0, "imported": 0},
    "levels": {"no_data": 0, "healthy": 2, "watch": 2, "act": 2, "holding": 1},
    "entropy_line": [0.83, 0.82, None, 0.81],
    "reward_line": [0.31, 0.38, 0.4, 0.42],
    "hold_target": "75%",
    "from_step": 0,
    "to_step": 100,
    "points": 500,
    "limit": 50,
    "format": "csv",
    "status": "running",
}

_PLAIN: dict[str, Any] = {"string": "text", "integer": 1, "number": 0.5, "boolean": False, "null": None}


def example_of(schema: Schema, components: Mapping[str, Schema]) -> Any:
    """A value that `schema` allows."""
    if "$ref" in schema:
        return example_of(components[str(schema["$ref"]).rpartition("/")[2]], components)
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return schema["enum"][0]
    for choice in ("anyOf", "oneOf", "allOf"):
        if choice in schema:
            return example_of(schema[choice][0], components)
    kind = schema.get("type", "string")
    if kind == "object":
        return _object(schema, components)
    if kind == "array":
        return [example_of(schema.get("items", {}), components)]
    return schema["minimum"] if "minimum" in schema and kind in ("integer", "number") else _PLAIN[kind]


def field_example(name: str, schema: Schema, components: Mapping[str, Schema]) -> Any:
    """What a field or parameter of this name is shown with."""
    value = FIELD_VALUES.get(name.lower())
    return (
        value if name.lower() in FIELD_VALUES and _fits(value, schema, components) else example_of(schema, components)
    )


def _object(schema: Schema, components: Mapping[str, Schema]) -> dict[str, Any]:
    fields = schema.get("properties", {})
    example = {name: field_example(name, inner, components) for name, inner in fields.items()}
    if not fields and isinstance(schema.get("additionalProperties"), Mapping):
        example[str(ENTROPY_MEAN)] = example_of(schema["additionalProperties"], components)
    return example


def _fits(value: Any, schema: Schema, components: Mapping[str, Schema]) -> bool:
    """Whether a value of the table is of the field's type: one name may stand for two things."""
    if "$ref" in schema:
        return _fits(value, components[str(schema["$ref"]).rpartition("/")[2]], components)
    for choice in ("anyOf", "oneOf"):
        if choice in schema:
            return any(_fits(value, inner, components) for inner in schema[choice])
    if "enum" in schema or "const" in schema:
        return value in schema.get("enum", [schema.get("const")])
    kinds: dict[str, Any] = {
        "string": str,
        "integer": int,
        "number": (int, float),
        "boolean": bool,
        "object": dict,
        "array": list,
        "null": type(None),
    }
    kind = schema.get("type")
    if kind is None:
        return True
    if not isinstance(value, kinds[kind]) or (isinstance(value, bool) and kind != "boolean"):
        return False
    if kind == "array":
        return all(_fits(item, schema.get("items", {}), components) for item in value)
    if kind == "object":
        return set(schema.get("required", ())) <= set(value)
    return True


_ERROR_SCHEMA = {"$ref": "#/components/schemas/ErrorBody"}
_GENERATED = ("HTTPValidationError", "ValidationError")
"""FastAPI's own error bodies, which this server never sends."""

_DESCRIPTION = (
    "Runs, what they reported, and their controls. Every request but those under *health* needs a token, as "
    "`Authorization: Bearer TOKEN`, or comes from a browser that is logged in; `x-scope` is the scope the token needs. "
    "Every error has the same body, `ErrorBody`."
)
_TOKEN_DESCRIPTION = (
    "Made by `isentrope token create --scope SCOPE`. A browser that is logged in needs none; a token given here is used "
    "instead of its cookie."
)
_PARAMETERS = {
    "cursor": "`next_cursor` of the page before.",
    "limit": "How many items at most.",
    "project": "Only runs of this project; given several times, of one of these.",
    "status": "Only runs of this status, or of one of several.",
    "tag": "Only runs with this tag, or with one of several.",
    "order": "`attention`: those that need a person first.",
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
    412: ("version_mismatch", "The newest control is version 3, If-Match names 2. Read it and decide again."),
    413: ("body_too_large", "A request's body may have 1048576 bytes, this one has more."),
    422: ("invalid_request", "query.limit: Input should be greater than or equal to 1."),
    428: ("if_match_required", "If-Match must name the version the change builds on."),
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
    """Complete the document of `/openapi.json`."""
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
    _describe_answers(components)
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
    document["info"]["description"] = _DESCRIPTION
    document["components"]["securitySchemes"] = {
        "token": {"type": "http", "scheme": "bearer", "description": _TOKEN_DESCRIPTION}
    }
    document["x-described"] = True
    return document


def _describe_answers(components: dict[str, Any]) -> None:
    """Add the docstrings of the answers, and those of the fields that an answer has from another."""
    for module in (answers, control_answers):
        for name, answer in vars(module).items():
            if name not in components or not (isinstance(answer, type) and is_dataclass(answer)):
                continue
            schema = components[name]
            schema["description"] = answer.__doc__
            for base in (components[base.__name__] for base in answer.__mro__[1:] if base.__name__ in components):
                for field, described in base["properties"].items():
                    if "description" in described:
                        schema["properties"][field].setdefault("description", described["description"])


def _operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, verbs in document["paths"].items():
        for verb, operation in verbs.items():
            yield verb, path, operation


def _summarise(operation: dict[str, Any]) -> None:
    # FastAPI's summary has a capital at each word.
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
    responses = operation["responses"]
    responses.pop("default", None)
    for status, answer in responses.items():
        if status.startswith("2") and path in _STREAMS:
            answer["content"] = {_STREAMS[path]: {"schema": {"type": "string"}}}
        _show(answer.get("content", {}), components)
        if answer.get("description") in (None, "Successful Response"):
            answer["description"] = HTTPStatus(int(status)).phrase
    for error in _possible_errors(verb, path, operation):
        code, message = _ERRORS[error]
        responses[str(error)] = {
            "description": f"{HTTPStatus(error).phrase}, e.g. `{code}`.",
            "content": {"application/json": {"schema": _ERROR_SCHEMA, "example": error_body(code, message)}},
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
