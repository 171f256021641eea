"""One row a metric: what it says is found wherever the metric is named."""

from __future__ import annotations

import pytest

from isentrope_dashboard.figures.metric_panels import MetricLine, MetricPanel, metric_panels_figure
from isentrope_dashboard.formatting import shown
from isentrope_dashboard.records import SeriesColumns
from isentrope_wire.metrics import HISTOGRAMS, METRICS, Show, imported_names, metric, promised_metrics, unit_of


def test_names_are_group_and_what() -> None:
    assert all(name == row and name.count("/") == 1 and row.meaning for name, row in (METRICS | HISTOGRAMS).items())


def test_second_row_of_a_name_is_refused() -> None:
    with pytest.raises(ValueError, match="entropy/mean"):
        metric("entropy/mean", meaning="again")


def test_toy_metric_is_known_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = dict(METRICS)
    toy = metric("toy/share", unit="of toys", meaning="toys", show=Show.PERCENT, imported_as=("toys",), rows=rows)
    for name, row in rows.items():
        monkeypatch.setitem(METRICS, name, row)
    assert toy in promised_metrics()
    assert imported_names()["toys"] is toy
    assert unit_of("toy/share") == "of toys"
    assert shown(toy, 0.25) == "25.0%"
    line = MetricLine("run", 0, SeriesColumns(steps=[1], values=[1.0]))
    figure = metric_panels_figure([MetricPanel("toy/share", [line])], revision="r", empty="")
    assert figure.layout.annotations[0].text == "toy/share, of toys"


def test_run_of_its_own_metrics_has_no_unit() -> None:
    assert unit_of("mine") == ""
