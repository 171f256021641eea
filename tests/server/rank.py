"""One rank of one incarnation of a run, as its shipper speaks."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace

from sqlalchemy import update

from isentrope_server.store.tables import runs
from isentrope_wire import reports
from isentrope_wire.codec import decode_control, encode_payload, payload_hash
from isentrope_wire.v1 import telemetry_pb2 as pb
from tests.server.in_thread import ServerInThread

CAPABILITIES = ("method:none", "method:clip_b", "method:clip_v", "hold")


class Rank:
    """Sends Hello when it is made, and numbers its records from 1."""

    def __init__(
        self,
        server: ServerInThread,
        *,
        run_id: str | None = None,
        incarnation: str = "first",
        rank: int = 0,
        started_at: float | None = None,
        sent_at: float = 0.0,
        project: str = "tests",
        name: str = "a run",
        config: Mapping[str, object] | None = None,
        capabilities: Sequence[str] = CAPABILITIES,
        tags: Sequence[str] = (),
        probe_version: str = "0.1.0",
        initial_control: reports.ControlSnapshot | None = None,
    ) -> None:
        self.run_id = run_id or f"run-{uuid.uuid4().hex[:8]}"
        self.path = f"/api/v1/runs/{self.run_id}"
        self.started = reports.RunStarted(
            run_id=self.run_id,
            incarnation=incarnation,
            rank=rank,
            world_size=1,
            name=name,
            project=project,
            started_at=time.time() if started_at is None else started_at,
            probe_version=probe_version,
            config=config or {},
            capabilities=tuple(capabilities),
            tags=tuple(tags),
            initial_control=initial_control,
        )
        self.sent_at = sent_at
        self.clock_ahead = sent_at - time.time()
        """Where `sent_at` is given: pushes are sent by the same clock."""
        self.stub = server.stub()
        self.metadata = (("authorization", f"Bearer {server.owner_token}"),)
        self.seq = 0
        self.welcome = self.hello()

    def hello(self) -> pb.HelloReply:
        request = pb.HelloRequest(
            run=encode_payload(self.started),
            protocol_version=reports.PROTOCOL_VERSION,
            sent_at=self.sent_at,
        )
        return self.stub.Hello(request, metadata=self.metadata, timeout=10)

    def requested(self) -> reports.ControlSnapshot:
        """The control that another Hello brings."""
        return decode_control(self.hello().control)

    def send(self, *messages: reports.Payload) -> pb.PushReply:
        """Push messages under the next seqs."""
        records = []
        for message in messages:
            self.seq += 1
            records.append(wire_record(self.seq, message))
        return self.push(records)

    def push(self, records: Sequence[pb.Record]) -> pb.PushReply:
        request = pb.PushRequest(
            run_id=self.run_id,
            incarnation=self.started.incarnation,
            rank=self.started.rank,
            records=records,
            sent_at=self.sent_at and time.time() + self.clock_ahead,
        )
        return self.stub.Push(request, metadata=self.metadata, timeout=10)

    def report(self, step: int, **scalars: float) -> pb.PushReply:
        """Push one step; `entropy__mean=1.0` is the scalar `entropy/mean`."""
        return self.send(
            step_report(step, {name.replace("__", "/"): value for name, value in scalars.items()})
        )

    def answer(
        self, step: int, version: int, state: str, *, code: str = "", active: int = 0
    ) -> pb.PushReply:
        """Push a step whose report has the outcome of a control version."""
        outcome = reports.ControlOutcome(
            version=version,
            state=reports.OutcomeState(state),
            at=time.time(),
            step=step if state == "APPLIED" else None,
            code=code,
        )
        return self.send(step_report(step, {}, control_version=active, outcomes=(outcome,)))

    def watch(self, timeout: float = 10) -> Watching:
        request = pb.WatchRequest(
            run_id=self.run_id, incarnation=self.started.incarnation, rank=self.started.rank
        )
        return Watching(self.stub.Watch(request, metadata=self.metadata, timeout=timeout))


class Watching:
    """An open Watch stream."""

    def __init__(self, call: object) -> None:
        self._call = call

    def next_control(self) -> reports.ControlSnapshot:
        """The next snapshot; heartbeats are passed over."""
        for reply in self._call:  # type: ignore[attr-defined]
            if reply.WhichOneof("body") == "control":
                return decode_control(reply.control)
        raise AssertionError("the stream ended")

    def next_kind(self) -> str:
        return str(next(self._call).WhichOneof("body"))  # type: ignore[call-overload]

    def close(self) -> None:
        self._call.cancel()  # type: ignore[attr-defined]


def step_report(
    step: int,
    scalars: Mapping[str, float],
    *,
    control_version: int = 0,
    outcomes: Sequence[reports.ControlOutcome] = (),
    histograms: Sequence[reports.ScoreHistogram] = (),
    labels: Mapping[str, str] | None = None,
) -> reports.StepReport:
    return reports.StepReport(
        step=step,
        recorded_at=1_700_000_000.0 + step,
        scalars=scalars,
        control_version=control_version,
        outcomes=tuple(outcomes),
        histograms=tuple(histograms),
        labels=labels or {},
    )


def age(server: ServerInThread, rank: Rank, *, seconds: float) -> None:
    """As if the run had been heard of last so long ago."""
    at = time.time() - seconds
    heard = {"last_heard_at": at}
    if rank.seq:
        heard["last_report_at"] = at
    of_run = update(runs).where(runs.c.id == rank.run_id).values(heard)
    server.backend.writer.submit(
        lambda transaction: transaction.connection.execute(of_run).rowcount
    ).result(timeout=10)


def wire_record(
    seq: int, message: reports.Payload, *, claimed_hash: bytes | None = None
) -> pb.Record:
    """A record as it goes over the line, with a wrong hash if one is given."""
    payload = encode_payload(message)
    return pb.Record(seq=seq, payload=payload, payload_hash=claimed_hash or payload_hash(payload))


def report_slowly(rank: Rank, *, seconds_per_step: float, steps: int = 3) -> None:
    """Push steps whose clocks are so far apart."""
    for step in range(1, steps + 1):
        at = 1_700_000_000.0 + seconds_per_step * step
        rank.send(replace(step_report(step, {"entropy/mean": 1.0}), recorded_at=at))
