"""Series: reduced without losing spikes, continued with a cursor, resumed without overwriting."""

from __future__ import annotations

import math
import re
from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import pytest

from isentrope.mcp.tools import Callers, reading_tools
from isentrope_server.store.reports.series import Series, columns
from isentrope_wire.answers import REDUCED_SERIES, SeriesColumns
from isentrope_wire.reports import ScoreHistogram
from tests.server.in_thread import ServerInThread
from tests.server.rank import Rank, step_report

DATABASES = ("sqlite", "postgresql")


def read(server: ServerInThread, rank: Rank, *names: str, **params: object) -> dict[str, Any]:
    answer = server.http.get(f"{rank.path}/metrics/series", params={"name": list(names), **params})  # type: ignore[dict-item]
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


def points(columns: dict[str, list[Any]]) -> dict[int, Any]:
    return dict(zip(columns["step"], columns["value"], strict=True))


def test_a_reduced_series_keeps_its_spike(server: ServerInThread, rank: Rank) -> None:
    rank.send(
        *(
            step_report(step, {"x": 100.0 if step == 537 else -50.0 if step == 12 else 1.0})
            for step in range(1000)
        )
    )
    columns = read(server, rank, "x", points=20)["series"]["x"]
    assert len(columns["step"]) == 20
    assert max(columns["max"]) == 100.0
    assert min(columns["min"]) == -50.0
    assert columns["step"][-1] == 999
    assert columns["max"].index(100.0) == next(
        i for i, step in enumerate(columns["step"]) if step >= 537
    )


def test_a_short_series_is_not_reduced(server: ServerInThread, rank: Rank) -> None:
    rank.send(*(step_report(step, {"x": float(step)}) for step in range(20)))
    columns = read(server, rank, "x", points=20)["series"]["x"]
    assert columns["step"] == list(range(20))
    assert columns["min"] is None
    assert columns["max"] is None


def test_buckets_pass_over_not_a_number_unless_there_is_nothing_else() -> None:
    values = np.array([1.0, math.nan, 3.0, math.nan, math.nan, math.nan])
    reduced = columns(Series(steps=np.arange(6), values=values), 2)
    np.testing.assert_array_equal(reduced.min or [], [1.0, math.nan])
    np.testing.assert_array_equal(reduced.max or [], [3.0, math.nan])
    assert reduced.step == [2, 5]
    np.testing.assert_array_equal(reduced.mean or [], [2.0, math.nan])
    assert (reduced.count, reduced.not_finite) == ([3, 3], [1, 3])


@pytest.mark.parametrize("points", [1, 7, 400, 5999, 6000])
def test_buckets_add_up_to_the_whole(points: int) -> None:
    values = np.where(np.arange(6000) % 10 == 0, 11.0, 1.0)
    values[17] = math.inf
    reduced = columns(Series(steps=np.arange(6000), values=values), points)
    sums = [mean * number for mean, number in zip(reduced.means, reduced.measured, strict=True)]
    assert sum(filter(math.isfinite, sums)) == pytest.approx(12_000 - 1)
    assert sum(reduced.measured) == 5999


def test_values_near_the_largest_have_a_mean() -> None:
    reduced = columns(Series(steps=np.arange(4), values=np.full(4, 1.5e308)), 2)
    assert reduced.mean == [1.5e308, 1.5e308]


def test_reduction_is_described_alike_everywhere(server: ServerInThread) -> None:
    path = server.http.get("/openapi.json").json()["paths"]["/api/v1/runs/{run_id}/metrics/series"]
    rest = {one["name"]: one["description"] for one in path["get"]["parameters"]}["points"]
    (read,) = (
        tool
        for tool in reading_tools(Callers("http://127.0.0.1:1", "token"))
        if tool.__name__ == "read_metrics"
    )
    tool = get_type_hints(read, include_extras=True)["points"].__metadata__[-1].description
    assert all(REDUCED_SERIES in text for text in (rest, tool))
    names = {column.name for column in fields(SeriesColumns)}
    assert set(re.findall(r"\w+", REDUCED_SERIES)) >= names
    assert set(re.findall(r"`(\w+)`", Path("docs/server.md").read_text("utf-8"))) >= names


def test_a_range_of_steps_includes_both_ends(server: ServerInThread, rank: Rank) -> None:
    rank.send(*(step_report(step, {"x": float(step)}) for step in range(10)))
    assert read(server, rank, "x", from_step=3, to_step=5)["series"]["x"]["step"] == [3, 4, 5]


