"""Which scope a request needs. An address without a rule needs the scope admin."""

from __future__ import annotations

from starlette.routing import compile_path

from isentrope_wire.answers import TokenScope

OPEN_PATHS = frozenset({"/healthz", "/readyz"})
"""Need no token for GET and HEAD: orchestrators read them, and they contain no data."""
METRICS_PATH = "/metrics"
"""Needs no token where the setting `metrics_open` is on, for a scraper that can't send one."""

_API = "/api"
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
"""Methods that change nothing; other sites must not cause the others."""

ROUTE_SCOPES: dict[tuple[str, str], TokenScope] = {
    ("GET", "/openapi.json"): TokenScope.READ,
    ("GET", "/metrics"): TokenScope.READ,
    ("GET", "/api/v1/runs"): TokenScope.READ,
    ("GET", "/api/v1/run-counts"): TokenScope.READ,
    ("GET", "/api/v1/runs/{run_id}"): TokenScope.READ,
    ("PATCH", "/api/v1/runs/{run_id}"): TokenScope.CONTROL,
    ("DELETE", "/api/v1/runs/{run_id}"): TokenScope.ADMIN,
    ("POST", "/api/v1/runs/{run_id}/link"): TokenScope.ADMIN,
    ("GET", "/api/v1/runs/{run_id}/diagnosis"): TokenScope.READ,
    ("GET", "/api/v1/runs/{run_id}/checks"): TokenScope.READ,
    ("GET", "/api/v1/runs/{run_id}/metrics"): TokenScope.READ,
    ("GET", "/api/v1/runs/{run_id}/metrics/series"): TokenScope.READ,
    ("GET", "/api/v1/runs/{run_id}/steps/{step}"): TokenScope.READ,
    ("GET", "/api/v1/runs/{run_id}/histograms/{name:path}"): TokenScope.READ,
    ("GET", "/api/v1/runs/{run_id}/tokens"): TokenScope.READ,
    ("GET", "/api/v1/runs/{run_id}/tokens/recurring"): TokenScope.READ,
    ("GET", "/api/v1/runs/{run_id}/rollouts"): TokenScope.READ,
    ("GET", "/api/v1/runs/{run_id}/alerts"): TokenScope.READ,
    ("PUT", "/api/v1/runs/{run_id}/alerts/{alert_id}/acknowledgement"): TokenScope.CONTROL,
    ("GET", "/api/v1/runs/{run_id}/gaps"): TokenScope.READ,
    ("GET", "/api/v1/runs/{run_id}/law"): TokenScope.READ,
    ("GET", "/api/v1/runs/{run_id}/control"): TokenScope.READ,
    ("PUT", "/api/v1/runs/{run_id}/control"): TokenScope.CONTROL,
    ("POST", "/api/v1/runs/{run_id}/control/preview"): TokenScope.READ,
    ("POST", "/api/v1/runs/{run_id}/outlook"): TokenScope.READ,
    ("GET", "/api/v1/runs/{run_id}/control/history"): TokenScope.READ,
    ("GET", "/api/v1/runs/{run_id}/export"): TokenScope.READ,
    ("GET", "/api/v1/me"): TokenScope.READ,
    ("GET", "/api/v1/access-tokens"): TokenScope.ADMIN,
    ("GET", "/api/v1/notify"): TokenScope.ADMIN,
    ("POST", "/api/v1/notify/test"): TokenScope.ADMIN,
    ("POST", "/api/v1/access-tokens"): TokenScope.ADMIN,
    ("DELETE", "/api/v1/access-tokens/{token_id}"): TokenScope.ADMIN,
    ("GET", "/api/v1/audit"): TokenScope.ADMIN,
}
"""Every route of the API, by method and template."""

PAGE_SCOPES: dict[tuple[str, str], TokenScope] = {
    # Callbacks of pages. They read data through the API with the visitor's own token.
    ("POST", "/_dash-update-component"): TokenScope.READ,
    # What changed on an open page, read in the same way.
    ("POST", "/news"): TokenScope.READ,
    # Deletes the session's cookie.
    ("POST", "/logout"): TokenScope.READ,
    ("GET", "/docs"): TokenScope.READ,
    ("GET", "/docs/{file}"): TokenScope.READ,
}
"""What pages need besides the dashboard's addresses to GET."""

GRPC_SCOPES: dict[str, TokenScope] = {
    "/isentrope_wire.v1.Telemetry/Hello": TokenScope.INGEST,
    "/isentrope_wire.v1.Telemetry/Push": TokenScope.INGEST,
    "/isentrope_wire.v1.Telemetry/Watch": TokenScope.INGEST,
}
"""Every gRPC method; others need the scope admin."""


def is_open(method: str, path: str, *, metrics_open: bool = False) -> bool:
    """Whether a request needs no token."""
    return method in ("GET", "HEAD") and (
        path in OPEN_PATHS or (metrics_open and path == METRICS_PATH)
    )


def required_scope(method: str, path: str) -> TokenScope:
    asked = method
    if method in SAFE_METHODS:
        asked = "GET"
    for rule_method, pattern, scope in _RULES:
        if rule_method == asked and pattern.fullmatch(path):
            return scope
    # Pages and their files need READ. Under the API only the rules above grant anything: neither a
    # new route nor an address that the router treats as an old one, e.g. with a newline at its end.
    if asked == "GET" and not path.startswith(_API):
        return TokenScope.READ
    return TokenScope.ADMIN


def shows_run(path: str, run_id: str) -> bool:
    """Whether an address shows nothing of other runs than this one: its part of the API, and pages,
    which read through it."""
    own = f"{_API}/v1/runs/{run_id}"
    is_own = path in (own, f"{_API}/v1/me") or path.startswith(f"{own}/")
    return is_own or not path.startswith((_API, METRICS_PATH))


def required_grpc_scope(method: str) -> TokenScope:
    """The scope a token must have to call this gRPC method, by its full name."""
    return GRPC_SCOPES.get(method, TokenScope.ADMIN)


_RULES = [
    (method, compile_path(template)[0], scope)
    for (method, template), scope in {**ROUTE_SCOPES, **PAGE_SCOPES}.items()
]
