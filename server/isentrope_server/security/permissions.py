"""Which scope a request needs. What no rule names needs the most there is."""

from __future__ import annotations

import re

from isentrope_server.security.tokens import Scope

OPEN_PATHS = frozenset({"/healthz", "/readyz"})
"""Answer without a token, to GET and HEAD only: orchestrators ask them, and they tell nothing of anybody's data."""

_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
# A prefix and no pattern: the router takes some addresses, such as one that ends in a newline, for the plain one.
_ADMIN_PREFIX = "/api/v1/access-tokens"
_CONTROL_RULES = (
    ("PUT", re.compile(r"/api/v1/runs/[^/]+/control")),
    ("PATCH", re.compile(r"/api/v1/runs/[^/]+")),
)
# A page's callbacks are POSTs. They reach data through the API, with the visitor's own token, and no other way.
_PAGE_CALLBACKS = re.compile(r"/_dash-update-component|/_dash-ws-callback")


def is_open(method: str, path: str) -> bool:
    return path in OPEN_PATHS and method in ("GET", "HEAD")


def changes_something(method: str) -> bool:
    """Whether another site must not be able to make a visitor's browser send it."""
    return method not in _SAFE_METHODS


def required_scope(method: str, path: str) -> Scope:
    """The scope a token must have for this request."""
    if path.startswith(_ADMIN_PREFIX):
        return Scope.ADMIN
    if method in _SAFE_METHODS or _PAGE_CALLBACKS.fullmatch(path):
        return Scope.READ
    if any(method == known and pattern.fullmatch(path) for known, pattern in _CONTROL_RULES):
        return Scope.CONTROL
    return Scope.ADMIN
