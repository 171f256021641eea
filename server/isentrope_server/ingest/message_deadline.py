"""How long a call may take to send its message. Reading it is ours to begin: gRPC would wait for ever."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any, NoReturn

import grpc

if TYPE_CHECKING:
    # The stubs make them generic; at run time they are not.
    _Context = grpc.aio.ServicerContext[Any, Any]
    _Handler = grpc.RpcMethodHandler[Any, Any]

MESSAGE_SECONDS = 600.0
"""The largest record takes 424 s on a link of 20 kB/s, the slowest that a shipper counts on."""


class MessageDeadline(grpc.aio.ServerInterceptor):
    """Stands outermost: every method of one message becomes one that reads its message itself, and gives it up in time.

    A method that reads by itself already stays as it is: a refusal reads nothing.
    """

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[_Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> _Handler | None:
        handler = await continuation(handler_call_details)
        if handler is None or handler.request_streaming:
            return handler
        if handler.response_streaming:
            return grpc.stream_stream_rpc_method_handler(
                _stream(handler.unary_stream), handler.request_deserializer, handler.response_serializer
            )
        return grpc.stream_unary_rpc_method_handler(
            _answer(handler.unary_unary), handler.request_deserializer, handler.response_serializer
        )


def _answer(behaviour: Any) -> Any:
    async def answer(_messages: object, context: _Context) -> object:
        reply: object = await behaviour(await _message(context), context)
        return reply

    return answer


def _stream(behaviour: Any) -> Any:
    async def stream(_messages: object, context: _Context) -> AsyncIterator[object]:
        replies = behaviour(await _message(context), context)
        try:
            async for reply in replies:
                yield reply
        finally:
            # Now, not when it is collected: it counts as open until then.
            await replies.aclose()

    return stream


async def _message(context: _Context) -> object:
    # Not cancelled when it takes too long: gRPC would write the message into memory that is no longer there. It ends
    # with the call.
    reading = asyncio.ensure_future(context.read())
    reading.add_done_callback(_forget)
    await asyncio.wait((reading,), timeout=MESSAGE_SECONDS)
    if not reading.done():
        await _abort(
            context,
            grpc.StatusCode.DEADLINE_EXCEEDED,
            f"A call's message must come within {MESSAGE_SECONDS:g} s; send less at once.",
        )
    message: object = reading.result()
    if message is grpc.aio.EOF:
        await _abort(context, grpc.StatusCode.INVALID_ARGUMENT, "The call ended without its message; send one.")
    return message


def _forget(reading: asyncio.Future[Any]) -> None:
    if not reading.cancelled():
        # Else asyncio says that nobody asked how it ended.
        reading.exception()


async def _abort(context: _Context, code: grpc.StatusCode, message: str) -> NoReturn:
    await context.abort(code, message)
    raise AssertionError("grpc.aio raises in abort")
