"""A metric's unit is beside its name wherever it is charted."""

from __future__ import annotations

import pytest

from isentrope_dashboard.figures.metric_panels import MetricLine, MetricPanel, metric_panels_figure
from isentrope_wire.metrics import name_with_unit
from tests.dashboard.made_answers import columns


@pytest.mark.parametrize(
    ("metric", "named"),
    [
        ("entropy/mean", "entropy/mean, nats"),
        ("hold/drift", "hold/drift, nats a step"),
        ("change/positive_high", "change/positive_high, nats per unit gain"),
        ("score/self_check_z", "score/self_check_z, standard errors"),
        ("reward/mean", "reward/mean"),
        ("mine", "mine"),
    ],
)
def test_unit_is_shown_where_the_metric_has_one(metric: str, named: str) -> None:
    assert name_with_unit(metric) == named
    line = MetricLine("run", 0, columns([1], [1.0]))
    figure = metric_panels_figure([MetricPanel(metric, [line])], revision="r", empty="")
    assert figure.layout.annotations[0].text == named
