"""Counters and timings of the server, for Prometheus.

Labels have few values: methods, status classes, route templates, gRPC methods and codes. None names
a run, token or metric, so the number of lines does not grow with runs.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import grpc
from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from isentrope_wire.v1 import telemetry_pb2 as pb

if TYPE_CHECKING:
    # The stubs make it generic; at run time it is not.
    _Context = grpc.aio.ServicerContext[Any, Any]

_ACK_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
_REQUEST_BUCKETS = (0.005, 0.025, 0.1, 0.3, 1.0, 3.0, 10.0)
_METHODS = frozenset({"GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE"})
_GRPC_METHODS = frozenset(
    method.name for method in pb.DESCRIPTOR.services_by_name["Telemetry"].methods
)
_API_PREFIX = "/api/v1"
REFUSALS = {
    401: "unauthenticated",
    403: "forbidden",
    grpc.StatusCode.UNAUTHENTICATED.name: "unauthenticated",
    grpc.StatusCode.PERMISSION_DENIED.name: "forbidden",
}


class ServerFigures:
    """One server's counters, from the start of its process."""

    def __init__(self) -> None:
        own = self.registry = CollectorRegistry()
        self.records = Counter(
            "isentrope_records_received",
            "Records received from shippers and answered; repeats count each time.",
            registry=own,
        )
        self.quarantined = Counter(
            "isentrope_records_refused",
            "Records quarantined because they can't be used.",
            registry=own,
        )
        self.acknowledgement_seconds = Histogram(
            "isentrope_push_seconds",
            "From a Push's arrival to its acknowledgement, which follows COMMIT.",
            buckets=_ACK_BUCKETS,
            registry=own,
        )
        self.calls = Counter(
            "isentrope_grpc_calls", "gRPC calls that ended.", ["method", "code"], registry=own
        )
        self.not_let_in = Counter(
            "isentrope_requests_refused",
            "HTTP requests and gRPC calls without an active token, or with one that lacks the"
            " scope.",
            ["door", "reason"],
            registry=own,
        )
        self.request_seconds = Histogram(
            "isentrope_http_request_seconds",
            "From a request's arrival to the end of its answer, but for assistants' event streams.",
            ["method", "route", "status"],
            buckets=_REQUEST_BUCKETS,
            registry=own,
        )
        ProcessCollector(registry=own)

    @contextmanager
    def call(self, method: str, context: _Context) -> Iterator[None]:
        """Count a gRPC call by its method, which clients may have made up, and by the code that it
        has at the end."""
        try:
            yield
        finally:
            name = method.rpartition("/")[2]
            self.calls.labels(name if name in _GRPC_METHODS else "other", _code(context)).inc()

    def pushed(self, request: pb.PushRequest, reply: pb.PushReply, seconds: float) -> None:
        """Count what a Push brought."""
        self.acknowledgement_seconds.observe(seconds)
        self.records.inc(len(request.records))
        self.quarantined.inc(len(reply.quarantined))


class MeasuredRequests:
    """ASGI middleware: times every HTTP request by its route's template."""

    def __init__(self, app: ASGIApp, *, figures: ServerFigures) -> None:
        self._app = app
        self._figures = figures

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status, is_stream = 500, False

        async def note_and_send(message: Message) -> None:
            nonlocal status, is_stream
            if message["type"] == "http.response.start":
                status = message["status"]
                is_stream = any(
                    name.lower() == b"content-type" and value.startswith(b"text/event-stream")
                    for name, value in message.get("headers", ())
                )
            await send(message)

        began = time.perf_counter()
        try:
            await self._app(scope, receive, note_and_send)
        finally:
            if status in REFUSALS:
                self._figures.not_let_in.labels("http", REFUSALS[status]).inc()
            if not is_stream:
                self._figures.request_seconds.labels(
                    scope["method"] if scope["method"] in _METHODS else "other",
                    _template(scope),
                    f"{status // 100}xx",
                ).observe(time.perf_counter() - began)


def _template(scope: Scope) -> str:
    template = str(getattr(scope.get("route"), "path", "page"))
    # A router's routes don't include the prefix.
    below_prefix = scope["path"].startswith(_API_PREFIX) and not template.startswith("/api")
    if below_prefix:
        return f"{_API_PREFIX}{template}"
    return template


def _code(context: _Context) -> str:
    code = context.code()
    if isinstance(code, grpc.StatusCode):
        return code.name
    return next(
        (known.name for known in grpc.StatusCode if known.value[0] == (code or 0)), "UNKNOWN"
    )
