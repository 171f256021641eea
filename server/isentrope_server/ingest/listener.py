"""The port the gRPC methods stand on, with the gate in front of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NoReturn

import grpc

from isentrope_server.backend import Backend
from isentrope_server.ingest.servicer import TelemetryServicer
from isentrope_server.ports import Port, listening_socket, port_refused
from isentrope_server.security.tokens import Scope, TokenBook
from isentrope_wire.v1 import telemetry_pb2_grpc as pb_grpc

MESSAGE_LIMIT_BYTES = 16 << 20


class TokenInterceptor(grpc.aio.ServerInterceptor):
    """Refuses every method, known or not, without a token that may ingest."""

    def __init__(self, tokens: TokenBook) -> None:
        self._tokens = tokens

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        handler = await continuation(handler_call_details)
        refusal = self._refusal(handler_call_details)
        # The refusal must have the cardinality of the method, or the client sees a protocol error instead of it.
        return handler if refusal is None else _refusing(*refusal, like=handler)

    def _refusal(self, details: grpc.HandlerCallDetails) -> tuple[grpc.StatusCode, str] | None:
        metadata = dict(details.invocation_metadata or ())
        principal = self._tokens.of_authorization(str(metadata.get("authorization", "")))
        if principal is None:
            return grpc.StatusCode.UNAUTHENTICATED, (
                "This server takes reports only with a token it knows: set ISENTROPE_TOKEN, "
                "or make one with `isentrope token create --scope ingest`."
            )
        if not principal.may(Scope.INGEST):
            return grpc.StatusCode.PERMISSION_DENIED, (
                f"The token {principal.name!r} may {principal.scope}, not ingest: "
                "make one with `isentrope token create --scope ingest`."
            )
        return None


def _refusing(
    status: grpc.StatusCode, message: str, *, like: grpc.RpcMethodHandler[Any, Any] | None
) -> grpc.RpcMethodHandler[Any, Any]:
    async def refuse(_request: object, context: grpc.aio.ServicerContext[Any, Any]) -> NoReturn:
        await context.abort(status, message)
        raise AssertionError("grpc.aio raises in abort")

    async def refuse_stream(request: object, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        await refuse(request, context)
        yield

    if like is not None and like.request_streaming:
        if like.response_streaming:
            return grpc.stream_stream_rpc_method_handler(refuse_stream)
        return grpc.stream_unary_rpc_method_handler(refuse)
    if like is not None and like.response_streaming:
        return grpc.unary_stream_rpc_method_handler(refuse_stream)
    return grpc.unary_unary_rpc_method_handler(refuse)


async def start_grpc(backend: Backend) -> tuple[grpc.aio.Server, int]:
    """Open the ingest port; returns the server and its port.

    Raises:
        StartupError: the port is taken.
    """
    server = grpc.aio.server(
        interceptors=[TokenInterceptor(backend.tokens)],
        options=[
            # Without it a second server shares the port silently, and each gets half of the reports.
            ("grpc.so_reuseport", 0),
            ("grpc.max_receive_message_length", MESSAGE_LIMIT_BYTES),
            ("grpc.max_send_message_length", MESSAGE_LIMIT_BYTES),
            ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
            ("grpc.keepalive_time_ms", 30_000),
            ("grpc.keepalive_timeout_ms", 10_000),
            ("grpc.keepalive_permit_without_calls", 1),
        ],
    )
    pb_grpc.add_TelemetryServicer_to_server(TelemetryServicer(backend), server)
    settings = backend.settings
    # gRPC says what is wrong with a port in lines of its own on stderr; the operating system says it in a word.
    listening_socket(settings.host, settings.grpc_port, Port.GRPC).close()
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    try:
        port = server.add_insecure_port(f"{host}:{settings.grpc_port}")
    except RuntimeError as error:
        raise port_refused(settings.host, settings.grpc_port, Port.GRPC, str(error)) from None
    await server.start()
    return server, port
