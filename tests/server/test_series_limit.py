"""A run whose metric names change with every step stays readable, loses only what is too much, and
reports it."""

from __future__ import annotations

from typing import Any

import pytest

from isentrope_server.ingest import limits
from isentrope_server.ingest.limits import SeriesLimit
from isentrope_server.settings import Settings
from isentrope_wire.reports import ScoreHistogram
from tests.server.conftest import MakeServer
from tests.server.in_thread import ServerInThread
from tests.server.rank import Rank, step_report

LIMIT = 5


@pytest.fixture
def limited(make_server: MakeServer) -> ServerInThread:
    return make_server(series_per_run=LIMIT)


def step_in_the_name(rank: Rank, step: int) -> None:
    rank.send(step_report(step, {"loss": step / 2, f"loss/{step:02}": 1.0}))


def names(server: ServerInThread, rank: Rank) -> list[str]:
    return [item["name"] for item in server.http.get(f"{rank.path}/metrics").json()["items"]]


def alerts(server: ServerInThread, rank: Rank) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = server.http.get(f"{rank.path}/alerts").json()["items"]
    return items


def test_names_beyond_the_limit_are_left_out_and_the_rest_of_the_report_stays(
    limited: ServerInThread,
) -> None:
    rank = Rank(limited)
    for step in range(8):
        step_in_the_name(rank, step)
    assert names(limited, rank) == ["loss", "loss/00", "loss/01", "loss/02", "loss/03"]
    series = limited.http.get(f"{rank.path}/metrics/series?name=loss").json()["series"]["loss"]
    assert series["value"] == [step / 2 for step in range(8)]
    reports = [limited.http.get(f"{rank.path}/steps/{step}").json() for step in (3, 4)]
    assert [report["scalars"] for report in reports] == [
        {"loss": 1.5, "loss/03": 1.0},
        {"loss": 2.0},
    ]
    assert [report["labels"] for report in reports] == [{}, {"report/dropped_series": "1: loss/04"}]


def test_one_alert_names_the_dropped_metrics(limited: ServerInThread) -> None:
    rank = Rank(limited)
    rank.send(*(step_report(step, {f"loss/{step:02}": 1.0}) for step in range(7)))
    step_in_the_name(rank, 7)
    (alert,) = alerts(limited, rank)
    assert (alert["step"], alert["kind"]) == (5, "left_out")
    assert alert["evidence"] == {"series_per_run": LIMIT, "left_out": 1}
    assert "loss/05" in alert["message"]
    assert "ISENTROPE_SERIES_PER_RUN" in alert["message"]
    assert Settings.model_fields["series_per_run"].default == 10_000


def test_what_is_sent_again_is_acknowledged_and_quarantines_nothing(
    limited: ServerInThread,
) -> None:
    rank = Rank(limited)
    for step in range(8):
        step_in_the_name(rank, step)
    rank.seq = 0
    for step in range(8):
        step_in_the_name(rank, step)
    reply = rank.report(8, loss=4.0)
    assert (reply.acked_through, list(reply.quarantined)) == (9, [])
    assert len(alerts(limited, rank)) == 1


def test_what_every_probe_promises_and_other_runs_have_room(limited: ServerInThread) -> None:
    rank, other = Rank(limited), Rank(limited)
    promised = {"entropy/gain": 0.5, "reward/mean": 1.0, "ratio/mean": 1.0}
    rank.send(step_report(0, promised))
    rank.send(step_report(0, {f"own/{number}": 1.0 for number in range(LIMIT)}))
    assert names(limited, rank) == sorted(
        [*promised, *(f"own/{number}" for number in range(LIMIT))]
    )
    for step in range(8):
        step_in_the_name(rank, step)
    histograms = [
        ScoreHistogram(name=name, low=0.0, high=1.0, counts=(1,))
        for name in ("entropy/token", "my/own")
    ]
    rank.send(step_report(8, {"entropy/mean": 1.0}, histograms=histograms))
    report = limited.http.get(f"{rank.path}/steps/8").json()
    assert report["scalars"] == {"entropy/mean": 1.0}
    assert [histogram["name"] for histogram in report["histograms"]] == ["entropy/token"]
    other.report(0, a=1.0, b=1.0, c=1.0)
    assert names(limited, other) == ["a", "b", "c"]
    assert alerts(limited, other) == []


def test_a_server_that_starts_again_counts_what_is_there(make_server: MakeServer) -> None:
    first = make_server(series_per_run=LIMIT)
    rank = Rank(first)
    rank.report(0, a=1.0, b=1.0, c=1.0, d=1.0)
    first.stop()
    again = make_server(series_per_run=LIMIT)
    resumed = Rank(again, run_id=rank.run_id, incarnation="resumed")
    resumed.report(1, a=1.0, e=1.0, f=1.0)
    assert names(again, resumed) == ["a", "b", "c", "d", "e"]
    assert again.http.get(f"{rank.path}/steps/1").json()["scalars"] == {"a": 1.0, "e": 1.0}


def test_what_is_forgotten_of_a_run_while_others_report_is_read_again(
    limited: ServerInThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "_NAMES_REMEMBERED", 0)
    forgotten: list[str] = []
    known = SeriesLimit._known

    def counted(self: SeriesLimit, connection: Any, run_id: str, run_key: int) -> set[str]:
        forgotten.extend([run_id] if run_id not in self._names else [])
        return known(self, connection, run_id, run_key)

    monkeypatch.setattr(SeriesLimit, "_known", counted)
    ranks = [Rank(limited), Rank(limited)]
    for step in range(8):
        for rank in ranks:
            step_in_the_name(rank, step)
    assert forgotten == [rank.run_id for _ in range(8) for rank in ranks]
    for rank in ranks:
        assert names(limited, rank) == ["loss", "loss/00", "loss/01", "loss/02", "loss/03"]
        assert len(alerts(limited, rank)) == 1
