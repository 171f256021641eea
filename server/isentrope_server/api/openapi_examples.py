"""Examples for the description of the API, made from its schemas: they can't fall behind them.

A field is shown with the value below that its name has; one without a value, with the plainest of its type.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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
