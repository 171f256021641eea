"""The REST API with the token of the caller of a tool, and how a tool answers: compact JSON, and refusals as text.

In an answer a time (`..._at`) is in seconds from now, and what is missing was not measured.
"""

from __future__ import annotations

import functools
import json
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any, ParamSpec, TypeVar

import httpx
from mcp.server.context import ServerRequestContext
from mcp.server.mcpserver.exceptions import ToolError

from isentrope.client.calls import Call
from isentrope.client.connection import ApiError, AsyncClient, way_to
from isentrope_wire.errors import ConfigurationError
from isentrope_wire.numbers import document_of, printable

_A = TypeVar("_A")
_P = ParamSpec("_P")
_LONGEST_TEXT = 300
"""Characters of a text."""
_DIGITS = 5
"""Significant ones of a number: an assistant reads trends, and pays for each digit."""
_LONGEST_NAME = 60


class Caller(AsyncClient):
    """Sends calls with one token over connections that all callers share."""

    def __init__(self, http: httpx.AsyncClient, authorization: str | None) -> None:
        super().__init__(http)
        self._authorization = authorization

    async def ask(self, call: Call[_A]) -> _A:
        headers = {} if self._authorization is None else {"Authorization": self._authorization}
        return await super().ask(replace(call, headers={**call.headers, **headers}))


class Callers:
    """Makes the client of each request."""

    def __init__(self, url: str, token: str | None) -> None:
        """As for `mcp_server`."""
        self._http = httpx.AsyncClient(**way_to(url))
        self._token = token

    def of_token(self, token: str) -> Caller:
        """The holder of this token."""
        return Caller(self._http, f"Bearer {token}")

    def of(self, context: ServerRequestContext[Any, Any]) -> Caller:
        """Whoever made this request."""
        if self._token is not None:
            return self.of_token(self._token)
        headers: Mapping[str, str] = getattr(context.request, "headers", None) or {}
        return Caller(self._http, headers.get("authorization"))


def assistant_of(context: ServerRequestContext[Any, Any]) -> str:
    """The name of the program that makes the request, as it names itself; `assistant` where it has none."""
    known = context.session.client_params
    name = "" if known is None else known.client_info.name
    return re.sub(r"[^ -~]", "", name)[:_LONGEST_NAME].strip() or "assistant"


def answers_json(tool: Callable[_P, Awaitable[dict[str, Any]]]) -> Callable[_P, Awaitable[str]]:
    """Let a tool answer compact JSON without what is missing, in harmless texts, and a refusal with its reason."""

    @functools.wraps(tool)
    async def answer(*arguments: _P.args, **named: _P.kwargs) -> str:
        try:
            found = await tool(*arguments, **named)
        except (ApiError, ConfigurationError) as error:
            raise ToolError(str(error)) from error
        return json.dumps(_compact(document_of(found)), ensure_ascii=False, separators=(",", ":"))

    answer.__annotations__ = {**tool.__annotations__, "return": "str"}
    return answer


def _compact(value: object, name: str = "") -> object:
    """Without None and empty texts in objects; numbers rounded, texts harmless. Lists keep their length.

    Args:
        name: of the field that has this value.
    """
    if isinstance(value, float):
        return round(value - time.time()) if name.endswith("_at") else float(f"{value:.{_DIGITS}g}")
    if isinstance(value, str):
        return _harmless(value)
    if isinstance(value, dict):
        found = {name: inner for name, inner in value.items() if inner is not None and inner != ""}
        return {_harmless(name): _compact(inner, name) for name, inner in found.items()}
    if isinstance(value, list):
        return [_compact(inner) for inner in value]
    return value


def _harmless(text: str) -> str:
    """A text that a person or a model may have written: in one line, bounded, invisible characters by their numbers."""
    return printable(text) if len(text) <= _LONGEST_TEXT else printable(text[:_LONGEST_TEXT]) + " …"
