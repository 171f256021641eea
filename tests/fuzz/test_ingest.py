"""No bytes and no values a sender can make up bring the ingest, or what reads of it, to an error of
its own."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterator

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isentrope_wire.codec import decode_payload, payload_hash
from isentrope_wire.errors import CodecError
from isentrope_wire.reports import PROTOCOL_VERSION, Payload, RunStarted, ScoreHistogram, StepReport
from isentrope_wire.v1 import telemetry_pb2 as pb
from tests.fuzz.examples import encoded, few_and_many, hostile_payloads
from tests.server.in_thread import ServerInThread
from tests.server.rank import Rank

_OWN_MISTAKES = {grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL, grpc.StatusCode.UNAVAILABLE}
_METHODS = ("Hello", "Push", "Watch")


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerInThread]:
    with ServerInThread(
        tmp_path_factory.mktemp("fuzzed") / "home", heartbeat_seconds=0.05
    ) as running:
        yield running


def as_it_is(content: bytes) -> bytes:
    return content


class Sender:
    """Sends bytes as they are."""

    def __init__(self, server: ServerInThread) -> None:
        self._channel = server.channel()
        self._metadata = (("authorization", f"Bearer {server.owner_token}"),)

    def send(self, method: str, content: bytes) -> grpc.StatusCode:
        """How the call ends; an endless one that has begun is cut."""
        path = f"/isentrope_wire.v1.Telemetry/{method}"
        try:
            if method == "Watch":
                call = self._channel.unary_stream(path, as_it_is, as_it_is)(
                    content, metadata=self._metadata, timeout=10
                )
                next(call)
                call.cancel()
            else:
                self._channel.unary_unary(path, as_it_is, as_it_is)(
                    content, metadata=self._metadata, timeout=10
                )
        except grpc.RpcError as error:
            code: grpc.StatusCode = error.code()
            return code
        return grpc.StatusCode.OK


@pytest.fixture(scope="module")
def sender(fuzzed: ServerInThread) -> Sender:
    return Sender(fuzzed)


_numbers = itertools.count()
_READS = (
    "",
    "/metrics",
    "/metrics/series?name=entropy/mean&name=x",
    "/metrics/series?name=x&points=3",
    "/histograms/entropy/token",
    "/tokens",
    "/tokens/recurring",
    "/rollouts",
    "/alerts",
    "/law",
    "/what-if",
    "/what-if?mu_low=1&mu_high=1",
    "/control",
    "/control/history",
)


def check_reports(fuzzed: ServerInThread, payloads: list[bytes]) -> None:
    """A run made of these can be stored and read."""
    rank = Rank(
        fuzzed,
        run_id=f"hostile-{next(_numbers)}-{uuid.uuid4().hex[:6]}",
        name="<b>\u202e",
        config={"a": "\0"},
    )
    records = [
        pb.Record(seq=seq, payload=payload, payload_hash=payload_hash(payload))
        for seq, payload in enumerate(payloads, start=1)
    ]
    reply = rank.push(records)
    assert reply.acked_through == len(records)
    again = rank.push(records)
    assert again.acked_through == len(records)
    messages = map(readable, payloads)
    steps = {message.step for message in messages if isinstance(message, StepReport)}
    for path in (*_READS, *(f"/steps/{step}" for step in steps if step < 2**63)):
        answer = fuzzed.http.get(f"{rank.path}{path}")
        assert answer.status_code < 500, (path, answer.text)
        answer.json()
    assert fuzzed.http.get("/api/v1/runs").status_code == 200
    assert fuzzed.http.get("/api/v1/audit").status_code == 200


def readable(payload: bytes) -> Payload | None:
    try:
        return decode_payload(payload)
    except CodecError:
        return None


@few_and_many(40, 400)
def test_random_bytes_are_refused(sender: Sender, examples: settings) -> None:
    @examples
    @given(method=st.sampled_from(_METHODS), content=st.binary(max_size=1_000))
    def check(method: str, content: bytes) -> None:
        assert sender.send(method, content) not in _OWN_MISTAKES

    check()


@few_and_many(40, 400)
def test_any_hello_is_answered(sender: Sender, examples: settings) -> None:
    @examples
    @given(run=hostile_payloads(RunStarted), sent_at=st.floats())
    def check(run: bytes, sent_at: float) -> None:
        request = pb.HelloRequest(run=run, sent_at=sent_at, protocol_version=PROTOCOL_VERSION)
        assert sender.send("Hello", request.SerializeToString()) not in _OWN_MISTAKES

    check()


@few_and_many(8, 40)
def test_run_of_any_records_is_readable(fuzzed: ServerInThread, examples: settings) -> None:
    @examples
    @given(payloads=st.lists(hostile_payloads(), min_size=1, max_size=8))
    def check(payloads: list[bytes]) -> None:
        check_reports(fuzzed, payloads)

    check()


DEEP = '{"a":' + "[" * 900 + "]" * 900 + "}"


@pytest.mark.parametrize(
    "config", ['{"a":' * 5_000, DEEP, '{"a":' + "9" * 5_000 + "}", "[]", "1", "{"]
)
def test_unreadable_configuration_is_refused(sender: Sender, config: str) -> None:
    started = encoded(
        RunStarted,
        {
            "run_id": "deep",
            "incarnation": "i",
            "rank": 0,
            "world_size": 1,
            "name": "n",
            "project": "p",
            "started_at": 1.0,
            "probe_version": "0",
            "config": config,
            "initial_control": None,
        },
    )
    hello = pb.HelloRequest(protocol_version=PROTOCOL_VERSION, run=started)
    assert sender.send("Hello", hello.SerializeToString()) is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize(
    "report",
    [
        StepReport(step=1, recorded_at=1.0, scalars={f"s{n}": 1.0 for n in range(12_001)}),
        StepReport(step=1, recorded_at=1.0, labels={"a": "x" * 10_001}),
        StepReport(
            step=1,
            recorded_at=1.0,
            histograms=(ScoreHistogram(name="h", low=0, high=1, counts=(1,) * 5_000),),
        ),
        StepReport(step=1, recorded_at=1.0, scalars={"x" * 600: 1.0}),
    ],
)
def test_oversized_report_is_quarantined(fuzzed: ServerInThread, report: StepReport) -> None:
    rank = Rank(fuzzed)
    reply = rank.send(report)
    assert [aside.code for aside in reply.quarantined] in (["too_much"], ["name_too_long"])
    assert reply.acked_through == 1