def test_a_metric_that_was_not_measured_at_a_step_has_no_point_there(
    server: ServerInThread, rank: Rank
) -> None:
    rank.send(
        step_report(0, {"x": 1.0, "y": 2.0}),
        step_report(1, {"x": 3.0}),
        step_report(2, {"y": 4.0, "z": 5.0}),
    )
    series = read(server, rank, "x", "y", "never")["series"]
    assert points(series["x"]) == {0: 1.0, 1: 3.0}
    assert points(series["y"]) == {0: 2.0, 2: 4.0}
    assert series["never"]["step"] == []


def test_the_cursor_brings_only_what_is_new(server: ServerInThread, rank: Rank) -> None:
    rank.report(0, x=1.0)
    first = read(server, rank, "x")
    assert first["reset"] is True
    nothing = read(server, rank, "x", since=first["cursor"])
    assert (nothing["series"]["x"]["step"], nothing["reset"]) == ([], False)
    rank.report(1, x=2.0)
    new = read(server, rank, "x", since=nothing["cursor"])
    assert (points(new["series"]["x"]), new["reset"]) == ({1: 2.0}, False)


def test_the_largest_step_there_is_can_be_read(server: ServerInThread, rank: Rank) -> None:
    last = 2**63 - 1
    rank.send(step_report(last - 1, {"x": 1.0}), step_report(last, {"x": 2.0}))
    assert server.http.get(f"{rank.path}/steps/{last}").json()["scalars"] == {"x": 2.0}
    assert points(read(server, rank, "x")["series"]["x"]) == {last - 1: 1.0, last: 2.0}
    resumed = Rank(
        server, run_id=rank.run_id, incarnation="resumed", started_at=rank.started.started_at + 1
    )
    resumed.send(step_report(last, {"x": 3.0}))
    assert points(read(server, rank, "x")["series"]["x"]) == {last - 1: 1.0, last: 3.0}


def test_a_resumed_run_speaks_from_its_first_step_on(server: ServerInThread) -> None:
    first = Rank(server, started_at=1000.0)
    first.send(*(step_report(step, {"x": float(step)}) for step in range(6)))
    second = Rank(server, run_id=first.run_id, incarnation="second", started_at=2000.0)
    second.send(*(step_report(step, {"x": 100.0 + step}) for step in (3, 4)))
    assert points(read(server, first, "x")["series"]["x"]) == {
        0: 0.0,
        1: 1.0,
        2: 2.0,
        3: 103.0,
        4: 104.0,
    }
    assert server.http.get(f"{first.path}/steps/3").json()["incarnation"] == "second"
    assert server.http.get(f"{first.path}/steps/5").status_code == 404
    run = server.http.get(first.path).json()
    assert (run["step"], run["incarnations"], run["status"]) == (4, 2, "running")


def test_reader_is_reset_when_an_incarnation_begins_to_report(server: ServerInThread) -> None:
    first = Rank(server, started_at=1000.0)
    first.send(*(step_report(step, {"x": float(step)}) for step in range(6)))
    second = Rank(server, run_id=first.run_id, incarnation="second", started_at=2000.0)
    cursor = read(server, first, "x")["cursor"]
    second.report(3, x=103.0)
    again = read(server, first, "x", since=cursor)
    assert again["reset"] is True
    assert points(again["series"]["x"]) == {0: 0.0, 1: 1.0, 2: 2.0, 3: 103.0}
    second.report(4, x=104.0)
    assert read(server, first, "x", since=again["cursor"])["reset"] is False


def test_rank_zero_is_preferred_and_other_ranks_fill_in(server: ServerInThread) -> None:
    zero = Rank(server)
    one = Rank(server, run_id=zero.run_id, rank=1)
    one.send(step_report(0, {"x": 1.0, "only/one": 7.0}), step_report(1, {"x": 1.0}))
    zero.report(0, x=0.0)
    one.report(2, x=1.0)
    assert points(read(server, zero, "x")["series"]["x"]) == {0: 0.0, 1: 1.0, 2: 1.0}
    assert points(read(server, zero, "only/one")["series"]["only/one"]) == {0: 7.0}
    assert server.http.get(f"{zero.path}/steps/0").json()["rank"] == 0


