"""What the server reports to Prometheus: true, and no more lines for more runs."""

from __future__ import annotations

import grpc
import pytest
from prometheus_client.parser import text_string_to_metric_families

from isentrope_wire.reports import Gap
from tests.server.conftest import MakeServer
from tests.server.in_thread import ServerInThread
from tests.server.rank import Rank, step_report, wire_record

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def samples(server: ServerInThread) -> Samples:
    answer = server.http.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=")
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


def value(server: ServerInThread, name: str, **labels: str) -> float:
    return samples(server)[name, tuple(sorted(labels.items()))]


def test_records_pushes_and_what_is_kept_aside_are_counted(make_server: MakeServer) -> None:
    server = make_server()
    rank = Rank(server)
    rank.report(0, x=1.0)
    rank.send(step_report(1, {"x": 1.0}), step_report(2, {"x": 1.0}))
    rank.push([wire_record(4, step_report(3, {}), claimed_hash=b"0" * 16)])
    rank.seq = 7
    rank.send(Gap(first_seq=5, last_seq=7, reason="full disk"))
    assert value(server, "isentrope_records_received_total") == 5
    assert value(server, "isentrope_records_refused_total") == 1
    assert value(server, "isentrope_push_seconds_count") == 4
    assert value(server, "isentrope_grpc_calls_total", method="Push", code="OK") == 4
    assert value(server, "isentrope_records_quarantined") == 1
    assert (value(server, "isentrope_gaps"), value(server, "isentrope_records_in_gaps")) == (1, 3)
    assert value(server, "isentrope_runs", status="running") == 1
    assert value(server, "isentrope_writer_jobs_waiting") == 0


def test_control_states_and_open_streams_are_shown(make_server: MakeServer) -> None:
    server = make_server(heartbeat_seconds=0.1)
    rank = Rank(server)
    server.http.put(f"{rank.path}/control", json={"method": "none"}, headers={"If-Match": '"0"'})
    watching = rank.watch()
    assert watching.next_control().version == 1
    assert value(server, "isentrope_controls", state="delivered") == 1
    assert value(server, "isentrope_controls", state="rejected") == 0
    assert value(server, "isentrope_live_listeners") == 1
    watching.close()


def test_requests_are_timed_by_template_and_status_class(make_server: MakeServer) -> None:
    server = make_server()
    rank = Rank(server)
    for path in (rank.path, "/api/v1/runs/unknown", "/api/v1/runs/unknown-too", "/api/v1/nothing"):
        server.http.get(path)
    name, route = "isentrope_http_request_seconds_count", "/api/v1/runs/{run_id}"
    assert value(server, name, method="GET", route=route, status="2xx") == 1
    assert value(server, name, method="GET", route=route, status="4xx") == 2
    assert value(server, name, method="GET", route="/api{rest:path}", status="4xx") == 1


def test_more_runs_tokens_and_addresses_add_no_lines(make_server: MakeServer) -> None:
    server = make_server()

    def use(number: int) -> None:
        rank = Rank(server, run_id=f"run-{number}", project=f"project-{number}")
        rank.report(number, **{f"metric{number}": 1.0})
        server.token("read")
        for path in (rank.path, f"/api/v1/unknown/{number}", f"/elsewhere/{number}"):
            server.http.get(path)
        server.http.request(f"VERB{number}", rank.path)
        samples(server)

    use(0)
    before = set(samples(server))
    for number in range(1, 6):
        use(number)
    assert set(samples(server)) == before
    assert "run-3" not in server.http.get("/metrics").text


def test_setting_opens_figures_to_scrapers(make_server: MakeServer) -> None:
    server = make_server(metrics_open=True)
    with server.client() as scraper:
        assert scraper.get("/metrics").status_code == 200
        assert scraper.get("/api/v1/runs").status_code == 401


def test_refusals_are_counted_by_door_and_reason_and_logged(
    make_server: MakeServer, caplog: pytest.LogCaptureFixture
) -> None:
    server = make_server()
    rank = Rank(server)
    caplog.set_level("INFO", "isentrope_server.security.gate")
    with server.client("wrong") as anonymous, server.client(server.token("read")) as reader:
        for number in range(20):
            assert anonymous.get(f"/api/v1/runs/{number}%0A?token=s3cret").status_code == 401
        assert reader.get("/api/v1/access-tokens").status_code == 403
    rank.metadata = (("authorization", "Bearer wrong"),)
    with pytest.raises(Exception, match="UNAUTHENTICATED"):
        rank.report(0, x=1.0)
    rank.metadata = (("authorization", f"Bearer {server.token('read')}"),)
    with pytest.raises(Exception, match="PERMISSION_DENIED"):
        rank.report(0, x=1.0)
    counted = {
        (door, reason): value(server, "isentrope_requests_refused_total", door=door, reason=reason)
        for door in ("http", "grpc")
        for reason in ("unauthenticated", "forbidden")
    }
    assert counted == {
        ("http", "unauthenticated"): 20,
        ("http", "forbidden"): 1,
        ("grpc", "unauthenticated"): 1,
        ("grpc", "forbidden"): 1,
    }
    assert len([message for message in caplog.messages if "is refused" in message]) == 23
    assert "s3cret" not in caplog.text
    assert all("\n" not in message for message in caplog.messages)


def test_invented_method_is_no_label(make_server: MakeServer) -> None:
    server = make_server()
    for number in range(3):
        call = server.channel().unary_unary(
            f"/isentrope_wire.v1.Telemetry/Made{number}", bytes, bytes
        )
        with pytest.raises(grpc.RpcError):
            call(b"", timeout=5)
    counted = [
        dict(labels) for name, labels in samples(server) if name == "isentrope_grpc_calls_total"
    ]
    assert {labels["method"] for labels in counted} == {"other"}
