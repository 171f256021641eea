"""The gRPC methods and their port. Each method decodes its message and answers after COMMIT."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote

import grpc
from sqlalchemy.exc import DataError, SQLAlchemyError

from isentrope_server.backend import Backend
from isentrope_server.control.requests import snapshot_to_send
from isentrope_server.errors import DeletedRun, RequestError, UnknownStream
from isentrope_server.ingest.intake import (
    Receipt,
    Sender,
    Sorted,
    clock_ahead,
    one_by_one,
    sort_out,
    take_in,
    unstorable,
)
from isentrope_server.ingest.limits import (
    CALLS,
    CONNECTIONS,
    MESSAGE,
    RECORDS,
    SeriesLimit,
    cut_to_size,
)
from isentrope_server.ingest.opening import note_of_taken_id, open_stream
from isentrope_server.ports import Port, block_ipv6, certificate_of, grpc_address, port_refused
from isentrope_server.security.gate import abort, principal_of_call
from isentrope_server.store import runs, streams
from isentrope_server.store.database import write_in_a_line
from isentrope_server.store.writer import Transaction, WriterStopped
from isentrope_wire import __version__
from isentrope_wire.codec import decode_payload, encode_control
from isentrope_wire.errors import CodecError
from isentrope_wire.numbers import printable
from isentrope_wire.reports import PROTOCOL_VERSION, Record, RunStarted
from isentrope_wire.v1 import telemetry_pb2 as pb
from isentrope_wire.v1 import telemetry_pb2_grpc as pb_grpc

if TYPE_CHECKING:
    # The stubs make it generic; at run time it is not.
    _Context = grpc.aio.ServicerContext[Any, Any]

_T = TypeVar("_T")
_log = logging.getLogger(__name__)

_NOTES_UNTIL_SILENT = 3.0
"""How often a connected shipper is noted within the time after which its run would be silent."""


class TelemetryServicer(pb_grpc.TelemetryServicer):
    """Hello, Push and Watch of one server."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._series = SeriesLimit(backend.settings.series_per_run)
        # Hashing and decoding megabytes would block the event loop. One thread: Python runs one at
        # a time, and every further one would delay requests that read.
        self._sorting = ThreadPoolExecutor(1, thread_name_prefix="sort-out")
        # When each watched run was last noted in the store to be connected, by the monotonic clock.
        self._noted_at: dict[str, float] = {}
        # Run -> incarnation and host of each rank whose shipper watches it here.
        self._connected: dict[str, list[tuple[str, str]]] = {}

    async def Hello(self, request: pb.HelloRequest, context: _Context) -> pb.HelloReply:
        if request.protocol_version != PROTOCOL_VERSION:
            newer, older = "server", "probe"
            if request.protocol_version > PROTOCOL_VERSION:
                newer, older = older, newer
            await abort(
                context,
                grpc.StatusCode.FAILED_PRECONDITION,
                f"This server (isentrope {__version__}) uses protocol version {PROTOCOL_VERSION},"
                f" the probe (isentrope {printable(request.probe_version) or 'unknown'})"
                f" {request.protocol_version}. The {newer} is newer: upgrade the {older} to the"
                " same version of isentrope.",
            )
        try:
            started = cut_to_size(_read_run(request.run))
        except CodecError as error:
            await abort(context, grpc.StatusCode.INVALID_ARGUMENT, str(error))
        principal = principal_of_call()
        try:
            (acked_through, control), note = await self._write(
                context,
                lambda t: (
                    open_stream(t, started, time.time(), by=principal, sent_at=request.sent_at),
                    note_of_taken_id(t.connection, started),
                ),
                started.run_id,
            )
        except DataError as error:
            await abort(
                context,
                grpc.StatusCode.INVALID_ARGUMENT,
                f"The database refuses this run: {write_in_a_line(error)}",
            )
        if control is None:
            expires_at = None
        else:
            expires_at = control.expires_at
        notes = [note, self._note_of_others(started.run_id, started.incarnation)]
        return pb.HelloReply(
            acked_through=acked_through,
            note=" ".join(filter(None, notes)),
            control=None if control is None else encode_control(control),
            expires_in=None if expires_at is None else expires_at - time.time(),
        )

    async def Push(self, request: pb.PushRequest, context: _Context) -> pb.PushReply:
        ahead = clock_ahead(request.sent_at, time.time())
        # Before decoding, which takes time on the loop that all connections share.
        if len(request.records) > RECORDS.most:
            await abort(
                context,
                grpc.StatusCode.INVALID_ARGUMENT,
                f"A push holds at most {RECORDS.most} records, got {len(request.records)}. Send"
                " them in several.",
            )
        sender = Sender(
            run_id=request.run_id,
            incarnation=request.incarnation,
            rank=request.rank,
            clock_ahead=ahead,
            hosts=dict(self._connected.get(request.run_id, ())),
        )
        records = [
            Record(seq=item.seq, payload=item.payload, payload_hash=item.payload_hash)
            for item in request.records
        ]
        sorted_out = await asyncio.get_running_loop().run_in_executor(
            self._sorting, sort_out, records
        )
        receipt = await self._take_in(context, sender, sorted_out)
        self._backend.acknowledged.note(
            sender.run_id, sender.incarnation, sender.rank, receipt.acked_through
        )
        for refused in receipt.quarantined[:1]:
            _log.warning(
                "Run %s, rank %d: %d records of a push can't be used and are kept apart, the first"
                " (seq %d) because: %s",
                printable(sender.run_id),
                sender.rank,
                len(receipt.quarantined),
                refused.seq,
                printable(refused.message),
            )
        return pb.PushReply(
            acked_through=receipt.acked_through,
            quarantined=[
                pb.QuarantinedRecord(seq=q.seq, code=q.code, message=q.message)
                for q in receipt.quarantined
            ],
        )

    async def Watch(
        self, request: pb.WatchRequest, context: _Context
    ) -> AsyncIterator[pb.WatchReply]:
        try:
            stream = await self._backend.read(
                lambda connection: streams.find(
                    connection, request.run_id, request.incarnation, request.rank
                )
            )
        except SQLAlchemyError as error:
            await abort(
                context,
                grpc.StatusCode.UNAVAILABLE,
                f"The store can't be read now: {write_in_a_line(error)}",
            )
        if stream is None:
            await abort(
                context,
                grpc.StatusCode.NOT_FOUND,
                f"Run {request.run_id} is not known here; send Hello first.",
            )
        run_key = stream.run_key
        # If the newest version ends unapplied, the older one is already at its probe.
        newest_sent = 0
        with (
            self._backend.hub.listening(request.run_id) as listener,
            self._forgetting_notes(request.run_id),
            self._connecting(request.run_id, request.incarnation, _host_of(context)),
        ):
            must_read = True
            while not self._backend.hub.closing.is_set():
                if must_read:
                    snapshot = await self._write(
                        context,
                        lambda t: snapshot_to_send(t, request.run_id, run_key, time.time()),
                        request.run_id,
                    )
                    if snapshot is not None and snapshot.version > newest_sent:
                        newest_sent = snapshot.version
                        yield pb.WatchReply(control=encode_control(snapshot))
                must_read = await listener.wait(self._heartbeat_seconds)
                if not must_read:
                    await self._note_watch(context, request.run_id, run_key)
                    yield pb.WatchReply(heartbeat=pb.Heartbeat())

    async def _take_in(self, context: _Context, sender: Sender, sorted_out: Sorted) -> Receipt:
        try:
            return await self._store(context, sender, sorted_out)
        except DataError as error:
            # Sent again it would be refused again and block all records after it.
            _log.warning(
                "The database refuses a record of run %s: %s",
                printable(sender.run_id),
                write_in_a_line(error),
            )
            receipts = [
                await self._take_in_alone(context, sender, alone)
                for alone in one_by_one(sorted_out)
            ]
            return Receipt(
                acked_through=receipts[-1].acked_through,
                quarantined=tuple(item for receipt in receipts for item in receipt.quarantined),
            )

    async def _take_in_alone(self, context: _Context, sender: Sender, alone: Sorted) -> Receipt:
        try:
            return await self._store(context, sender, alone)
        except DataError as error:
            return await self._store(context, sender, unstorable(alone, error))

    async def _store(self, context: _Context, sender: Sender, sorted_out: Sorted) -> Receipt:
        rows = len(sorted_out.arrivals) + len(sorted_out.refused)
        receipt = await self._write(
            context,
            lambda t: take_in(t, sender, sorted_out, self._series, time.time()),
            sender.run_id,
            rows=rows,
        )
        if sender.run_id in self._noted_at:
            self._noted_at[sender.run_id] = time.monotonic()
        return receipt

    @property
    def _seconds_between_notes(self) -> float:
        return self._backend.settings.silent_after_seconds / _NOTES_UNTIL_SILENT

    @property
    def _heartbeat_seconds(self) -> float:
        return min(self._backend.settings.heartbeat_seconds, self._seconds_between_notes)

    def _note_of_others(self, run_id: str, incarnation: str) -> str:
        """What the training's log should say where another process reports its run now; else
        empty. A process that was killed is not connected any more."""
        others = {
            f"{other[:8]} on {host}"
            for other, host in self._connected.get(run_id, ())
            if other != incarnation
        }
        if not others:
            return ""
        return (
            f"Another process reports run {run_id}, too, and is connected:"
            f" {', '.join(sorted(others))}. The one that began last is shown, and all reports are"
            " kept. Stop one of them, or give each a run id of its own."
        )

    @contextmanager
    def _connecting(self, run_id: str, incarnation: str, host: str) -> Iterator[None]:
        """While a rank's Watch lasts."""
        connected = self._connected.setdefault(run_id, [])
        connected.append((incarnation, host))
        try:
            yield
        finally:
            connected.remove((incarnation, host))
            if not connected:
                self._connected.pop(run_id, None)

    @contextmanager
    def _forgetting_notes(self, run_id: str) -> Iterator[None]:
        """At the end of a Watch. Another rank's Watch then notes once more than needed."""
        try:
            yield
        finally:
            self._noted_at.pop(run_id, None)

    async def _note_watch(self, context: _Context, run_id: str, run_key: int) -> None:
        """Note for all servers that the run's shipper is connected: its run is not silent, however
        long a step takes. A run that has reported a moment ago needs no note."""
        now = time.monotonic()
        if now - self._noted_at.get(run_id, -math.inf) < self._seconds_between_notes:
            return
        self._noted_at[run_id] = now
        at = time.time()
        await self._write(context, lambda t: runs.heard(t.connection, run_key, at), run_id)

    async def _write(
        self, context: _Context, work: Callable[[Transaction], _T], run_id: str, *, rows: int = 1
    ) -> _T:
        try:
            return await self._backend.write(work, rows=rows, run_id=run_id)
        except RequestError as error:
            await abort(
                context, _STATUS.get(type(error), grpc.StatusCode.INVALID_ARGUMENT), error.message
            )
        except DataError:
            raise
        except (SQLAlchemyError, WriterStopped) as error:
            # Nothing was stored; the shipper keeps the records and tries again.
            await abort(
                context,
                grpc.StatusCode.UNAVAILABLE,
                f"The store can't take records now: {write_in_a_line(error)}",
            )


