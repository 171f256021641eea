"""The overview: what its charts and numbers say of a run, and that they follow it."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from isentrope_dashboard.pages import overview
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
    assert levels == pytest.approx([early, 0.75 * early, 0.5 * early, 0.25 * early])


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
