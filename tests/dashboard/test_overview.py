"""The overview: what its charts and numbers say of a run, and that they follow it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import expect

from isentrope_dashboard.figures.chart import Scale
from isentrope_dashboard.figures.entropy import LABEL_HEIGHT_SHARE, LEVEL_LABELS_SHARE
from isentrope_dashboard.figures.panel import Forecast, Shown
from isentrope_dashboard.figures.panels import OVERVIEW
from isentrope_dashboard.pages import overview
from isentrope_wire.answers import SeriesColumns
from isentrope_wire.control_answers import EntropyForecast
from isentrope_wire.metrics import ENTROPY_MEAN
from tests.dashboard.conftest import OpenPage, Site


def test_entropy_chart_shows_the_early_level_and_the_reported_values(site: Site) -> None:
    run = site.run(20)
    values = site.values(overview.PART, f"/runs/{run}")
    reported = site.client.series(run, "entropy/mean").series["entropy/mean"]
    line = next(trace for trace in values["chart-entropy"]["data"] if trace.get("name") == "entropy")
    assert line["x"] == reported.step
    assert line["y"] == reported.value
    early = sorted(reported.value[:3])[1]
    levels = [shape["y0"] for shape in values["chart-entropy"]["layout"]["shapes"] if shape.get("xref") == "paper"]
    assert levels == pytest.approx([early, 0.75 * early, 0.5 * early])


def drawn(course: Callable[[int], float], **known: Any) -> dict[str, Any]:
    """The entropy chart of 100 steps."""
    entropy = SeriesColumns(step=list(range(100)), value=[course(step) for step in range(100)], min=None, max=None)
    fields: dict[str, Any] = {"early_level": 1.0, "series": {ENTROPY_MEAN: entropy}} | known
    figure = OVERVIEW[0].figure(Shown(scheme="dark", scale=Scale(), first=0, last=99, **fields))
    assert not isinstance(figure, str)
    return figure


@pytest.mark.parametrize("is_live", [True, False])
@pytest.mark.parametrize(
    "course", [lambda step: 1 - 0.006 * step, lambda step: 0.77, lambda step: 1 - 0.03 * min(step, 30)]
)
def test_labels_of_levels_keep_clear_of_the_line(course: Callable[[int], float], is_live: bool) -> None:
    figure = drawn(course, is_live=is_live)
    first, last = figure["layout"]["xaxis"]["range"]
    height = figure["layout"]["yaxis"]["range"][1]
    labels = {one["text"]: one for one in figure["layout"]["annotations"] if "lost" in one["text"]}
    assert len(labels) == 2
    for label in labels.values():
        begin, end = (first + share * (last - first) for share in (label["x"], label["x"] + LEVEL_LABELS_SHARE))
        values = [course(step) for step in range(100) if begin <= step <= end]
        is_clear = max(values) < label["y"] or min(values) > label["y"] + LABEL_HEIGHT_SHARE * height
        assert is_clear or course(0) == course(99) == 0.77  # a level line leaves no room at its own level


def forecast(end: float, **known: Any) -> Forecast:
    steps = list(range(100, 150))
    values = [0.6 + (end - 0.6) * (step - 99) / 50 for step in steps]
    course = EntropyForecast(step=steps, entropy=values, low=[0.8 * v for v in values], high=[1.2 * v for v in values])
    return Forecast(course=course, pace=-0.004, **known)


@pytest.mark.parametrize(("unchanged", "helped"), [(0.3, 0.58), (0.55, 0.4)])
def test_the_forecasts_are_drawn_as_they_were_answered_and_their_labels_keep_apart(
    unchanged: float, helped: float
) -> None:
    lines = [forecast(unchanged, label="unchanged"), forecast(helped, label="with Clip_V 1.0", helps=True)]
    figure = drawn(lambda step: 1 - 0.004 * step, forecasts=lines)
    strokes = [trace for trace in figure["data"] if trace.get("x") == list(range(100, 150))]
    assert [trace["y"] for trace in strokes] == [line.course.entropy for line in lines]  # type: ignore[union-attr]
    band = next(trace for trace in figure["data"] if trace.get("fill") == "toself")
    assert max(band["y"]) == pytest.approx(1.2 * max(lines[0].course.entropy))  # type: ignore[union-attr]
    labels = [one for one in figure["layout"]["annotations"] if "<b>" in one["text"]]
    higher, lower = sorted(labels, key=lambda one: -one["y"])
    assert (higher["yanchor"], lower["yanchor"]) == ("bottom", "top")


@pytest.mark.browser
def test_a_new_step_is_painted(site: Site, open_page: OpenPage) -> None:
    run = site.run(12)
    page = open_page(f"/runs/{run}")
    expect(page.locator("#run-step")).to_have_text("12")
    site.more(run, 1)
    expect(page.locator("#run-step")).to_have_text("13")
    page.wait_for_function(
        "() => document.querySelector('#chart-entropy .js-plotly-plot').data.find(t => t.name === 'entropy').x.at(-1) === 13"
    )
