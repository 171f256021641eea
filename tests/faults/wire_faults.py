"""A sender that repeats, reorders, replays and contradicts itself, as a network of proxies and
restarts can make it."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import replace

import grpc

from isentrope_wire.codec import encode_payload, record_of
from isentrope_wire.reports import PROTOCOL_VERSION, Payload, Record, RunFinished, StepReport
from isentrope_wire.v1 import telemetry_pb2 as pb
from isentrope_wire.v1.telemetry_pb2_grpc import TelemetryStub
from tests.faults.ledger import Ledger, Offer
from tests.faults.oracle import Allowance, OracleError, Verdict
from tests.faults.reporting_process import Plan, report_of, run_of
from tests.faults.stage import Stage


class Sender:
    """One stream, sent to the server by hand."""

    def __init__(
        self, stage: Stage, run_id: str, *, incarnation: str = "first", salt: float = 0.0
    ) -> None:
        self._plan = Plan(run_id=run_id, ledger="", incarnation=incarnation, salt=salt)
        self.run = run_of(self._plan)
        self._channel = stage.enter(grpc.insecure_channel(stage.server.grpc_target))
        self._stub = TelemetryStub(self._channel)
        self._metadata = (("authorization", f"Bearer {stage.server.token}"),)
        self.ledger = Ledger(run_id=run_id, incarnation=incarnation, rank=0)
        self.records: list[Record] = [record_of(1, self.run)]
        self.hello()

    def hello(self) -> int:
        request = pb.HelloRequest(run=encode_payload(self.run), protocol_version=PROTOCOL_VERSION)
        return self._stub.Hello(request, metadata=self._metadata, timeout=20).acked_through

    def report(self, step: int) -> None:
        """Make the next record."""
        self._add(report_of(self._plan, step, 0, ()))

    def finish(self) -> None:
        self._add(RunFinished(status="finished", finished_at=time.time(), step=0))

    def _add(self, message: Payload) -> None:
        self.records.append(record_of(len(self.records) + 1, message))
        self.ledger.offers.append(Offer(payload=encode_payload(message), at=0.0, accepted=True))

    def push(self, records: Sequence[Record]) -> pb.PushReply:
        request = pb.PushRequest(
            run_id=self.run.run_id,
            incarnation=self.run.incarnation,
            rank=self.run.rank,
            records=[
                pb.Record(seq=item.seq, payload=item.payload, payload_hash=item.payload_hash)
                for item in records
            ],
        )
        return self._stub.Push(request, metadata=self._metadata, timeout=20)


def duplicate_reordered_and_replayed_batches(stage: Stage) -> Verdict:
    """Batches come twice, in any order, with old ones long after: each record counts once."""
    sender = Sender(stage, "replayed")
    for step in range(200 if stage.short else 2_000):
        sender.report(step)
    sender.finish()
    batches = [sender.records[i : i + 17] for i in range(0, len(sender.records), 17)]
    sequence = (
        batches + random.sample(batches, len(batches)) + random.sample(batches, len(batches) // 2)
    )
    random.shuffle(sequence)
    for batch in sequence:
        sender.push(random.sample(batch, len(batch)))
    if sender.hello() != len(sender.records):
        raise OracleError("not everything is acknowledged after everything came at least twice")
    run = stage.api.get("/runs/replayed").json()
    if run["status"] != "finished":
        raise OracleError(f"the run is {run['status']}")
    return stage.oracle.judge([sender.ledger])


def acknowledgement_stops_at_a_gap(stage: Stage) -> Verdict:
    """A batch that overtakes another is not acknowledged before the other arrived: the spool must
    keep that one."""
    sender = Sender(stage, "overtaken")
    for step in range(40):
        sender.report(step)
    sender.finish()
    early, late = sender.records[:20], sender.records[20:]
    broken = Verdict()
    broken.require(sender.push(late).acked_through == 0, "records behind a gap were acknowledged")
    broken.require(
        sender.push(early[5:]).acked_through == 0, "records behind a gap were acknowledged"
    )
    broken.require(
        sender.push(early[:5]).acked_through == len(sender.records),
        "the filled gap was not acknowledged",
    )
    broken.hold()
    return stage.oracle.judge([sender.ledger])


def contradicting_payloads(stage: Stage) -> Verdict:
    """Another payload under a number that is taken is kept aside and shown; so is one whose hash is
    wrong."""
    sender = Sender(stage, "contradicted")
    for step in range(20):
        sender.report(step)
    sender.finish()
    sender.push(sender.records)
    other = [
        replace(record_of(record.seq, StepReport(step=99, recorded_at=9.0)))
        for record in sender.records[3:6]
    ]
    torn = replace(sender.records[7], payload=sender.records[7].payload + b"\0")
    replies = [sender.push(other), sender.push([torn])]
    codes = [item.code for reply in replies for item in reply.quarantined]
    if codes != ["key_conflict"] * 3 + ["hash_mismatch"]:
        raise OracleError(f"contradictions were answered by {codes}")
    return stage.oracle.judge(
        [sender.ledger], Allowance(quarantined=("key_conflict", "hash_mismatch"))
    )


def two_attempts_with_the_same_numbers(stage: Stage) -> Verdict:
    """A resumed run counts its records from one again: both attempts are kept, and the newer one
    counts."""
    first, second = (
        Sender(stage, "resumed-at-once"),
        Sender(stage, "resumed-at-once", incarnation="second", salt=0.25),
    )
    for step in range(30):
        first.report(step)
    for step in range(20, 40):
        second.report(step)
    second.finish()
    first.push(first.records)
    second.push(second.records)
    return stage.oracle.judge([first.ledger, second.ledger])
