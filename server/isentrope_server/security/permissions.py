"""Which scope a request needs. What no rule names needs the most there is."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

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
}
"""What pages need besides addresses to GET."""

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
