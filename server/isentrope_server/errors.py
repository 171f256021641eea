"""What can go wrong on purpose: at start (`StartupError`) and in answering a request (`RequestError`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from isentrope_wire.errors import IsentropeError


class StartupError(IsentropeError, OSError):
    """The server can't start; the message is the one sentence the command line shows. Exit status 2."""

    def __str__(self) -> str:
        return str(self.args[0])


class RequestError(IsentropeError, ValueError):
    """A request can't be answered as asked. Becomes the one error body."""

    status: ClassVar[int] = 400
    code: ClassVar[str] = "bad_request"

    def __init__(self, message: str, **details: object) -> None:
        super().__init__(message)
        self.message = message
        self.details: Mapping[str, object] = details


class BadCursor(RequestError):
    """A cursor this server never gave out."""

    code = "bad_cursor"


class NotFound(RequestError, LookupError):
    status = 404
    code = "not_found"


class UnknownMetric(NotFound):
    """The run has reports, and none of them holds this metric."""

    code = "metric_unknown"


class UnknownHistogram(NotFound):
    """The run has reports, and none of them holds this histogram."""

    code = "histogram_unknown"


class WhatIfMissing(NotFound):
    """The step was reported, and without sums that could answer."""

    code = "what_if_missing"


class Conflict(RequestError):
    """The thing asked for doesn't fit the state the run is in."""

    status = 409
    code = "conflict"


class PreconditionFailed(RequestError):
    """If-Match names another version than the newest one: someone else was faster."""

    status = 412
    code = "version_mismatch"


class Unprocessable(RequestError):
    """Well-formed, but no probe could carry it out."""

    status = 422
    code = "unprocessable"


class UnsupportedControl(Unprocessable):
    """The run's probe never said it could do this."""

    code = "capability_missing"


class PreconditionRequired(RequestError):
    """A change without If-Match could overwrite what the sender hasn't seen."""

    status = 428
    code = "if_match_required"


class UnknownStream(RequestError, LookupError):
    """Records for a (run, incarnation, rank) that never said Hello."""

    status = 404
    code = "unknown_stream"


class DeletedRun(RequestError):
    """Records for a run that somebody deleted."""

    status = 410
    code = "run_deleted"


def error_body(code: str, message: str, details: Mapping[str, object] | None = None) -> dict[str, object]:
    """The one error body, everywhere."""
    return {"error": {"code": code, "message": message, "details": dict(details or {})}}
