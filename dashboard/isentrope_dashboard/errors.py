"""What can go wrong between the pages and the REST API."""

from __future__ import annotations

import httpx

from isentrope_wire.errors import IsentropeError


class ApiUnreachableError(IsentropeError, ConnectionError):
    """No answer came from the REST API."""


class ApiTimeoutError(ApiUnreachableError):
    """The REST API took a request and was not done with it in time."""


class ApiError(IsentropeError, RuntimeError):
    """The REST API answered with an error; the message is the server's own."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code

    @classmethod
    def of(cls, answer: httpx.Response) -> ApiError:
        """Read the one error body; an answer without it is told by its status."""
        try:
            error = answer.json()["error"]
            return cls(answer.status_code, str(error["code"]), str(error["message"]))
        except (ValueError, KeyError, TypeError):
            return cls(
                answer.status_code,
                "unexpected_answer",
                f"The server answered {answer.status_code} {answer.reason_phrase} without an explanation.",
            )
