"""The charts' numbers: ticks without prefixes, gaps, bands, and the x axis in seconds or tokens."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isentrope_dashboard.figures.chart import (
    Chart,
    Scale,
    duration_texts,
    percent_texts,
    smoothed,
    tick_texts,
    ticks,
    value_range,
)
from isentrope_dashboard.view import View
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
    assert raw["opacity"] < smooth["opacity"]
    assert max(smooth["y"][5:15]) - min(smooth["y"][5:15]) < 0.3
    assert smoothed(columns([1, 2, 3], [math.nan] * 3), 9) == [None, None, None]


def test_the_axis_in_seconds_is_what_the_steps_took() -> None:
    scale = Scale.of("time", columns([1, 2, 3, 4], [10.0, 10.0, 20.0, 20.0]))
    assert [scale.at(step) for step in (1, 2, 3, 4)] == [10, 20, 40, 60]
    assert scale.at(2.5) == 30
    assert scale.at(5) == pytest.approx(75)  # 15 s a step on the average
    assert [scale.step_at(place) for place in (10, 30, 60, 75)] == pytest.approx([1, 2.5, 4, 5])
    reduced = SeriesColumns(step=[10, 20], value=[1.0, 3.0], min=[1.0, 3.0], max=[1.0, 3.0])
    assert Scale.of("tokens", reduced).at(20) - Scale.of("tokens", reduced).at(10) == 30
    assert Scale.of("step", reduced).at(7) == 7
    assert Scale.of("time", columns([], [])).at(7) == 7


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
    view = View.of(stored)
    assert (view.run_id, view.scheme, view.runs, view.zoom) == (
        "a/b",
        "dark",
        ("x", "y"),
        (10.0, 20.5),
    )
    for zoom in ("20~10", "a~b", "1", "1~2~3", "nan~nan"):
        assert View.of({"query": [["zoom", zoom]]}).zoom is None
    empty = View.of(None)
    assert (empty.run_id, empty.tab, empty.window, empty.axis, empty.smooth) == (
        None,
        "overview",
        "all",
        "step",
        9,
    )
    assert View(query={"step": "-1"}).whole_number("step") is None
