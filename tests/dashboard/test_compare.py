"""Comparing runs: which are shown, what differs between them, and that the page follows live runs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from playwright.sync_api import expect

from isentrope_dashboard.components.basics import place_id
from isentrope_dashboard.pages import compare
from isentrope_dashboard.pages.compare import differences
from isentrope_dashboard.theme import DASHES, LINES
from isentrope_wire.reports import StepReport
from tests.dashboard.conftest import OpenPage, Site

HOSTILE = "<img src=x onerror=alert(1)>"


def named_by_verl(report: StepReport) -> StepReport:
    return replace(report, scalars={"critic/score/mean": report.scalars["reward/mean"]})


def test_only_different_parameters_are_shown() -> None:
    configs = [{"lr": 1e-6, "model": {"layers": 2}}, {"lr": 1e-6, "model": {"layers": 4}, "seed": 1}]
    assert differences(configs) == {"model.layers": ["2", "4"], "seed": [None, "1"]}
    assert list(differences(configs, everything=True)) == ["lr", "model.layers", "seed"]
    assert differences([{"a": 1}, {"a": 1}]) == {}


def test_runs_differ_in_colour_and_dash(site: Site) -> None:
    first, second = site.run(30, name=HOSTILE), site.run(20, change=named_by_verl)
    values = site.values(compare.PART, f"/compare?run={first}&run={second}&run=gone&metric=reward/mean&smooth=off")
    assert len(values["compare-charts"]) == 1
    one, other = values[place_id("chart", "reward/mean")]["data"]
    assert (one["line"]["color"], one["line"]["dash"]) == (LINES["light"][0], DASHES[0])
    assert (other["line"]["color"], other["line"]["dash"]) == (LINES["light"][1], DASHES[1])
    assert (len(one["x"]), len(other["x"])) == (30, 20)  # the second under its own framework's name
    assert HOSTILE not in str(one)
    assert "There is no run gone" in str(values["compare-legend"])


@pytest.mark.browser
def test_runs_are_found_and_stay_in_the_address(site: Site, open_page: OpenPage) -> None:
    first = site.run(20, name="first", config={"lr": 1})
    second = site.run(20, name="zebra", config={"lr": 2})
    page = open_page(f"/compare?run={first}")
    expect(page.locator(".legend li")).to_have_count(1)
    page.get_by_role("textbox", name="Runs, at most 6").fill("zebra")
    page.get_by_role("option", name="zebra").click()
    expect(page.locator(".legend li")).to_have_count(2)
    assert f"run={first}&run={second}" in page.url
    expect(page.get_by_role("rowheader", name="lr")).to_be_visible()
    site.more(second, 1)
    expect(page.locator(".legend li").nth(1)).to_contain_text("step 21")
