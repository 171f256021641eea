"""The server's errors: at the start (`StartupError`) and in answering a request
(`RequestError`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from isentrope_wire.errors import ConfigurationError, IsentropeError


class StartupError(ConfigurationError):
    """The server can't start."""


class RequestError(IsentropeError, ValueError):
    """A request can't be answered; becomes the error body."""

    status: ClassVar[int] = 400
    code = "bad_request"

    def __init__(self, message: str, *, code: str | None = None, **details: object) -> None:
        """`code` is for programs, where it says more than that of the class; `details` are values
        that the message names."""
        super().__init__(message)
        self.message = message
        self.code = code or self.code
        self.details: Mapping[str, object] = details


class NotFound(RequestError, LookupError):
    status = 404
    code = "not_found"


class Conflict(RequestError):
    """The request doesn't fit the run's state."""

    status = 409
    code = "conflict"


class PreconditionFailed(RequestError):
    """If-Match does not name the newest version: the control changed meanwhile."""

    status = 412
    code = "version_mismatch"


class Unprocessable(RequestError):
    """Well-formed, but not possible."""

    status = 422
    code = "unprocessable"


class PreconditionRequired(RequestError):
    """A change without If-Match could overwrite a version that the sender has not seen."""

    status = 428
    code = "if_match_required"


class UnknownStream(RequestError, LookupError):
    """Records of a (run, incarnation, rank) without a Hello."""

    status = 404
    code = "unknown_stream"


class DeletedRun(RequestError):
    """Records of a deleted run."""

    status = 410
    code = "run_deleted"


def error_body(
    code: str, message: str, details: Mapping[str, object] | None = None
) -> dict[str, object]:
    """The body of every error: `code` is for programs, `message` for people, `details` are values
    that the message names."""
    return {"error": {"code": code, "message": message, "details": dict(details or {})}}
