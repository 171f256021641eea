"""Checks every gRPC call, with the same tokens as the HTTP gate."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import grpc
from google.protobuf.message import DecodeError
from sqlalchemy.exc import SQLAlchemyError

from isentrope_server.security.permissions import Door, Reason, Refusals, required_grpc_scope
from isentrope_server.security.tokens import Principal, TokenBook
from isentrope_server.store.database import in_a_line
from isentrope_wire.v1 import telemetry_pb2 as pb

if TYPE_CHECKING:
    # The stubs make them generic; at run time they are not.
    _Context = grpc.aio.ServicerContext[Any, Any]
    _Handler = grpc.RpcMethodHandler[Any, Any]
_Request = pb.HelloRequest | pb.PushRequest | pb.WatchRequest


@dataclass(frozen=True, slots=True)
class KnownAs:
    """A run's name and project, to which tokens may be bound."""

    name: str
    project: str


FindRun = Callable[[str], Awaitable[KnownAs | None]]
"""Finds a run by its id; None where the store has none."""


_calling: ContextVar[Principal] = ContextVar("isentrope_server_grpc_principal")


def principal_of_call() -> Principal:
    """The principal of the current unary call."""
    return _calling.get()


class GrpcGate(grpc.aio.ServerInterceptor):
    """Refuses every method, known or not, without a token of the scope it needs, and ends streams of a revoked
    token."""

    def __init__(self, tokens: TokenBook, find_run: FindRun, refusals: Refusals) -> None:
        self._tokens = tokens
        self._find_run = find_run
        self._refusals = refusals

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[_Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> _Handler | None:
        handler = await continuation(handler_call_details)
        metadata = dict(handler_call_details.invocation_metadata or ())
        principal = self._tokens.of_authorization(str(metadata.get("authorization", "")))
        refusal = _refusal(principal, str(handler_call_details.method))
        if refusal is not None:
            reason = Reason.UNAUTHENTICATED if principal is None else Reason.FORBIDDEN
            self._refusals.note(Door.GRPC, reason, f"{str(handler_call_details.method)[:200]!r}")
            return _refusing(*refusal)
        assert principal is not None
        return None if handler is None else self._guarded(handler, principal)

    def _guarded(self, handler: _Handler, principal: Principal) -> _Handler:
        if handler.response_streaming:
            return grpc.unary_stream_rpc_method_handler(
                self._stream(handler.unary_stream, principal),
                _reading(handler.request_deserializer),
                handler.response_serializer,
            )
        return grpc.unary_unary_rpc_method_handler(
            self._answer(handler.unary_unary, principal),
            _reading(handler.request_deserializer),
            handler.response_serializer,
        )

    def _answer(self, method: Any, principal: Principal) -> Any:
        async def answer(request: _Request | None, context: _Context) -> object:
            request = await _read(request, context)
            # A call may begin with an active token and send its message at any time after.
            await self._check_active(context, principal)
            await self._check_run(request, context, principal)
            _calling.set(principal)
            return await method(request, context)

        return answer

    def _stream(self, method: Any, principal: Principal) -> Any:
        async def stream(request: _Request | None, context: _Context) -> AsyncIterator[object]:
            request = await _read(request, context)
            await self._check_run(request, context, principal)
            replies = method(request, context)
            try:
                async for reply in replies:
                    # Heartbeats are replies, too: a revoked token's stream ends with the next one.
                    await self._check_active(context, principal)
                    yield reply
            finally:
                await replies.aclose()

        return stream

    async def _check_active(self, context: _Context, principal: Principal) -> None:
        if not self._tokens.is_active(principal):
            await _abort(context, grpc.StatusCode.UNAUTHENTICATED, "The token was revoked.")

    async def _check_run(self, request: _Request, context: _Context, principal: Principal) -> None:
        """Check that a bound token reports its own run, both as the request describes it and as the store has it."""
        if not principal.is_bound:
            return
        run_id = request.run.run_id if isinstance(request, pb.HelloRequest) else request.run_id
        try:
            stored = await self._find_run(run_id)
        except SQLAlchemyError as error:
            await _abort(context, grpc.StatusCode.UNAVAILABLE, f"The store can't be read now: {in_a_line(error)}")
        descriptions = [] if stored is None else [stored]
        if isinstance(request, pb.HelloRequest):
            descriptions.append(KnownAs(request.run.name, request.run.project))
        if not all(principal.may_report(run_id, known.name, known.project) for known in descriptions):
            bound_to = " of ".join(
                words
                for words in (
                    f"the run {principal.run!r}" if principal.run is not None else "",
                    f"the project {principal.project!r}" if principal.project is not None else "",
                )
                if words
            )
            self._refusals.note(Door.GRPC, Reason.FORBIDDEN, f"of run {run_id[:140]!r} from {context.peer()}")
            await _abort(
                context,
                grpc.StatusCode.PERMISSION_DENIED,
                f"The token {principal.name!r} may only report {bound_to}, not run {run_id[:140]!r}.",
            )


def _reading(deserialize: Any) -> Any:
    """Bytes that are no such message become None, which `_read` refuses; gRPC would report a server error."""

    def read(content: bytes) -> object:
        try:
            message: object = deserialize(content)
        except DecodeError:
            return None
        return message

    return read


async def _read(request: _Request | None, context: _Context) -> _Request:
    if request is None:
        await _abort(
            context, grpc.StatusCode.INVALID_ARGUMENT, "The request is not a message of this protocol version."
        )
    return request


def _refusal(principal: Principal | None, method: str) -> tuple[grpc.StatusCode, str] | None:
    if principal is None:
        return grpc.StatusCode.UNAUTHENTICATED, (
            "This server accepts reports only with a valid token: set ISENTROPE_TOKEN, "
            "or make one with `isentrope token create --scope ingest`."
        )
    needed = required_grpc_scope(method)
    if not principal.may(needed):
        return grpc.StatusCode.PERMISSION_DENIED, (
            f"The token {principal.name!r} may {principal.scope}, not {needed}: "
            f"make one with `isentrope token create --scope {needed}`."
        )
    return None


def _refusing(status: grpc.StatusCode, message: str) -> _Handler:
    """A handler that refuses without reading a message, which would cost memory. Clients of all methods see the
    same."""

    async def refuse(_messages: object, context: _Context) -> NoReturn:
        await _abort(context, status, message)

    return grpc.stream_stream_rpc_method_handler(refuse)


async def _abort(context: _Context, code: grpc.StatusCode, message: str) -> NoReturn:
    await context.abort(code, message)
    raise AssertionError("grpc.aio raises in abort")
