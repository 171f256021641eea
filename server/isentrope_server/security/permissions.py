"""Which scope a request needs. What no rule names needs the most there is.

Who was not let in: counted, and told in the log a line at a time, however many try.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum

from isentrope_server.security.tokens import Scope

OPEN_PATHS = frozenset({"/healthz", "/readyz"})
"""Answer without a token, to GET and HEAD only: orchestrators ask them, and they tell nothing of anybody's data."""
METRICS_PATH = "/metrics"
"""Open likewise where the setting `metrics_open` says so: a scraper that can't send a token."""

_API = "/api"
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})

ROUTE_SCOPES: dict[tuple[str, str], Scope] = {
    ("GET", "/openapi.json"): Scope.READ,
    ("GET", "/metrics"): Scope.READ,
    ("GET", "/api/v1/runs"): Scope.READ,
    ("GET", "/api/v1/runs/{run_id}"): Scope.READ,
    ("PATCH", "/api/v1/runs/{run_id}"): Scope.CONTROL,
    ("DELETE", "/api/v1/runs/{run_id}"): Scope.ADMIN,
    ("GET", "/api/v1/runs/{run_id}/metrics"): Scope.READ,
    ("GET", "/api/v1/runs/{run_id}/metrics/series"): Scope.READ,
    ("GET", "/api/v1/runs/{run_id}/steps/{step}"): Scope.READ,
    ("GET", "/api/v1/runs/{run_id}/histograms/{name:path}"): Scope.READ,
    ("GET", "/api/v1/runs/{run_id}/tokens"): Scope.READ,
    ("GET", "/api/v1/runs/{run_id}/alerts"): Scope.READ,
    ("GET", "/api/v1/runs/{run_id}/gaps"): Scope.READ,
    ("GET", "/api/v1/runs/{run_id}/law"): Scope.READ,
    ("GET", "/api/v1/runs/{run_id}/what-if"): Scope.READ,
    ("GET", "/api/v1/runs/{run_id}/control"): Scope.READ,
    ("PUT", "/api/v1/runs/{run_id}/control"): Scope.CONTROL,
    ("GET", "/api/v1/runs/{run_id}/control/history"): Scope.READ,
    ("GET", "/api/v1/runs/{run_id}/live"): Scope.READ,
    ("GET", "/api/v1/runs/{run_id}/export"): Scope.READ,
    ("GET", "/api/v1/methods"): Scope.READ,
    ("GET", "/api/v1/access-tokens"): Scope.ADMIN,
    ("POST", "/api/v1/access-tokens"): Scope.ADMIN,
    ("DELETE", "/api/v1/access-tokens/{token_id}"): Scope.ADMIN,
    ("GET", "/api/v1/audit"): Scope.ADMIN,
    ("GET", "/api/v1/audit/verification"): Scope.ADMIN,
}
"""Every route of the server's own, by method and template."""

PAGE_SCOPES: dict[tuple[str, str], Scope] = {
    # A page's callbacks are POSTs. They reach data through the API, with the visitor's own token, and no other way.
    ("POST", "/_dash-update-component"): Scope.READ,
    ("WEBSOCKET", "/_dash-ws-callback"): Scope.READ,
    # Ends the session the page was opened with.
    ("POST", "/logout"): Scope.READ,
    ("GET", "/docs"): Scope.READ,
    ("GET", "/docs/{file}"): Scope.READ,
}
"""What pages need besides the dashboard's addresses to GET."""

GRPC_SCOPES: dict[str, Scope] = {
    "/isentrope_wire.v1.Telemetry/Hello": Scope.INGEST,
    "/isentrope_wire.v1.Telemetry/Push": Scope.INGEST,
    "/isentrope_wire.v1.Telemetry/Watch": Scope.INGEST,
}
"""Every gRPC method; one that is not here needs the most there is."""


@dataclass(frozen=True, slots=True)
class _Rule:
    method: str
    path: re.Pattern[str]
    scope: Scope


def is_open(method: str, path: str, *, metrics_open: bool = False) -> bool:
    """Whether anybody may ask."""
    return method in ("GET", "HEAD") and (path in OPEN_PATHS or (metrics_open and path == METRICS_PATH))


def changes_something(method: str) -> bool:
    """Whether another site must not be able to make a visitor's browser send it."""
    return method not in _SAFE_METHODS


def required_scope(method: str, path: str) -> Scope:
    """The scope a token must have for this request; `WEBSOCKET` stands for a WebSocket's method."""
    asked = "GET" if method in _SAFE_METHODS else method
    for rule in _RULES:
        if rule.method == asked and rule.path.fullmatch(path):
            return rule.scope
    # Pages and their files. Under the API nothing is for everybody unless a line above says so: neither a new route nor
    # an address the router takes for an old one, such as one that ends in a newline.
    return Scope.READ if asked == "GET" and not path.startswith(_API) else Scope.ADMIN


def required_grpc_scope(method: str) -> Scope:
    """The scope a token must have to call this gRPC method, by its full name."""
    return GRPC_SCOPES.get(method, Scope.ADMIN)


def _pattern(template: str) -> str:
    return "".join(
        part if index % 2 == 0 else (".+" if part.endswith(":path") else "[^/]+")
        for index, part in enumerate(re.split(r"[{}]", template))
    )


def _rules(scopes: Iterable[tuple[tuple[str, str], Scope]]) -> list[_Rule]:
    return [_Rule(method, re.compile(_pattern(template)), scope) for (method, template), scope in scopes]


_RULES = _rules([*ROUTE_SCOPES.items(), *PAGE_SCOPES.items()])


class Door(StrEnum):
    """Where something came in. A trainer's ranks hold Watch streams open; they take no page's place."""

    HTTP = "http"
    GRPC = "grpc"


_log = logging.getLogger(__name__)

SECONDS_BETWEEN_LINES = 10.0


class Reason(StrEnum):
    """Why somebody was not let in."""

    UNAUTHENTICATED = "unauthenticated"
    """No token or session, or none in force."""
    FORBIDDEN = "forbidden"
    """A token that may not do this, or a browser that another site's page made ask for it."""


class Refusals:
    """Every refusal of both doors. Lives on one event loop."""

    def __init__(self, count: Callable[[Door, Reason], None]) -> None:
        """
        Args:
            count: called for each.
        """
        self._count = count
        self._untold: Counter[tuple[Door, Reason]] = Counter()
        self._last = ""
        self._pause: asyncio.TimerHandle | None = None

    def note(self, door: Door, reason: Reason, what: str) -> None:
        """
        Args:
            what: what was asked for and from where, as the log may show it: without a token.
        """
        self._count(door, reason)
        self._untold[door, reason] += 1
        self._last = what
        if self._pause is None:
            self._tell()

    def _tell(self) -> None:
        """The first at once; those of the seconds after it together, when they are over."""
        self._pause = None
        if not self._untold:
            return
        counts = ", ".join(f"{count} {door} {reason}" for (door, reason), count in sorted(self._untold.items()))
        _log.warning("Requests were refused (%s), the last of them %s.", counts, self._last)
        self._untold.clear()
        self._pause = asyncio.get_running_loop().call_later(SECONDS_BETWEEN_LINES, self._tell)
