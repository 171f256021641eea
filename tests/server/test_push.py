"""What a probe pushes is stored exactly once, or kept aside with its reason."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from isentrope.cli.doctor import examine
from isentrope.transport.shipper import ShipperSettings
from isentrope_server.ingest.limits import RECORDS
from isentrope_server.store.reports import records
from isentrope_server.store.rows import RowSizes
from isentrope_wire.reports import Alert, AlertLevel, Gap, RunFinished, ScoreHistogram
from isentrope_wire.v1 import telemetry_pb2 as pb
from tests.probe.transport.test_spool import OPEN, run_python
from tests.server.compaction import NEVER, finished_run, pack_all, reports_of_rows
from tests.server.conftest import MakeServer
from tests.server.in_thread import ServerInThread
from tests.server.rank import Rank, step_report, wire_record
from tests.system.running_server import wait_for

DATABASES = ("sqlite", "postgresql")


def values(server: ServerInThread, rank: Rank, name: str) -> dict[int, object]:
    columns = server.http.get(f"{rank.path}/metrics/series", params={"name": name}).json()[
        "series"
    ][name]
    return dict(zip(columns["step"], columns["value"], strict=True))


def test_a_record_twice_in_one_push_is_stored_once(server: ServerInThread, rank: Rank) -> None:
    record = wire_record(1, step_report(0, {"entropy/mean": 1.0}))
    assert rank.push([record, record]).acked_through == 1
    assert values(server, rank, "entropy/mean") == {0: 1.0}


def test_a_gap_cannot_stand_for_records_behind_its_own(rank: Rank) -> None:
    reply = rank.push(
        [wire_record(1, rank.started), wire_record(2, Gap(first_seq=2, last_seq=9, reason=""))]
    )
    assert [(item.seq, item.code) for item in reply.quarantined] == [(2, "bad_gap")]
    assert reply.acked_through == 2


@pytest.mark.parametrize(
    ("record", "code"),
    [
        (wire_record(1, step_report(0, {}), claimed_hash=b"x" * 16), "hash_mismatch"),
        (
            pb.Record(
                seq=1, payload=b"", payload_hash=bytes.fromhex("cae66941d9efbd404e4d88758ea67670")
            ),
            "undecodable",
        ),
        (wire_record(1, step_report(2**63, {})), "out_of_range"),
        (wire_record(1, RunFinished(status="finished", finished_at=math.nan)), "bad_time"),
        (wire_record(1, Gap(first_seq=3, last_seq=2, reason="")), "bad_gap"),
    ],
)
def test_a_record_that_cannot_be_used_is_acknowledged_and_kept(
    make_server: MakeServer, record: pb.Record, code: str
) -> None:
    server = make_server()
    rank = Rank(server)
    noticed = Alert(kind="collapse", level=AlertLevel.ACT, message="of step 7")
    reply = rank.push(
        [record, wire_record(2, replace(step_report(7, {"entropy/mean": 0.5}), alerts=(noticed,)))]
    )
    assert [item.code for item in reply.quarantined] == [code]
    assert reply.acked_through == 2
    assert rank.push([record]).quarantined[0].code == code
    with server.backend.database.reading() as connection:
        assert records.count_refused(connection) == 1
    (gap,) = server.http.get(f"{rank.path}/gaps").json()["items"]
    assert gap["reason"] == f"The server could not use it: {reply.quarantined[0].message}"
    alert, reported = server.http.get(f"{rank.path}/alerts").json()["items"]
    assert reported["message"] == noticed.message
    assert (alert["kind"], alert["evidence"]) == ("refused", {code: 1.0})
    assert reply.quarantined[0].message in alert["message"]
    assert values(server, rank, "entropy/mean") == {7: 0.5}


def test_the_doctor_names_runs_with_refused_records(
    make_server: MakeServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    server = make_server()
    rank = Rank(server)
    rank.push([wire_record(1, step_report(2**63, {}))])
    for name, value in (
        ("URL", server.url),
        ("GRPC", server.grpc_target),
        ("TOKEN", server.owner_token),
    ):
        monkeypatch.setenv(f"ISENTROPE_{name}", value)
    monkeypatch.setenv("ISENTROPE_HOME", str(tmp_path))
    (problem,) = [finding for finding in examine() if not finding.ok]
    assert problem.check == "records"
    assert rank.run_id in problem.found
    assert "2^63" in problem.found


def test_a_seq_beyond_what_databases_count_does_not_block_the_rest(rank: Rank) -> None:
    reply = rank.push(
        [wire_record(1, step_report(0, {})), wire_record(2**64 - 1, step_report(1, {}))]
    )
    assert [item.code for item in reply.quarantined] == ["bad_seq"]
    assert reply.acked_through == 1


def test_records_of_an_unknown_sender_are_refused_until_hello(rank: Rank) -> None:
    request = pb.PushRequest(
        run_id="unknown", incarnation="first", rank=0, records=[wire_record(1, rank.started)]
    )
    with pytest.raises(grpc.RpcError) as refused:
        rank.stub.Push(request, metadata=rank.metadata)
    assert refused.value.code() is grpc.StatusCode.NOT_FOUND
    assert "unknown" in (refused.value.details() or "")


def test_not_a_number_and_infinities_survive(server: ServerInThread, rank: Rank) -> None:
    rank.report(0, a=math.nan, b=math.inf, c=-math.inf, d=0.1)
    scalars = server.http.get(f"{rank.path}/steps/0").json()["scalars"]
    assert scalars == {"a": "NaN", "b": "Infinity", "c": "-Infinity", "d": 0.1}
    assert values(server, rank, "a") == {0: "NaN"}
    latest = {
        item["name"]: item["value"]
        for item in server.http.get(f"{rank.path}/metrics").json()["items"]
    }
    assert latest == scalars


def test_a_push_of_sixteen_megabytes_is_the_limit(rank: Rank) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        rank.push([pb.Record(seq=1, payload=bytes(17 << 20), payload_hash=b"")])
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_a_step_shows_the_whole_report(server: ServerInThread, rank: Rank) -> None:
    histogram = ScoreHistogram(
        name="entropy/token", low=0.0, high=2.0, counts=(1, 0, 2**40), not_finite=3
    )
    rank.send(
        step_report(
            4,
            {"entropy/mean": 0.5},
            control_version=2,
            histograms=[histogram],
            labels={"control/method": "clip_v"},
        )
    )
    step = server.http.get(f"{rank.path}/steps/4").json()
    assert step["step"] == 4
    assert step["recorded_at"] == 1_700_000_004.0
    assert step["control_version"] == 2
    assert (step["incarnation"], step["rank"]) == ("first", 0)
    assert step["labels"] == {"control/method": "clip_v"}
    assert step["histograms"] == [
        {"name": "entropy/token", "low": 0.0, "high": 2.0, "counts": [1, 0, 2**40], "not_finite": 3}
    ]


def test_a_histogram_of_nothing_finite_is_stored_too(server: ServerInThread, rank: Rank) -> None:
    histogram = ScoreHistogram(
        name="entropy/token", low=math.nan, high=math.nan, counts=(0, 0), not_finite=9
    )
    assert rank.send(step_report(0, {}, histograms=[histogram])).acked_through == 1
    columns = server.http.get(f"{rank.path}/histograms/entropy/token").json()
    assert (columns["low"], columns["not_finite"]) == (["NaN"], [9])


def test_reduced_histograms_lose_no_token(server: ServerInThread, rank: Rank) -> None:
    for step in range(10):
        rank.send(
            step_report(
                step, {}, histograms=[ScoreHistogram(name="h", low=0, high=1, counts=(1, step))]
            )
        )
    columns = server.http.get(f"{rank.path}/histograms/h", params={"points": 3}).json()
    assert len(columns["step"]) == 3
    assert columns["step"][-1] == 9
    assert [sum(column) for column in zip(*columns["counts"], strict=True)] == [10, sum(range(10))]
    some = server.http.get(
        f"{rank.path}/histograms/h", params={"from_step": 4, "to_step": 5}
    ).json()
    assert (some["step"], some["counts"]) == ([4, 5], [[1, 4], [1, 5]])


def test_a_push_of_more_than_a_thousand_records_is_refused_and_stores_nothing(rank: Rank) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        rank.push([pb.Record()] * (RECORDS.most + 1))
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "at most 1000 records, got 1001" in (refused.value.details() or "")
    assert len(rank.push([pb.Record()] * RECORDS.most).quarantined) == RECORDS.most


def test_a_shipper_sends_far_fewer_records_at_once_than_a_push_may_hold() -> None:
    assert ShipperSettings().batch_records * 2 <= RECORDS.most


REPORTED = {"a\0b": 1.0, "alone\0": 3.0, "plain": 4.0}
STORED = {"a\ufffdb": 1.0, "alone\ufffd": 3.0, "plain": 4.0}


def test_numbers_under_odd_names_are_found_and_packed(make_server: MakeServer) -> None:
    server = make_server(housekeeping_interval_seconds=NEVER)
    rank = Rank(server)
    histograms = [
        ScoreHistogram(name=name, low=0.0, high=1.0, counts=(int(value), 7))
        for name, value in REPORTED.items()
    ]
    rank.send(*(step_report(step, REPORTED, histograms=histograms) for step in range(32)))
    for packed in (False, True):
        if packed:
            rank.send(RunFinished(status="finished", finished_at=2.0))
            pack_all(server, RowSizes(fewest=1))
            assert reports_of_rows(server, rank, packed=True) == [32]
        metrics = server.http.get(f"{rank.path}/metrics").json()["items"]
        assert {metric["name"]: metric["value"] for metric in metrics} == STORED
        found = server.http.get(
            f"{rank.path}/metrics/series", params={"name": list(STORED)}
        ).json()["series"]
        assert {name: columns["value"] for name, columns in found.items()} == {
            name: [value] * 32 for name, value in STORED.items()
        }
        step = server.http.get(f"{rank.path}/steps/7").json()
        assert step["scalars"] == STORED
        assert {h["name"]: h["counts"] for h in step["histograms"]} == {
            n: [int(v), 7] for n, v in STORED.items()
        }


def test_two_processes_that_report_one_run_at_once_are_named_in_an_alert(
    server: ServerInThread,
) -> None:
    now = time.time()
    first = Rank(server, incarnation="firstfirst", started_at=now - 1_000)
    watching = first.watch()
    watching.next_kind()
    second = Rank(server, run_id=first.run_id, incarnation="secondsecond", started_at=now - 500)
    # The server that both reach says so at once.
    assert "too, and is connected: firstfir on 127.0.0.1." in second.welcome.note
    assert first.hello().note == ""
    second.report(1, x=1.0)
    found = []
    # What the first one recorded before the second began may come late.
    for recorded_at in (now - 400, now + 100, now + 200):
        first.send(replace(step_report(6, {"x": 1.0}), recorded_at=recorded_at))
        found.append(server.http.get(f"{first.path}/alerts").json()["items"])
    assert [[alert["kind"] for alert in alerts] for alerts in found] == [
        [],
        ["two_trainers"],
        ["two_trainers"],
    ]
    message = found[1][0]["message"]
    assert "firstfir (on 127.0.0.1, begun " in message
    assert "secondsecond"[:8] in message
    watching.close()
    wait_for(lambda: not second.hello().note)


@pytest.mark.parametrize(
    ("ends", "other", "first_step", "words"),
    [
        (True, {}, 1, "it had finished"),
        (False, {"name": "another"}, 1, "its name was a run"),
        (False, {"config": {"lr": 2.0, "seed": 1}}, 0, "its config had other values of lr"),
        # A restart, a default and what continues from a checkpoint.
        (False, {}, 1, None),
        (False, {"name": "run", "config": {}}, 1, None),
        (True, {"name": "another", "config": {"lr": 2.0}}, 4, None),
    ],
)
def test_an_id_taken_by_another_experiment_is_named(
    ends: bool, other: dict[str, Any], first_step: int, words: str | None, server: ServerInThread
) -> None:
    config = {"lr": 1.0, "seed": 1}
    first = Rank(server, incarnation="firstfirst", started_at=time.time() - 9, config=config)
    for step in (1, 2, 3, 4, 5):
        first.report(step, x=1.0)
    if ends:
        first.send(RunFinished(status="finished", finished_at=time.time()))
    second = Rank(server, run_id=first.run_id, incarnation="second", **{"config": config, **other})
    assert bool(second.welcome.note) == (words is not None or first_step > 1)
    if words is not None:
        assert words in second.welcome.note
        assert second.hello().note == second.welcome.note
    second.report(first_step, x=2.0)
    second.report(first_step + 1, x=2.0)
    alerts = server.http.get(f"{first.path}/alerts").json()["items"]
    assert [alert["kind"] for alert in alerts] == ["id_taken"] * (words is not None)
    if words is not None:
        assert words in alerts[0]["message"]
        assert "up to step 5" in alerts[0]["message"]


@pytest.mark.parametrize("ahead", [-3_600.0, 3_600.0])
@pytest.mark.parametrize("who", ["older", "newer"])
def test_two_processes_are_named_whatever_their_clocks(
    ahead: float, who: str, server: ServerInThread
) -> None:
    now = time.time()
    clocks = {"older": now, "newer": now, who: now + ahead}
    older = Rank(
        server, incarnation="older", started_at=clocks["older"] - 900, sent_at=clocks["older"]
    )
    newer = Rank(
        server,
        run_id=older.run_id,
        incarnation="newer",
        started_at=clocks["newer"],
        sent_at=clocks["newer"],
    )
    newer.report(1, x=1.0)
    kinds = []
    for later in (-400.0, 100.0):
        report = replace(step_report(6, {"x": 1.0}), recorded_at=clocks["older"] + later)
        older.send(report)
        alerts = server.http.get(f"{older.path}/alerts").json()["items"]
        kinds.append([alert["kind"] for alert in alerts])
    assert kinds == [[], ["two_trainers"]]


def test_times_of_a_wrong_clock_are_the_servers(server: ServerInThread) -> None:
    now = time.time()
    rank = Rank(server, started_at=now - 7_200, sent_at=now - 7_200)
    rank.report(1, x=1.0)
    rank.send(RunFinished(status="finished", finished_at=now - 7_200))
    assert server.http.get(rank.path).json()["finished_at"] == pytest.approx(now, abs=30)


def test_the_last_word_on_a_deleted_run_promises_nothing(
    server: ServerInThread, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rank = finished_run(server, 1)
    server.http.delete(rank.path)
    program = OPEN.replace('run_id="r"', f'run_id="{rank.run_id}"').replace("offline", "online")
    program = program.replace('grpc_target="x"', "grpc_target=sys.argv[2]")
    program += """
put(1)
end, status = time.monotonic() + 60, transport.folder.status
while time.monotonic() < end and not (status.exists() and "deleted" in status.read_text()):
    time.sleep(0.05)
transport.close()
"""
    monkeypatch.setenv("ISENTROPE_DRAIN_SECONDS", "0.2")
    monkeypatch.setenv("ISENTROPE_TOKEN", server.owner_token)
    (line,) = run_python(program, tmp_path, server.grpc_target).stderr.splitlines()
    assert line.startswith("2 records are not stored: the run was deleted on this server")
    assert "sync" not in line
