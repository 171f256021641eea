"""The charts' numbers: ticks without prefixes, gaps, bands, and the x axis in seconds or tokens."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isentrope_dashboard.figures.chart import (
    Chart,
    NotDrawable,
    Scale,
    duration_texts,
    percent_texts,
    smoothed,
    smoothing_steps,
    tick_texts,
    ticks,
    value_range,
)
from isentrope_dashboard.view import View
from isentrope_server.store.reports.series import Series
from isentrope_server.store.reports.series import columns as reduce
from isentrope_wire.answers import SeriesColumns
from tests.dashboard.made_answers import columns


@pytest.mark.parametrize(
    ("low", "high", "texts"),
    [
        (0.0, 0.65, ["0", "0.2", "0.4", "0.6"]),
        (-0.0052, 0.0052, ["−0.005", "−0.0025", "0", "0.0025", "0.005"]),
        (0.0, 0.0005, ["0", "0.0001", "0.0002", "0.0003", "0.0004", "0.0005"]),
        (0.0, 123456.0, ["0", "25 000", "50 000", "75 000", "100 000"]),
        (2.0, 2.0, ["2"]),
    ],
)
def test_ticks_are_round_numbers_without_prefixes(
    low: float, high: float, texts: list[str]
) -> None:
    shown = tick_texts(ticks(low, high))
    assert [text.rstrip("0").rstrip(".") if "." in text else text for text in shown] == [
        text.rstrip("0").rstrip(".") if "." in text else text for text in texts
    ]
    assert not any(letter in "".join(shown) for letter in "µkMGn")


@given(st.floats(-1e6, 1e6), st.floats(1e-9, 1e6))
def test_ticks_lie_inside_and_are_told_apart(low: float, span: float) -> None:
    places = ticks(low, low + span)
    slack = 1e-6 * span + 1e-9 * abs(low)
    assert all(low - slack <= place <= low + span + slack for place in places)
    assert len(places) <= 7
    if span > 1e-6 * abs(low):
        assert len(set(tick_texts(places))) == len(places)


def test_shares_and_durations_have_their_unit() -> None:
    assert percent_texts([0.0, 0.05, 0.1]) == ["0 %", "5 %", "10 %"]
    assert duration_texts([0, 60, 120]) == ["0", "60 s", "120 s"]
    assert duration_texts([0, 600, 1200]) == ["0", "10 min", "20 min"]
    assert duration_texts([0, 7200, 14400]) == ["0", "2 h", "4 h"]


def test_missing_steps_are_a_gap_and_nan_is_none() -> None:
    chart = Chart("dark")
    chart.line(columns([1, 2, 3, 7, 8], [1.0, math.nan, 3.0, 4.0, 5.0]), name="a", color="red")
    (trace,) = chart.data
    assert trace["x"] == [1, 2, 3, 6, 7, 8]
    assert trace["y"] == [1.0, None, 3.0, None, 4.0, 5.0]


def test_a_smoothed_line_stays_behind_its_values_which_do_not_move() -> None:
    values = columns(list(range(20)), [float(step % 2) for step in range(20)])
    chart = Chart("light")
    chart.line(values, name="a", color="red", smooth=9)
    raw, smooth = chart.data
    assert raw["y"] == values.value
    assert raw["opacity"] < 1
    assert (raw["name"], smooth["name"]) == ("a", "a, mean of 9 steps")
    assert max(smooth["y"][5:15]) - min(smooth["y"][5:15]) < 0.3
    assert smoothed(columns([1, 2, 3], [math.nan] * 3), 9) == [None, None, None]


def test_the_axis_in_seconds_is_what_the_steps_took() -> None:
    scale = Scale.measure("time", columns([1, 2, 3, 4], [10.0, 10.0, 20.0, 20.0]))
    assert [scale.position(step) for step in (1, 2, 3, 4)] == [10, 20, 40, 60]
    assert scale.position(2.5) == 30
    assert scale.position(5) == pytest.approx(75)  # 15 s a step on the average
    assert [scale.step_at(place) for place in (10, 30, 60, 75)] == pytest.approx([1, 2.5, 4, 5])
    assert Scale.measure("step", columns([4], [10.0])).position(7) == 7
    assert Scale.measure("time", columns([], [])).position(7) == 7


def test_ticks_of_steps_are_whole() -> None:
    chart = Chart("dark")
    chart.x_axis(1, 3)
    assert chart.layout["xaxis"]["tickvals"] == [1, 2, 3]
    assert chart.layout["xaxis"]["ticktext"] == ["1", "2", "3"]


def test_one_axis_has_the_number_of_a_corner() -> None:
    chart = Chart("dark")
    chart.x_axis(1, 3)
    chart.y_axis(0, 1)
    assert chart.figure()["layout"]["xaxis"]["ticktext"] == ["", "2", "3"]
    chart.x_axis(1, 3)
    chart.y_axis(-0.1, 1)
    assert chart.figure()["layout"]["xaxis"]["ticktext"] == ["1", "2", "3"]


def test_axis_counts_what_was_not_measured() -> None:
    """Every tenth step reported; a lost report; a time that is NaN."""
    assert Scale.measure("time", columns([10, 20, 30], [5.0, 5.0, 5.0])).position(30) == 15
    assert Scale.measure("time", columns([1, 2, 4, 5], [2.0, 2.0, 2.0, 2.0])).position(5) == 10
    assert Scale.measure("time", columns([1, 2, 3, 4], [2.0, math.nan, 2.0, 2.0])).position(4) == 8


def reduced_by(values: list[float], buckets: int) -> SeriesColumns:
    """As the server reduces the steps from 1 on."""
    return reduce(Series(steps=np.arange(1, len(values) + 1), values=np.array(values)), buckets)


@pytest.mark.parametrize("points", [7, 400, 500, 600, 6000])
@pytest.mark.parametrize("phase", [0, 3])
def test_axis_ends_where_the_steps_end(points: int, phase: int) -> None:
    """Each tenth step takes 11 s, the others 1 s."""
    seconds = [11.0 if step % 10 == phase else 1.0 for step in range(6000)]
    scale = Scale.measure("time", reduced_by(seconds, points))
    assert scale.position(6000) == pytest.approx(12_000)
    assert scale.position(3000) == pytest.approx(6_000, abs=15)


def test_smoothing_ends_at_a_gap() -> None:
    steps = [*range(1, 21), *range(500, 521)]
    jump = columns(steps, [0.0] * 20 + [10.0] * 21)
    assert smoothed(jump, 9) == [0.0] * 20 + [10.0] * 21
    near = columns([*range(1, 21), *range(30, 51)], [0.0] * 20 + [10.0] * 21)
    assert smoothed(near, 31) == near.value
    broken = columns(range(1, 8), [0.0, 0.0, 0.0, math.nan, 9.0, 9.0, math.inf])
    assert smoothed(broken, 9) == [0.0, 0.0, 0.0, None, 9.0, 9.0, None]


def test_smoothing_counts_steps() -> None:
    every_tenth = columns(range(0, 200, 10), [float(step % 20) for step in range(0, 200, 10)])
    assert smoothing_steps(every_tenth, 9) == 0
    assert smoothing_steps(every_tenth, 31) == 31
    assert smoothed(every_tenth, 31)[10] == pytest.approx((16 * 0 + 2 * 6 * 10) / 28)


def test_smoothing_of_buckets_is_of_all_their_values() -> None:
    """The last value of each bucket is the slow step's."""
    values = reduced_by([11.0 if step % 10 == 9 else 1.0 for step in range(6000)], 600)
    assert set(values.value) == {11.0}
    assert smoothing_steps(values, 9) == 10
    assert smoothed(values, 9) == pytest.approx([2.0] * 600)
    assert smoothed(values, 31) == pytest.approx([2.0] * 600)


