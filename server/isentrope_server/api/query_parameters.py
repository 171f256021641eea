"""A request's query keeps to the route's own parameters, as a body keeps to its fields."""

from __future__ import annotations

import difflib
from collections.abc import Iterator

from fastapi import Request
from fastapi.dependencies.models import Dependant
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute


async def refuse_unknown_parameters(request: Request) -> None:
    """A parameter nobody knows is an error, not one ignored: its answer would be to another question.

    Raises:
        RequestValidationError: names each of them, and the nearest the route has.
    """
    route = request.scope["route"]
    known = set(_parameters(route.dependant)) if isinstance(route, APIRoute) else set()
    problems = [
        {"type": "extra_forbidden", "loc": ("query", name[:100]), "msg": _what_is_wrong(name, known)}
        for name in request.query_params
        if name not in known
    ]
    if problems:
        raise RequestValidationError(problems)


def _parameters(dependant: Dependant) -> Iterator[str]:
    yield from (parameter.alias for parameter in dependant.query_params)
    for inner in dependant.dependencies:
        yield from _parameters(inner)


def _what_is_wrong(name: str, known: set[str]) -> str:
    if not known:
        return "this address takes no parameters"
    nearest = difflib.get_close_matches(name, known, n=1)
    return (
        f"there is no such parameter; did you mean {nearest[0]}"
        if nearest
        else (f"there is no such parameter; there are {', '.join(sorted(known))}")
    )