_STATUS = {
    UnknownStream: grpc.StatusCode.NOT_FOUND,
    DeletedRun: grpc.StatusCode.FAILED_PRECONDITION,
}


def _read_run(payload: bytes) -> RunStarted:
    message = decode_payload(payload)
    if not isinstance(message, RunStarted):
        raise CodecError(f"Hello describes a run, got a {type(message).__name__}.")
    return message


IDLE_MILLISECONDS = 60_000
"""A connection without any call is closed; clients open another when they need one. A Watch stream
is a call."""
HANDSHAKE_MILLISECONDS = 10_000
"""From a connection's opening to the end of its handshake, with TLS or without."""


async def start_grpc(
    backend: Backend, interceptors: Sequence[grpc.aio.ServerInterceptor]
) -> tuple[grpc.aio.Server, int]:
    """Open the ingest port; return the server and its port. The interceptors are called before
    every method, in this order. StartupError: the port is taken."""
    server = grpc.aio.server(
        interceptors=interceptors,
        options=[
            # Without it a second server shares the port silently, and each gets half of the
            # reports.
            ("grpc.so_reuseport", 0),
            ("grpc.max_receive_message_length", MESSAGE.most),
            ("grpc.max_send_message_length", MESSAGE.most),
            ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
            ("grpc.keepalive_time_ms", 30_000),
            ("grpc.keepalive_timeout_ms", 10_000),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.max_allowed_incoming_connections", CONNECTIONS.most),
            ("grpc.max_concurrent_streams", CALLS.most),
            ("grpc.max_connection_idle_ms", IDLE_MILLISECONDS),
            ("grpc.server_handshake_timeout_ms", HANDSHAKE_MILLISECONDS),
        ],
    )
    pb_grpc.add_TelemetryServicer_to_server(TelemetryServicer(backend), server)
    settings = backend.settings
    address, certificate = grpc_address(settings.host, settings.grpc_port), certificate_of(settings)
    try:
        with block_ipv6(address):
            if certificate is None:
                port = server.add_insecure_port(address)
            else:
                port = server.add_secure_port(address, certificate.grpc_credentials())
    except RuntimeError as error:
        raise port_refused(settings.host, settings.grpc_port, Port.GRPC, str(error)) from None
    await server.start()
    return server, port


def _host_of(context: _Context) -> str:
    """The address of a caller without its port: `10.0.0.3` of `ipv4:10.0.0.3:4242`."""
    address = unquote(context.peer()).partition(":")[2]
    return address.rpartition(":")[0] or "this machine"
