"""Charts: what they draw, and what they leave out."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import plotly.graph_objects as go
import pytest

from isentrope_dashboard.figures.change_split import change_parts, change_split_figure, views_of
from isentrope_dashboard.figures.entropy import appended, drawn, entropy_figure, extension
from isentrope_dashboard.figures.lines import StepRow, place, sparkline
from isentrope_dashboard.figures.scores import score_distribution_figure
from isentrope_dashboard.formatting import ControlMarker
from tests.dashboard.made_answers import columns, histograms

ENTROPY, OBSERVED, PREDICTED = "entropy/mean", "entropy/observed_change", "entropy/predicted_change"
LOW, HIGH = "entropy/predicted_change_low", "entropy/predicted_change_high"


def trace(figure: go.Figure, name: str) -> go.Scatter:
    (found,) = [t for t in figure.data if t.name == name]
    return found


def test_a_step_without_a_measurement_is_a_gap_and_not_a_zero() -> None:
    series = {
        ENTROPY: columns([1, 2, 3], [2.0, 1.9, 1.8]),
        PREDICTED: columns([3], [-0.1]),
        OBSERVED: columns([1, 3], [-0.2, math.nan]),
    }
    figure = entropy_figure(series, [], revision="r")
    assert list(trace(figure, "entropy H").y) == [2.0, 1.9, 1.8]
    assert list(trace(figure, "ΔH predicted").x) == [1, 2, 3]
    assert list(trace(figure, "ΔH predicted").y) == [None, None, -0.1]
    assert list(trace(figure, "ΔH observed").y) == [-0.2, None, None]
    assert trace(figure, "ΔH observed").connectgaps is False


def test_a_single_point_is_drawn_as_a_marker_until_there_is_a_line() -> None:
    one = {ENTROPY: columns([1, 2], [2.0, math.nan])}
    two = {ENTROPY: columns([1, 2, 3], [2.0, math.nan, 1.9])}
    assert trace(entropy_figure(one, [], revision="r"), "entropy H").mode == "lines+markers"
    assert trace(entropy_figure(two, [], revision="r"), "entropy H").mode == "lines"
    row = StepRow(step=4, scalars={ENTROPY: 1.8})
    assert appended(drawn({}), [row]) is None
    assert appended(drawn(one), [replace(row, step=3)]) is None
    longer = appended(drawn(two), [row])
    assert longer is not None
    assert (longer.step, longer.points) == (4, 4)


def test_the_quantiles_of_a_single_step_are_markers() -> None:
    shown = histograms([3], [-1], [1], [[1, 3, 0, 0]])
    assert trace(score_distribution_figure(shown, revision="r"), "median").mode == "lines+markers"


def test_reduced_lines_keep_their_own_steps_and_show_the_spikes_of_each_bucket() -> None:
    series = {
        ENTROPY: columns([5, 15], [2.0, 1.5], [1.8, 0.2], [2.1, 1.6]),
        PREDICTED: columns([7, 17], [0.1, 0.2], [0, 0], [1, 1]),
    }
    figure = entropy_figure(series, [], revision="r")
    assert list(trace(figure, "ΔH predicted").x) == [7, 17]
    upper, lower = figure.data[:2]
    assert (list(upper.y), list(lower.y)) == ([2.1, 1.6], [1.8, 0.2])
    assert lower.fill == "tonexty"


def test_each_applied_control_is_a_dotted_line_through_both_panels_with_its_label() -> None:
    series = {ENTROPY: columns([1], [2.0])}
    figure = entropy_figure(series, [ControlMarker(40, "<b>Clip_V</b>")], revision="r")
    (line,) = figure.layout.shapes
    assert (line.x0, line.x1, line.yref, line.line.dash) == (40, 40, "paper", "dot")
    assert figure.layout.annotations[0].text == "&lt;b&gt;Clip_V&lt;/b&gt;"


def test_labels_of_close_markers_stand_below_each_other_and_the_newest_win() -> None:
    crowd = [ControlMarker(step, f"µ₋ 0.5{step}") for step in range(50, 55)]
    placed = place(crowd, 0, 1000)
    assert [label.marker.step for label in placed] == [52, 53, 54]
    assert sorted(label.row for label in placed) == [0, 1, 2]
    figure = entropy_figure({ENTROPY: columns([0, 1000], [2.0, 1.0])}, crowd, revision="r")
    assert (len(figure.layout.shapes), len(figure.layout.annotations)) == (5, 3)


def test_labels_of_distant_markers_share_the_highest_row() -> None:
    placed = place([ControlMarker(10, "v1"), ControlMarker(50, "v2")], 0, 100)
    assert [(label.row, label.left_of_line) for label in placed] == [(0, False), (0, False)]


def test_a_label_at_the_end_of_the_chart_stands_left_of_its_line() -> None:
    (label,) = place([ControlMarker(99, "Clip_V")], 0, 100)
    assert label.left_of_line


def test_empty_run_names_what_it_waits_for() -> None:
    figure = entropy_figure({}, [], revision="r")
    assert [a.text for a in figure.layout.annotations] == ["Waiting for the first step"]


def test_the_interval_is_a_band_about_the_prediction_and_grows_with_it() -> None:
    series = {
        ENTROPY: columns([1, 2], [2.0, 1.9]),
        LOW: columns([2], [-0.3]),
        HIGH: columns([2], [0.1]),
    }
    upper, lower = [t for t in entropy_figure(series, [], revision="r").data if t.name == "90 % interval"]
    assert (list(upper.x), list(upper.y)) == ([1.6, 2.4], [0.1, 0.1])  # one step alone has a width all the same
    assert (list(lower.x), list(lower.y), lower.fill) == ([1.6, 2.4], [-0.3, -0.3], "tonexty")
    assert (upper.yaxis, lower.yaxis, upper.showlegend, lower.showlegend) == ("y2", "y2", False, True)
    data, _, _ = extension([StepRow(step=3, scalars={LOW: -0.2, HIGH: 0.2})], 500)
    assert data["y"][3:] == [[0.2], [-0.2]]


def test_live_points_are_appended_to_their_lines_with_gaps_where_nothing_was_measured() -> None:
    rows = [StepRow(step=8, scalars={ENTROPY: 1.0, OBSERVED: 0.2}), StepRow(step=9, scalars={ENTROPY: math.inf})]
    data, traces, kept = extension(rows, 500)
    assert data["x"] == [[8, 9]] * 5
    assert data["y"] == [[1.0, None], [0.2, None], [None, None], [None, None], [None, None]]
    assert (traces, kept) == ([2, 3, 4, 5, 6], 500)
    names = [entropy_figure({}, [], revision="r").data[i].name for i in traces]
    assert names == ["entropy H", "ΔH observed", "ΔH predicted", "90 % interval", "90 % interval"]


def test_the_heat_map_shows_shares_and_the_quantiles_of_each_step() -> None:
    shown = histograms([3, 6], [-1, -1], [1, 1], [[1, 3, 0, 0], [0, 0, 0, 4]])
    figure = score_distribution_figure(shown, revision="r")
    heat = figure.data[0]
    assert list(heat.x) == [3, 6]
    assert list(heat.y) == [-0.75, -0.25, 0.25, 0.75]
    assert np.asarray(heat.customdata).T.tolist() == [[0.25, 0.75, 0, 0], [0, 0, 0, 1]]
    assert np.square(np.asarray(heat.z, dtype=float)) == pytest.approx(np.asarray(heat.customdata), abs=1e-5)
    assert list(trace(figure, "median").y) == pytest.approx([-1 / 3, 0.75])


def test_figures_hold_plain_lists_only() -> None:
    shown = histograms([3], [-1], [1], [[1, 3, 0, 0]])
    rows = [StepRow(step=1, scalars={"change/positive_high": -0.1})]
    for figure in (score_distribution_figure(shown, revision="r"), change_split_figure(rows, revision="r")):
        assert "bdata" not in json.dumps(figure.to_dict(), default=str)


def test_the_split_is_the_mean_of_the_steps_that_measured_it() -> None:
    rows = [StepRow(step=s, scalars={"change/positive_low": float(s)}) for s in range(1, 151)]
    rows.append(StepRow(step=151, scalars={}))
    (part,) = change_parts(rows)
    assert part.metric == "change/positive_low"
    assert part.mean == pytest.approx(sum(range(52, 151)) / 99)


def test_the_split_is_symmetric_about_zero_and_signed() -> None:
    scalars = {"change/positive_high": -0.0072, "change/positive_low": 0.0041}
    figure = change_split_figure([StepRow(step=1, scalars=scalars)], revision="r")
    assert list(figure.data[0].text) == ["+0.00410", "−0.00720"]
    low, high = figure.layout.xaxis.range
    assert low == -high
    assert high > 0.0072


def test_the_longest_bar_leaves_room_for_its_number_on_a_narrow_screen() -> None:
    for mean in (-0.0072, -0.0000072):
        figure = change_split_figure([StepRow(step=1, scalars={"change/positive_high": mean})], revision="r")
        low, high = figure.layout.xaxis.range
        pixels_beside = 240 * (mean - low) / (high - low)
        assert pixels_beside >= 6.5 * len(figure.data[0].text[0])


def test_a_sparkline_fills_its_height_and_leaves_out_what_is_missing() -> None:
    assert sparkline([1.0, None, 3.0, math.nan, 2.0]) == [0.0, 1.0, 0.5]
    assert sparkline([2.0, 2.0]) == [0.5, 0.5]
    assert sparkline([2.0]) == []
    assert sparkline([]) == []


def test_a_sparkline_ends_with_the_newest_value() -> None:
    line = sparkline([float(i) for i in range(1000)])
    assert len(line) <= 48
    assert line[-1] == 1.0


def test_change_is_split_by_mechanism_and_difficulty_where_measured() -> None:
    plain = StepRow(step=1, scalars={"change/positive_high": -0.01, "entropy/unit_predicted_change": -0.01})
    assert views_of([plain]) == ["quadrant"]
    parts = {"change/by_policy_loss": -0.03, "change/by_intervention": 0.02, "covariance/group": 0.5}
    measured = StepRow(step=2, scalars={**plain.scalars, **parts})
    assert views_of([plain, measured]) == ["quadrant", "mechanism", "difficulty"]
    figure = change_split_figure([plain, measured], "mechanism", revision="r")
    assert list(figure.data[0].y) == ["policy loss", "intervention", "unit prediction"]
    assert list(figure.data[0].x) == [-0.03, 0.02, -0.01]
    covariance = change_split_figure([measured], "difficulty", revision="r")
    assert list(covariance.data[0].x) == [0.5]
    assert covariance.layout.xaxis.title.text == "Cov(log p / length, A), nats"
