"""What the tests of the transport share. First a fake of the server's ingest on a real socket: it
keeps records in a dict and misbehaves as its attributes ask."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import grpc

from isentrope.transport.shipper import ShipperSettings
from isentrope.transport.spool_reader import SpoolReader
from isentrope_wire.codec import decode_payload, encode_control, payload_hash
from isentrope_wire.reports import ControlSnapshot, Gap, Payload, RunStarted
from isentrope_wire.v1 import telemetry_pb2 as pb
from isentrope_wire.v1.telemetry_pb2_grpc import TelemetryServicer, add_TelemetryServicer_to_server

RUN = RunStarted(
    run_id="r",
    incarnation="i",
    rank=0,
    world_size=1,
    name="n",
    project="p",
    started_at=0.0,
    probe_version="0",
)
QUICK = ShipperSettings(poll_seconds=0.01, drain_seconds=5.0, longest_pause_seconds=0.1)


def on_disk(folder: Path) -> list[Payload]:
    return [
        decode_payload(record.payload) for record in SpoolReader(folder).next_batch(10**6, 10**9)
    ]


@contextmanager
def lock_held(lock: Path, seconds: float = 60.0) -> Iterator[subprocess.Popen[bytes]]:
    """By a process that is killed at the end."""
    program = (
        "import sys, time; from pathlib import Path; from isentrope.transport.files import"
        " ProcessLock; assert ProcessLock(Path(sys.argv[1])).acquire(); print('held', flush=True);"
        " time.sleep(float(sys.argv[2]))"
    )
    command = [sys.executable, "-c", program, str(lock), str(seconds)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            yield process
        finally:
            process.kill()


class FakeTelemetry(TelemetryServicer):
    """Stores what is pushed; its attributes are the test's to set and read."""

    def __init__(self, port: int, token: str | None = None) -> None:
        self.port = port
        self.token = token
        self.records: dict[int, bytes] = {}
        self.pushes: list[list[int]] = []
        self.deadlines: list[float] = []
        """How many seconds each push was given."""
        self.seconds_per_record = 0.0
        """What arrives later than its deadline is not stored."""
        self.hellos = 0
        self.duplicates = 0
        self.push_fails_with: grpc.StatusCode | None = None
        self.lose_replies = 0
        """This many pushes are stored, and answered by an error."""
        self.acked_through_instead: int | None = None
        self.control: ControlSnapshot | None = None
        self._stopped = threading.Event()
        self._server: grpc.Server | None = None

    @property
    def target(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def payloads(self) -> list[Payload]:
        """What is stored, in order."""
        return [decode_payload(self.records[seq]) for seq in sorted(self.records)]

    def start(self) -> None:
        self._stopped.clear()
        self._server = grpc.server(
            ThreadPoolExecutor(max_workers=8), options=(("grpc.so_reuseport", 0),)
        )
        add_TelemetryServicer_to_server(self, self._server)
        self._server.add_insecure_port(self.target)
        self._server.start()

    def stop(self) -> None:
        self._stopped.set()
        if self._server is not None:
            self._server.stop(grace=0).wait()
            self._server = None

    def acked_through(self) -> int:
        """The last record before the first hole; a gap covers what it says."""
        acked = 0
        for seq in sorted(self.records):
            message = decode_payload(self.records[seq])
            first = message.first_seq if isinstance(message, Gap) else seq
            if first > acked + 1:
                break
            acked = seq
        return acked

    def Hello(self, request: pb.HelloRequest, context: grpc.ServicerContext) -> pb.HelloReply:
        self._check_token(context)
        self.hellos += 1
        reply = pb.HelloReply(acked_through=self.acked_through())
        if self.control is not None:
            reply.control = encode_control(self.control)
            if self.control.expires_at is not None:
                reply.expires_in = self.control.expires_at - time.time()
        return reply

    def Push(self, request: pb.PushRequest, context: grpc.ServicerContext) -> pb.PushReply:
        self._check_token(context)
        self.deadlines.append(context.time_remaining())
        time.sleep(self.seconds_per_record * len(request.records))
        if not context.is_active():
            return pb.PushReply()
        if self.push_fails_with is not None:
            context.abort(self.push_fails_with, "fails by request")
        self.pushes.append([record.seq for record in request.records])
        for record in request.records:
            assert record.payload_hash == payload_hash(record.payload)
            self.duplicates += record.seq in self.records
            assert self.records.setdefault(record.seq, record.payload) == record.payload
        if self.lose_replies > 0:
            self.lose_replies -= 1
            context.abort(grpc.StatusCode.UNAVAILABLE, "stored, and the reply is lost")
        instead = self.acked_through_instead
        return pb.PushReply(acked_through=self.acked_through() if instead is None else instead)

    def Watch(
        self, request: pb.WatchRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.WatchReply]:
        self._check_token(context)
        sent: ControlSnapshot | None = None
        while context.is_active() and not self._stopped.wait(0.02):
            if self.control is not None and self.control is not sent:
                sent = self.control
                yield pb.WatchReply(control=encode_control(sent))
        yield pb.WatchReply(heartbeat=pb.Heartbeat())

    def _check_token(self, context: grpc.ServicerContext) -> None:
        if self.token is None:
            return
        given = dict(context.invocation_metadata()).get("authorization")
        if given != f"Bearer {self.token}":
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "The token is wrong.")
