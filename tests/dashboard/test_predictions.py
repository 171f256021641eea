"""What is predicted: effects of thresholds before they are pushed, rewards by the run's fit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import plotly.graph_objects as go
import pytest

from isentrope_dashboard.components.facts import law_facts
from isentrope_dashboard.components.what_if import reading
from isentrope_dashboard.figures.law import law_figure
from isentrope_dashboard.figures.what_if import ticks_of_shares, what_if_figure
from isentrope_dashboard.formatting import change
from isentrope_wire.control import Control
from isentrope_wire.control_answers import Check, EntropyPerformance, WhatIfAnswer
from isentrope_wire.numbers import read
from tests.dashboard.fake_predictions import law_answer, what_if_answer
from tests.dashboard.test_run_content import words


def answer(
    mu_low: float | None = 1.0, mu_high: float | None = 2.0, *, gain: float | None = 0.5, scope: str = "all"
) -> WhatIfAnswer:
    scalars = {} if gain is None else {"entropy/gain": gain}
    return read(WhatIfAnswer, what_if_answer({"step": 12, "scalars": scalars}, "clip_v", scope, mu_low, mu_high))


def law(steps: int = 200, *, run_over: bool = True) -> EntropyPerformance:
    rows = [
        {"step": step, "scalars": {"entropy/mean": 2 - step / 150, "reward/mean": 0.1 + step / 1000}}
        for step in range(steps)
    ]
    return read(EntropyPerformance, law_answer(rows, run_over=run_over))


def traces(figure: go.Figure, axis: str) -> list[Any]:
    return [trace for trace in figure.data if (trace.yaxis or "y") == axis]


def test_each_side_has_its_curve_and_the_forms_thresholds_are_dots_of_one_height() -> None:
    found = answer()
    figure = what_if_figure(found, None, revision="r")
    low, high, dots = traces(figure, "y")
    assert list(low.x[:3]) == [0, -0.05, -0.1]
    assert list(high.x[:3]) == [0, 0.05, 0.1]
    assert (list(dots.x), list(dots.y)) == ([-1.0, 2.0], [found.clip_fraction] * 2)
    # Each dot lies on its side's curve.
    assert low.y[20] == pytest.approx(found.clip_fraction)
    assert high.y[40] == pytest.approx(found.clip_fraction)
    low_change, high_change, change_dots = traces(figure, "y2")
    assert list(change_dots.y) == [found.predicted_change] * 2
    assert low_change.y[20] == pytest.approx(high_change.y[40]) == pytest.approx(found.predicted_change)


def test_a_side_that_is_off_has_a_curve_and_no_dot() -> None:
    dots = traces(what_if_figure(answer(1.0, None), None, revision="r"), "y")[2]
    assert list(dots.x) == [-1.0]
    nothing = traces(what_if_figure(answer(None, None), None, revision="r"), "y")
    assert list(nothing[2].x) == []
    assert len(nothing[0].y) > 90


def test_active_thresholds_of_the_same_method_are_dotted_lines() -> None:
    running = Control.from_document({"method": "clip_v", "mu_low": 0.5, "mu_high": 1.5})
    figure = what_if_figure(answer(), running, revision="r")
    assert [(line.x0, line.line.dash) for line in figure.layout.shapes] == [(-0.5, "dot"), (1.5, "dot")]
    assert not what_if_figure(
        answer(), Control.from_document({"method": "clip_b", "mu_low": 0.5, "mu_high": 1.5}), revision="r"
    ).layout.shapes


def test_without_a_gain_the_unit_prediction_is_drawn_and_named_so() -> None:
    found = answer(gain=None)
    figure = what_if_figure(found, None, revision="r")
    assert figure.layout.yaxis2.title.text == "ΔH per unit"
    assert list(traces(figure, "y2")[2].y) == [found.unit_predicted_change] * 2
    assert "nats per unit gain" in words(reading(found))
    assert "per unit" not in words(reading(answer()))


def test_a_threshold_beyond_the_sliders_is_still_in_the_frame() -> None:
    assert list(what_if_figure(answer(), None, revision="r").layout.xaxis.range) == [-5, 5]
    assert what_if_figure(answer(8.5, None), None, revision="r").layout.xaxis.range[0] < -8.5


def test_nothing_clipped_is_no_point_on_a_logarithmic_axis() -> None:
    found = replace(answer(), clip_fraction=0.0)
    assert list(traces(what_if_figure(found, None, revision="r"), "y")[2].y) == [None, None]


def test_reading_has_result_and_accuracy() -> None:
    exact, between = answer(), answer(1.02, 2.0)
    assert words(reading(exact)).startswith(f"Step 12 would clip {100 * exact.clip_fraction:.2f}% of its tokens")
    assert "±" not in words(reading(exact))
    assert "± 0.40%" in words(reading(between))
    assert "± 0.00010 nats" in words(reading(between))
    assert "−0.0045 with nothing clipped" in words(reading(exact))


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "–"), (0.0, "0"), (-0.00123, "−0.0012"), (0.5, "+0.50"), (12.3, "+12"), (-2.34e-6, "−2.3e−06")],
)
def test_a_change_has_two_digits(value: float | None, text: str) -> None:
    assert change(value) == text


def test_shares_have_ticks_at_powers_of_ten_and_thrice_those_when_there_are_few() -> None:
    assert ticks_of_shares([0.0001, 0.9]) == pytest.approx([1e-4, 1e-3, 1e-2, 0.1, 1])
    assert ticks_of_shares([0.05, 0.5]) == pytest.approx([0.01, 0.03, 0.1, 0.3, 1])
    assert ticks_of_shares([]) == [1]


def test_fit_is_points_curve_ceiling_and_forecast() -> None:
    found = law()
    assert found.fit is not None
    assert found.fit.ceiling is not None
    assert found.forecast is not None
    figure = law_figure(found, revision="r")
    by_name = {trace.name: trace for trace in figure.data if trace.name}
    assert list(by_name["steps"].marker.color) == list(range(200))
    assert list(by_name["ceiling b − a"].y) == [found.fit.ceiling.value] * 2
    assert by_name["R = −a·exp(H) + b, 90% band"].x[0] == 0
    predicted = by_name["forecast from step 39"]
    assert (predicted.x[0], predicted.y[0]) == (found.forecast.at_entropy, found.forecast.reward.value)
    assert predicted.error_y.array[0] == pytest.approx(0.03)


def test_no_ceiling_where_a_check_failed() -> None:
    found = law()
    assert found.fit is not None
    far = Check(code="reach", passed=False, message="H = 0 is too far.")
    refused = replace(found, fit=replace(found.fit, ceiling=None, checks=[*found.fit.checks[:3], far]))
    assert "ceiling b − a" not in [trace.name for trace in law_figure(refused, revision="r").data]
    facts = words(law_facts(refused))
    assert facts.startswith("Ceiling–None follows.")
    assert "Findingconclusive" + far.message in facts


def test_finding_names_what_failed() -> None:
    found = law()
    assert found.fit is not None
    bent = Check(code="shape", passed=False, message="It bends.")
    checks = [found.fit.checks[0], bent, *found.fit.checks[2:]]
    unsure = replace(found, fit=replace(found.fit, ceiling=None, conclusive=False, checks=checks))
    assert "Findingnot conclusiveIt bends.Forecast" in words(law_facts(unsure))
    assert "FindingconclusiveThe run follows the curve. Both halves" in words(law_facts(found))


def test_fitted_metric_is_named() -> None:
    found = replace(law(), reward="eval/avg_at_k")
    assert law_figure(found, revision="r").layout.yaxis.title.text == "eval/avg_at_k"
    assert "200 steps with eval/avg_at_k" in words(law_facts(found))


def test_run_without_fit_shows_points_and_reason() -> None:
    young = law(19)
    assert [trace.name for trace in law_figure(young, revision="r").data] == ["steps"]
    assert words(law_facts(young)) == "Ceiling–The fit needs at least 20 steps, there are 19."
    assert "No step with both" in law_figure(None, revision="r").layout.annotations[0].text


def test_facts_have_intervals_and_forecast_error() -> None:
    facts = words(law_facts(law()))
    assert "90% interval" in facts
    assert "last 10 steps: 0.295, error −0.001" in facts
    assert "last 10 steps so far" in words(law_facts(law(run_over=False)))
    assert "Forecast of the last reward–The fit needs" in words(law_facts(law(100)))
