"""One connection to the server's ingest: Hello, Push and the Watch that runs beside them. Only the
shipper imports this."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Self
from urllib.parse import quote

import grpc

from isentrope.client.credentials import advice_on, bearer_of, pem
from isentrope.client.proxies import is_exempt
from isentrope_wire import environment
from isentrope_wire.codec import decode_control, encode_payload
from isentrope_wire.errors import ConfigurationError, IsentropeError
from isentrope_wire.reports import (
    PROTOCOL_VERSION,
    RUN_OF_CALL,
    ControlSnapshot,
    Quarantined,
    Record,
    RunStarted,
)
from isentrope_wire.v1 import telemetry_pb2 as pb
from isentrope_wire.v1.telemetry_pb2_grpc import TelemetryStub


def open_channel(target: str, options: Sequence[tuple[str, int]] = ()) -> grpc.Channel:
    """Open a channel to a server's ingest, host:port with `https://` in front where it has TLS;
    nothing is sent yet.
    ConfigurationError: a certificate file can't be read."""
    address = environment.host_and_port(target)
    given = [*options, ("grpc.enable_http_proxy", int(not is_exempt(address)))]
    if not environment.is_encrypted(target):
        return grpc.insecure_channel(address, options=given)
    ca, key, certificate = pem()
    return grpc.secure_channel(
        address, grpc.ssl_channel_credentials(ca, key, certificate), options=given
    )


CALL_SECONDS = 5.0
"""A frozen server holds a call forever; gRPC's own keep-alive notices after a minute."""
SLOWEST_BYTES_PER_SECOND = 20_000.0
"""A call waits as long as its message takes at this rate; over a slower link messages become
smaller."""
SILENCE_SECONDS = 45.0
"""A Watch without even a heartbeat for so long is dead."""
MAX_MESSAGE_BYTES = 16 * 1024 * 1024

_CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    # Pauses between attempts are the shipper's; gRPC's own would grow to two minutes and be shared.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),
)

_HOLD = frozenset(
    {
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.OUT_OF_RANGE,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.UNIMPLEMENTED,
    }
)


class ServerAway(IsentropeError, ConnectionError):
    """The server does not answer, or not in time. Try again."""


class TooSlow(ServerAway):
    """The server did not answer in the time the message should have taken. Less at once may get
    through."""


class ServerRefuses(IsentropeError, ConnectionError):
    """The server refuses this token or format. Keep the data, log an error, try again later."""