def dots(trace: dict[str, Any]) -> list[float]:
    """Values that have a dot."""
    sizes = trace.get("marker", {}).get("size", [0] * len(trace["y"]))
    return [value for value, size in zip(trace["y"], sizes, strict=True) if size]


def test_values_without_neighbours_are_dots() -> None:
    chart = Chart("dark")
    chart.line(columns([1], [3.0]), name="once", color="red")
    chart.line(columns(range(6), [1.0, math.nan, 2.0, 2.0, math.nan, 3.0]), name="a", color="red")
    rarer = [10, 20, 30, 40, 50, 100, 200, 300]
    chart.line(columns(rarer, [float(step) for step in rarer]), name="b", color="red")
    assert list(map(dots, chart.data)) == [[3.0], [1.0, 3.0], [100.0, 200.0, 300.0]]


def test_what_an_axis_lacks_is_marked_and_kept() -> None:
    values = columns(range(1, 7), [1.0, 0.0, math.nan, -2.0, math.inf, 10.0])
    chart = Chart("dark")
    chart.log_axis([values])
    chart.line(values, name="a", color="red")
    line, marks = chart.data
    assert line["y"] == [1.0, None, None, None, None, 10.0]
    assert line["customdata"] == [1.0, 0.0, "NaN", -2.0, "Infinity", 10.0]
    assert (marks["x"], marks["text"]) == ([2, 3, 4, 5], ["0", "NaN", "−2", "∞"])
    assert "name" not in marks
    assert {round(math.log10(y), 6) for y in marks["y"]} == {
        round(end, 6) for end in chart.layout["yaxis"]["range"]
    }


