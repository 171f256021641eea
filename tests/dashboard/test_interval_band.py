"""A filled band has no area where it is not known: not between two of its steps, and not across missing ones."""

from __future__ import annotations

import math

import plotly.graph_objects as go
import pytest

from isentrope_dashboard.figures.entropy import ENTROPY, HIGH, LOW, appended, drawn, entropy_figure, extension
from isentrope_dashboard.figures.held_entropy import TARGET, with_band
from isentrope_dashboard.figures.lines import BandOutline, StepRow, band_outline
from isentrope_wire.answers import SeriesColumns
from tests.dashboard.made_answers import columns
from tests.dashboard.test_holding import HISTORY


def filled_at(outline: BandOutline, x: float) -> float:
    """The height of the filled area at a place, as it is drawn: straight from point to point."""
    for index in range(len(outline.x) - 1):
        left, right = outline.x[index], outline.x[index + 1]
        if left < x < right:
            share = (x - left) / (right - left)
            heights = [outline.high[i] - outline.low[i] for i in (index, index + 1)]
            return heights[0] + share * (heights[1] - heights[0])
    return 0.0


def band(figure: go.Figure, name: str) -> BandOutline:
    upper, lower = [trace for trace in figure.data if trace.name == name]
    assert lower.fill == "tonexty"
    assert list(upper.x) == list(lower.x)
    return BandOutline(list(upper.x), list(lower.y), list(upper.y))


@pytest.mark.parametrize("nothing", [None, math.nan, math.inf])
def test_a_band_has_no_area_between_the_steps_around_a_missing_value(nothing: float | None) -> None:
    outline = band_outline([1, 2, 3, 4, 5], [0.0, 0.0, nothing, 1.0, 1.0], [1.0, 1.0, 9.0, 3.0, 3.0])
    assert [filled_at(outline, x) for x in (1.5, 2.2, 3.0, 3.8, 4.5)] == [1.0, 0.0, 0.0, 0.0, 2.0]
    assert all(math.isfinite(value) for value in (*outline.low, *outline.high))


def test_a_step_between_two_missing_ones_keeps_a_band_of_its_own() -> None:
    outline = band_outline([1, 2, 3, 4, 5], [0.0, None, 0.0, None, 0.0], [1.0, None, 2.0, None, 1.0])
    assert [filled_at(outline, x) for x in (3.0, 2.8, 3.2, 2.5, 3.5)] == pytest.approx([2.0, 2.0, 2.0, 0.0, 0.0])


def predicted(steps: list[int], missing: set[int]) -> dict[str, SeriesColumns]:
    known = [step for step in steps if step not in missing]
    return {
        ENTROPY: columns(steps, [2.0] * len(steps)),
        LOW: columns(known, [-0.1] * len(known)),
        HIGH: columns(known, [0.1] * len(known)),
    }


@pytest.mark.parametrize("missing", [{4, 5}, {4}])
def test_the_interval_breaks_where_a_step_has_no_prediction(missing: set[int]) -> None:
    outline = band(entropy_figure(predicted(list(range(1, 9)), missing), [], revision="r"), "90 % interval")
    assert [filled_at(outline, x) for x in (2.5, 3.3, 4.0, 4.6, 6.5)] == pytest.approx([0.2, 0.0, 0.0, 0.0, 0.2])


def test_the_interval_breaks_where_one_of_its_ends_is_no_number() -> None:
    series = predicted(list(range(1, 7)), set())
    series[HIGH] = columns(list(range(1, 7)), [0.1, 0.1, math.nan, 0.1, 0.1, 0.1])
    outline = band(entropy_figure(series, [], revision="r"), "90 % interval")
    assert [filled_at(outline, x) for x in (1.5, 2.5, 3.5, 4.5)] == pytest.approx([0.2, 0.0, 0.0, 0.2])


def test_no_band_crosses_steps_that_were_never_reported() -> None:
    steps = [1, 2, 3, 4, 9, 10, 11]
    series = predicted(steps, set())
    series[TARGET] = columns(steps[2:], [1.0] * 5)
    figure = entropy_figure(with_band(series, HISTORY), [], revision="r")
    for name in ("90 % interval", "what one step may correct"):
        outline = band(figure, name)
        assert [filled_at(outline, x) for x in (5.0, 6.5, 8.5)] == [0.0, 0.0, 0.0]
        assert filled_at(outline, 3.5) > 0


def test_the_band_of_buckets_breaks_where_a_bucket_is_missing() -> None:
    steps = [5, 15, 25, 35, 95, 105]
    entropy = columns(steps, [2.0] * 6, [1.0] * 6, [3.0] * 6)
    outline = band(entropy_figure({ENTROPY: entropy}, [], revision="r"), "min to max")
    assert [filled_at(outline, x) for x in (20.0, 50.0, 90.0, 100.0)] == [2.0, 0.0, 0.0, 2.0]


def test_the_chart_is_drawn_again_when_the_interval_is_back() -> None:
    def until(last: int) -> dict[str, SeriesColumns]:
        return predicted(list(range(1, last + 1)), {5, 6})

    def row(step: int) -> StepRow:
        known: dict[str, float] = {} if step in {5, 6} else {LOW: -0.1, HIGH: 0.1}
        return StepRow(step=step, scalars={ENTROPY: 2.0, **known})

    redrawn = [appended(drawn(until(last)), [row(last + 1)]) is None for last in range(3, 10)]
    # After steps 4, 5, 6 nothing; step 7 is the first of a new piece, and step 8 its second.
    assert redrawn == [False, False, False, True, True, False, False]
    assert extension([StepRow(step=5, scalars={HIGH: 0.1})], 10)[0]["y"][3:] == [[None], [None]]