class TelemetryConnection:
    """A channel and the calls on it. `with` closes it, and ends the Watch."""

    def __init__(self, target: str, token: str | None, run: RunStarted) -> None:
        """The token has the scope ingest; None: none is sent. ServerRefuses: it can't even be sent,
        or a certificate file can't be read."""
        self._run = run
        try:
            bearer = bearer_of(token)
            self._channel = open_channel(target, _CHANNEL_OPTIONS)
        except ConfigurationError as error:
            raise ServerRefuses(str(error)) from error
        self._metadata: tuple[tuple[str, str], ...] = ((RUN_OF_CALL, quote(run.run_id)),)
        if bearer is not None:
            self._metadata += (("authorization", bearer),)
        self._stub = TelemetryStub(self._channel)
        self._watch_failure: str | None = None
        self._received_at = time.monotonic()
        self.note = ""
        """What the server has to say to the training's log; empty: nothing."""
        self.control_changed = threading.Event()
        """Set by the Watch: another `hello` is due. What the Watch itself carries may have waited
        while the link stood still."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()

    def hello(self) -> tuple[int, ControlSnapshot | None]:
        """Send Hello: the number of the last record the server has, and the requested control,
        which expires by this machine's clock, early by the time that the call took, never late.
        ServerAway: no answer; ServerRefuses: it refuses the run or the token."""
        asked_at = time.time()
        request = pb.HelloRequest(
            run=encode_payload(self._run),
            probe_version=self._run.probe_version,
            protocol_version=PROTOCOL_VERSION,
            sent_at=asked_at,
        )
        try:
            reply = self._stub.Hello(
                request, timeout=_seconds_for(request), metadata=self._metadata
            )
        except grpc.RpcError as error:
            raise _named(error) from error
        self.note = reply.note
        if not reply.HasField("control"):
            return reply.acked_through, None
        expires_at = None
        if reply.HasField("expires_in"):
            expires_at = asked_at + reply.expires_in
        return reply.acked_through, replace(decode_control(reply.control), expires_at=expires_at)

    def push(self, records: Sequence[Record]) -> tuple[int, list[Quarantined]]:
        """Deliver records, in order and without a gap: the number of the last record the server has
        stored, and those it could not use. ServerAway: no answer in time; ServerRefuses: it refuses
        the token."""
        request = pb.PushRequest(
            run_id=self._run.run_id,
            incarnation=self._run.incarnation,
            rank=self._run.rank,
            records=[
                pb.Record(seq=item.seq, payload=item.payload, payload_hash=item.payload_hash)
                for item in records
            ],
            sent_at=time.time(),
        )
        try:
            reply = self._stub.Push(request, timeout=_seconds_for(request), metadata=self._metadata)
        except grpc.RpcError as error:
            raise _named(error) from error
        aside = [
            Quarantined(seq=item.seq, code=item.code, message=item.message)
            for item in reply.quarantined
        ]
        return reply.acked_through, aside

    def watch(self) -> None:
        """Hear of changes of the control on a thread of its own until the connection ends."""
        threading.Thread(target=self._watch, name="isentrope-watch", daemon=True).start()

    def check_watch(self) -> None:
        """ServerAway where the Watch ended, or has been silent for too long."""
        if self._watch_failure is not None:
            raise ServerAway(self._watch_failure)
        silent_seconds = time.monotonic() - self._received_at
        if silent_seconds > SILENCE_SECONDS:
            raise ServerAway(
                f"The server has sent nothing for {silent_seconds:.0f} s, not even a heartbeat."
            )

    def _watch(self) -> None:
        request = pb.WatchRequest(
            run_id=self._run.run_id, incarnation=self._run.incarnation, rank=self._run.rank
        )
        try:
            for reply in self._stub.Watch(request, metadata=self._metadata):
                self._received_at = time.monotonic()
                if reply.WhichOneof("body") == "control":
                    self.control_changed.set()
        except grpc.RpcError as error:
            self._watch_failure = str(_named(error))
        else:
            self._watch_failure = "The server ended the Watch."


def is_answer_of_server(error: grpc.Call) -> bool:
    """Whether a server of gRPC refused the call: gRPC makes a code of any program's HTTP status."""
    return "Received http2 header with status" not in (error.details() or "")


def _seconds_for(request: pb.HelloRequest | pb.PushRequest) -> float:
    return CALL_SECONDS + request.ByteSize() / SLOWEST_BYTES_PER_SECOND


def _named(error: grpc.RpcError) -> ServerAway | ServerRefuses:
    """A failed call as one of our errors."""
    # Errors of a call are RpcError and Call at once; the type stubs can't say so.
    assert isinstance(error, grpc.Call)
    code, details = error.code(), error.details() or "no reason given"
    sentence = f"{code.name}: {details}"
    refusals = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)
    if code in refusals and is_answer_of_server(error):
        has_advice = "ISENTROPE_TOKEN" in details
        remedy = "Set ISENTROPE_TOKEN to a token with scope ingest, then"
        if has_advice:
            remedy = "Then deliver with"
        return ServerRefuses(f"{sentence} {remedy} `isentrope sync`.")
    advice = advice_on(details)
    if advice:
        sentence = f"{sentence.rstrip('.')}. {advice}"
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return TooSlow(sentence)
    if code in _HOLD:
        return ServerRefuses(sentence)
    return ServerAway(sentence)