def test_buckets_with_odd_values_are_marked() -> None:
    values = reduced_by([1.0, math.nan, 2.0, 2.0, 2.0, 0.0, 3.0, 3.0], 4)
    chart = Chart("dark")
    chart.log_axis([values])
    chart.line(values, name="a", color="red", smooth=9, has_band=True)
    assert chart.data[-1]["text"] == ["NaN", "0"]
    assert "annotations" not in chart.layout  # a bucket has fewer than the 9 steps
    chart.line(reduced_by([1.0] * 80, 4), name="b", color="red", smooth=9)
    assert chart.layout["annotations"][0]["text"] == "mean of 20 steps"
    assert chart.data[0]["customdata"] == ["NaN", 2.0, 0.0, 3.0]
    assert chart.data[0]["visible"] is False


@pytest.mark.parametrize(
    ("low", "high"), [(1e9, 1e9 + 0.002), (1.79e9, 1.79e9 + 120), (8.5899e10 - 24576, 8.5899e10)]
)
def test_ticks_far_from_zero_differ(low: float, high: float) -> None:
    texts = tick_texts(ticks(low, high, 5))
    assert len(texts) >= 3
    assert len(set(texts)) == len(texts)


@pytest.mark.parametrize("values", [[1e308, -1e308], [5e-324, 1e-310, 2e-310]])
def test_values_without_an_axis_are_named(values: list[float]) -> None:
    with pytest.raises(NotDrawable, match=r"can't be drawn"):
        value_range([columns(range(len(values)), values)])


def test_a_share_of_a_whole_begins_at_zero() -> None:
    low, high = value_range([columns([1, 2], [0.4, 0.5])], from_zero=True)
    assert low == 0
    assert high > 0.5
    assert value_range([columns([], [])]) == (0.0, 1.0)
    assert value_range([columns([1], [math.inf])]) == (0.0, 1.0)


def test_the_address_is_the_view() -> None:
    stored = {
        "path": "/runs/a%2Fb",
        "theme": "dark",
        "query": [["run", "x"], ["run", "y"], ["zoom", "10~20.5"]],
    }
    view = View.read(stored)
    assert (view.run_id, view.scheme, view.runs, view.zoom) == (
        "a/b",
        "dark",
        ("x", "y"),
        (10.0, 20.5),
    )
    for zoom in ("20~10", "a~b", "1", "1~2~3", "nan~nan"):
        assert View.read({"query": [["zoom", zoom]]}).zoom is None
    empty = View.read(None)
    assert (empty.run_id, empty.tab, empty.window, empty.axis, empty.smooth) == (
        None,
        "overview",
        "all",
        "step",
        9,
    )
    assert View(query={"step": "-1"}).whole_number("step") is None