def test_within_one_rank_the_last_report_of_a_step_counts(
    server: ServerInThread, rank: Rank
) -> None:
    rank.send(step_report(0, {"x": 1.0}), step_report(0, {"x": 2.0}))
    assert points(read(server, rank, "x")["series"]["x"]) == {0: 2.0}


def test_a_steps_second_report_adds_to_the_first(server: ServerInThread, rank: Rank) -> None:
    histogram = ScoreHistogram(name="h", low=0.0, high=1.0, counts=(1, 2))
    rank.send(
        step_report(0, {"x": 1.0, "y": 3.0}, histograms=[histogram], labels={"a": "b"}),
        step_report(0, {"eval": 0.5, "y": 4.0}),
    )
    assert {
        name: points(one) for name, one in read(server, rank, "x", "y", "eval")["series"].items()
    } == {"x": {0: 1.0}, "y": {0: 4.0}, "eval": {0: 0.5}}
    step = server.http.get(f"{rank.path}/steps/0").json()
    assert step["scalars"] == {"x": 1.0, "y": 4.0, "eval": 0.5}
    assert step["labels"] == {"a": "b"}
    assert [one["name"] for one in step["histograms"]] == ["h"]


def test_reading_on_shows_the_same_rank_as_reading_again(server: ServerInThread) -> None:
    first = Rank(server, rank=0)
    second = Rank(server, run_id=first.run_id, rank=1)
    first.report(0, x=1.0)
    second.report(0, x=10.0)
    first.report(1, x=2.0)
    cursor = read(server, first, "x")["cursor"]
    second.send(step_report(1, {"x": 20.0, "only/second": 5.0}), step_report(2, {"x": 30.0}))
    more = read(server, first, "x", "only/second", since=cursor)
    assert more["reset"] is False
    assert points(more["series"]["x"]) == {2: 30.0}
    assert points(more["series"]["only/second"]) == {1: 5.0}
    assert points(read(server, first, "x")["series"]["x"]) == {0: 1.0, 1: 2.0, 2: 30.0}


def test_only_unknown_names_are_an_error_that_names_the_nearest(
    server: ServerInThread, rank: Rank
) -> None:
    rank.report(0, **{"reward/mean": 1.0})
    answer = server.http.get(f"{rank.path}/metrics/series", params={"name": "reward/maen"})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (404, "metric_unknown")
    assert "'reward/maen'" in error["message"]
    assert "reward/mean" in error["message"]
    both = server.http.get(f"{rank.path}/metrics/series", params={"name": ["a", "b"]})
    assert both.status_code == 404
    assert read(server, rank, "a", "reward/mean")["series"]["a"]["step"] == []


def test_a_promised_metric_that_has_not_come_yet_has_no_points(
    server: ServerInThread, rank: Rank
) -> None:
    rank.report(0, **{"token/count": 0.0})
    for name in (
        "entropy/mean",
        "entropy/observed_change",
        "probe/spooled_records",
        "probe/left_out_reports",
    ):
        assert read(server, rank, name)["series"][name]["step"] == []
    assert server.http.get(f"{rank.path}/histograms/entropy/token").json()["step"] == []


def test_before_the_first_report_no_name_is_unknown(server: ServerInThread, rank: Rank) -> None:
    assert read(server, rank, "nosuch/metric")["series"]["nosuch/metric"]["step"] == []
    assert server.http.get(f"{rank.path}/histograms/nosuch").json()["step"] == []


def test_a_histogram_never_reported_is_an_error(server: ServerInThread, rank: Rank) -> None:
    rank.send(
        step_report(0, {}, histograms=[ScoreHistogram(name="h", low=0, high=1, counts=(1, 2))])
    )
    answer = server.http.get(f"{rank.path}/histograms/nosuch")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "histogram_unknown")
    assert "'nosuch'" in answer.json()["error"]["message"]
    later = server.http.get(f"{rank.path}/histograms/h", params={"from_step": 1})
    assert (later.status_code, later.json()["step"]) == (200, [])


@pytest.mark.parametrize("path", ["metrics/series?name=x&", "histograms/h?"])
def test_a_range_that_ends_before_it_begins_is_refused(
    server: ServerInThread, rank: Rank, path: str
) -> None:
    rank.report(0, x=1.0)
    answer = server.http.get(f"{rank.path}/{path}from_step=5&to_step=4")
    assert answer.status_code == 422
    assert "5 > 4" in answer.json()["error"]["message"]
