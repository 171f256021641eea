"""Steps that were never reported are seen to be missing, and the record lists what was lost."""

from __future__ import annotations

import math

import pytest

from isentrope_dashboard.components.diagnosis import record_health, record_props
from isentrope_dashboard.figures.entropy import LONGEST_REASON, appended, drawn, entropy_figure
from isentrope_dashboard.figures.lines import MissingSteps, StepRow, missing_steps, with_breaks
from isentrope_dashboard.figures.metric_panels import MetricLine, MetricPanel, metric_panels_figure
from isentrope_wire.answers import LatestMetric
from tests.dashboard.made_answers import columns, gap
from tests.dashboard.made_answers import latest as latest_of
from tests.dashboard.test_run_content import words


@pytest.mark.parametrize(
    ("steps", "holes"),
    [
        ([1, 2, 3, 4], []),
        ([1, 2, 3, 7, 8], [(4, 6)]),
        ([10, 20, 30, 50, 60], [(31, 49)]),  # every tenth step is what this run reports
        ([1, 9], []),  # what is usual is not known yet
        ([], []),
    ],
)
def test_a_hole_is_where_the_next_step_is_farther_than_usual(steps: list[int], holes: list[tuple[int, int]]) -> None:
    assert missing_steps(steps) == [MissingSteps(*hole) for hole in holes]


def test_buckets_of_uneven_width_are_no_holes_but_a_wide_one_is() -> None:
    assert missing_steps([1, 2, 4, 5, 7, 8], reduced=True) == []
    assert missing_steps([1, 2, 4, 5, 60, 62], reduced=True) == [MissingSteps(6, 59)]


def test_a_line_is_interrupted_at_a_hole_and_the_hole_is_marked_with_its_reason() -> None:
    shown = columns([1, 2, 3, 8, 9], [1.0, 1.1, 1.2, 1.3, 1.4])
    figure = entropy_figure({"entropy/mean": shown}, [], revision="r", why_missing="<b>the queue was full</b>")
    assert with_breaks(shown.step) == [1, 2, 3, 5, 8, 9]
    assert list(figure.data[2].y) == [1.0, 1.1, 1.2, None, 1.3, 1.4]
    (hole,) = figure.layout.shapes
    assert (hole.name, hole.x0, hole.x1) == ("missing", 3.5, 7.5)
    (label,) = figure.layout.annotations
    assert label.text == "4 without data: &lt;b&gt;the queue was full&lt;/b&gt;"
    assert figure.layout.yaxis2.domain[1] < label.y < figure.layout.yaxis.domain[0]  # across no line


def test_a_hole_s_reason_stays_within_the_chart() -> None:
    series = {"entropy/mean": columns([1, 2, 3, 8, *range(9, 40)], [1.0] * 35)}
    (label,) = entropy_figure(series, [], revision="r", why_missing="no room " * 30).layout.annotations
    assert (label.xanchor, len(label.text) <= LONGEST_REASON, label.text[-1]) == ("left", True, "…")
    late = {"entropy/mean": columns([*range(1, 30), 38, 39], [1.0] * 31)}
    (label,) = entropy_figure(late, [], revision="r").layout.annotations
    assert label.xanchor == "right"


def test_a_gap_in_the_newest_steps_draws_the_chart_again() -> None:
    before = drawn({"entropy/mean": columns([1, 2, 3], [1.0] * 3)})
    assert appended(before, [StepRow(step=8, scalars={"entropy/mean": 1.0})]) is None
    assert appended(before, [StepRow(step=4, scalars={"entropy/mean": 1.0})]) is not None
    assert appended(before, [StepRow(step=3, scalars={"entropy/mean": 1.0})]) is None, "a resumed run repeats steps"


def latest(**values: float) -> dict[str, LatestMetric]:
    return latest_of({f"probe/{name}": value for name, value in values.items()})


def test_complete_record_is_shown_as_complete() -> None:
    known = latest(
        dropped_reports=0,
        accepted_reports=1200,
        spooled_records=1201,
        acknowledged_records=1199,
        delivery_lag_seconds=1.5,
    )
    health = record_health(known, [], [])
    assert health.problems == []
    assert health.facts == [
        "1,200 reports accepted", "1,201 records written, 1,199 acknowledged", "oldest waiting 1.50 s",
    ]  # fmt: skip
    assert "Record complete" in words(record_props(health)["record"]["children"])


def test_what_is_lost_late_or_missing_is_named_with_its_reason() -> None:
    known = latest(dropped_reports=3, failures=1, delivery_lag_seconds=400)
    lost = gap(5, 7, "the disk was full")
    health = record_health(known, [MissingSteps(4, 6), MissingSteps(20, 20)], [lost])
    assert health.problems == [
        "oldest waiting 400 s",
        "dropped by the probe: 3",
        "failures inside the probe: 1",
        "4 steps without data, the newest step 20",
        "3 records lost: the disk was full",
    ]
    assert "Record incomplete" in words(record_props(health)["record"]["children"])


def test_many_gaps_are_counted_and_the_newest_listed() -> None:
    gaps = [gap(seq, seq, f"loss {seq}") for seq in (9, 7, 5, 3, 1)]
    problems = record_health({}, [], gaps).problems
    assert problems == ["1 record lost: loss 9", "1 record lost: loss 7", "1 record lost: loss 5", "and 2 more gaps"]


def test_chosen_metrics_stand_one_below_the_other_under_their_raw_names() -> None:
    sparse = columns([10, 20, 30], [0.1, math.nan, 0.3])
    one, other = (MetricLine("run", 0, sparse), MetricLine("<i>two</i>", 1, columns([10], [1.0])))
    panels = [MetricPanel("eval/<b>acc</b>", [one, other]), MetricPanel("loss", [one])]
    figure = metric_panels_figure(panels, revision="r", empty="nothing")
    assert [label.text for label in figure.layout.annotations] == ["eval/&lt;b&gt;acc&lt;/b&gt;", "loss"]
    assert figure.layout.yaxis.domain[0] > figure.layout.yaxis2.domain[1]
    assert [(line.yaxis, line.name, line.meta["slot"]) for line in figure.data] == [
        ("y", "run", 0), ("y", "&lt;i&gt;two&lt;/i&gt;", 1), ("y2", "run", 0),
    ]  # fmt: skip
    assert list(figure.data[0].x) == [10, 30]  # logged every other time: a line, not dots
    assert figure.data[1].mode == "lines+markers"
    empty = metric_panels_figure([], revision="r", empty="Choose a metric above")
    assert empty.layout.annotations[0].text == "Choose a metric above"
