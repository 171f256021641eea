"""Large answers: their JSON is made where they are read, in pieces, so that no other answer waits for it.

A thread of its own is not enough: encoding a list is one call, and nothing else of the process runs until it is over.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from fastapi import Response

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
