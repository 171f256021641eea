"""What a run reports of itself is limited: what no probe sends is cut or refused, and no other run
waits for it."""

from __future__ import annotations

import re
from dataclasses import replace

import grpc
import msgspec
import pytest

from isentrope_server.ingest.limits import cut_to_size
from isentrope_wire import __version__, reports
from isentrope_wire.codec import encode_payload, write_json
from isentrope_wire.control import Control
from isentrope_wire.v1 import telemetry_pb2 as pb
from tests.server.in_thread import ServerInThread
from tests.server.rank import CAPABILITIES, Rank


def test_the_largest_that_a_probe_sends_of_a_run_is_kept_whole(rank: Rank) -> None:
    started = replace(
        rank.started,
        name="x" * 200,
        project="x" * 500,
        config={"data": "x" * (reports.CONFIG_CHARACTERS - len('{"data":""}'))},
        tags=("y" * reports.TAG_CHARACTERS,) * reports.TAGS,
        initial_control=first_control(0),
    )
    assert cut_to_size(started) == started


def test_what_no_probe_sends_of_a_run_is_cut_and_the_run_goes_on(server: ServerInThread) -> None:
    rank = Rank(
        server,
        config={"a": [1] * reports.CONFIG_CHARACTERS},
        tags=["z" * 3_000_000, *(f"tag {number}" for number in range(99))],
        capabilities=[*CAPABILITIES, "x" * 201, *["y"] * 1_000],
        probe_version="1" * 1_000_000,
    )
    rank.report(3, x=1.0)
    run = server.http.get(rank.path).json()
    assert run["step"] == 3
    assert run["config"] == {"left_out": "524295 characters of JSON, at most 262144 are kept"}
    assert (len(run["tags"]), len(run["tags"][0]), run["tags"][1]) == (50, 100, "tag 0")
    assert run["tags"][0].endswith("zzz ... cut")
    assert run["capabilities"][: len(CAPABILITIES) + 1] == [*CAPABILITIES, "y"]
    assert len(run["capabilities"]) == 199
    assert len(run["probe_version"]) == 100


def test_a_first_control_that_is_none_is_refused_shortly(rank: Rank) -> None:
    run = encode_payload(replace(rank.started, initial_control=first_control(0)))
    control = msgspec.msgpack.encode(write_json(Control().to_document()))
    large = msgspec.msgpack.encode("[" * 1_000_000)
    assert control in run
    request = pb.HelloRequest(
        run=run.replace(control, large),
        protocol_version=reports.PROTOCOL_VERSION,
    )
    with pytest.raises(grpc.RpcError) as refused:
        rank.stub.Hello(request, metadata=rank.metadata, timeout=10)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    details = refused.value.details() or ""
    assert "A control must be a JSON object" in details
    assert len(details) < 200


def test_another_protocol_is_refused_with_both_versions(rank: Rank) -> None:
    request = pb.HelloRequest(run=b"newer", probe_version="0.0.7", protocol_version=1)
    with pytest.raises(grpc.RpcError) as refused:
        rank.stub.Hello(request, metadata=rank.metadata, timeout=10)
    assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert {"0.0.7", __version__} <= set(
        re.findall(r"\d+\.\d+\.\d+", refused.value.details() or "")
    )


def test_why_a_run_failed_is_cut_and_the_run_has_failed(server: ServerInThread, rank: Rank) -> None:
    reply = rank.send(
        reports.RunFinished(
            status="failed", finished_at=2.0, error="out of memory " + "x" * 8_000_000
        )
    )
    assert (reply.acked_through, list(reply.quarantined)) == (1, [])
    run = server.http.get(rank.path).json()
    assert (run["status"], len(run["error"])) == ("failed", reports.ERROR_CHARACTERS)
    assert run["error"].startswith("out of memory xxx")
    assert run["error"].endswith("xxx ... cut")


def test_a_report_with_names_that_no_probe_writes_is_kept_aside(server: ServerInThread) -> None:
    reply = Rank(server).send(reports.StepReport(step=1, recorded_at=1.0, labels={"x" * 501: "a"}))
    assert [aside.code for aside in reply.quarantined] == ["too_much"]
    assert "501 characters in a label's name" in reply.quarantined[0].message


@pytest.mark.parametrize("version", [2**31, 2**63 - 1])
def test_a_first_version_that_leaves_no_room_to_count_on_is_refused(
    server: ServerInThread, version: int
) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        Rank(server, initial_control=first_control(version))
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert f"a version less than 2^31, got {version}" in (refused.value.details() or "")


def test_a_run_that_starts_with_the_largest_version_can_be_controlled(
    server: ServerInThread,
) -> None:
    rank = Rank(server, initial_control=first_control(2**31 - 1))
    for _ in range(2):
        etag = server.http.get(f"{rank.path}/control").headers["ETag"]
        answer = server.http.put(
            f"{rank.path}/control", json={"method": "none"}, headers={"If-Match": etag}
        )
        assert answer.status_code == 202
    assert server.http.get(f"{rank.path}/control").json()["version"] == 2**31 + 1


def first_control(version: int) -> reports.ControlSnapshot:
    return reports.ControlSnapshot(
        version=version, control=Control(), author="trainer", requested_at=1.0
    )
