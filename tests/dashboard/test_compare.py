"""Comparing runs: which are shown, what differs between them, and that the page follows live
runs."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import expect

from isentrope.client.connection import ApiError
from isentrope_dashboard.app import ASSETS
from isentrope_dashboard.components.basics import place_id
from isentrope_dashboard.figures.chart import smoothed
from isentrope_dashboard.figures.panel import Shown
from isentrope_dashboard.pages import charts, compare, metrics, overview, project
from isentrope_dashboard.pages.compare import differences
from isentrope_dashboard.theme import LINES, SHADES, color_of, look_of, looks_of
from isentrope_dashboard.view import View
from isentrope_server.store.reports.series import Series
from isentrope_server.store.reports.series import columns as reduce
from isentrope_wire.answers import RunDetail, SeriesColumns
from isentrope_wire.reports import StepReport
from tests.dashboard.conftest import OpenPage, Site
from tests.dashboard.made_answers import words

HOSTILE = "<img src=x onerror=alert(1)>"


def named_by_verl(report: StepReport) -> StepReport:
    return replace(report, scalars={"critic/score/mean": report.scalars["reward/mean"]})


def test_a_runs_page_shows_the_mean_and_range_of_its_seeds(site: Site) -> None:
    def half(report: StepReport) -> StepReport:
        return replace(
            report, scalars={**report.scalars, "entropy/mean": report.scalars["entropy/mean"] / 2}
        )

    config: dict[str, object] = {"optim": {"lr": 3e-6}}
    run = site.run(20, config={**config, "seed": 1})
    site.run(10, config={**config, "seed": 2}, change=half)
    site.run(20, config={"optim": {"lr": 1e-6}, "seed": 2})
    places = [
        (overview.PART, "chart-entropy"),
        (metrics.PART, place_id("chart", "entropy", "entropy/mean")),
    ]
    for part, chart in places:
        address = f"/runs/{run}?smooth=off&open=entropy"
        alone, grouped = (
            site.values(part, address + how)[chart]["data"] for how in ("", "&group=seed")
        )
        (mean,) = (trace for trace in grouped if trace.get("name") == "mean of 2 seeds")
        own = next(trace for trace in alone if str(trace.get("name")).startswith("entropy"))
        assert mean["y"] == pytest.approx(
            [value * (0.75 if at < 10 else 1) for at, value in enumerate(own["y"])], rel=1e-5
        )
        assert "seeds" not in str(alone)


def test_only_different_parameters_are_shown() -> None:
    configs = [
        {"lr": 1e-6, "model": {"layers": 2}},
        {"lr": 1e-6, "model": {"layers": 4}, "seed": 1},
    ]
    assert differences(configs) == {"model.layers": ["2", "4"], "seed": [None, "1"]}
    assert list(differences(configs, everything=True)) == ["lr", "model.layers", "seed"]
    assert differences([{"a": 1}, {"a": 1}]) == {}


def test_runs_are_drawn_under_their_own_names(site: Site) -> None:
    first, second = site.run(30, name=HOSTILE), site.run(20, change=named_by_verl)
    values = site.values(
        compare.PART, f"/compare?run={first}&run={second}&run=gone&metric=reward/mean&smooth=off"
    )
    assert len(values["compare-charts"]) == 1
    one, other = values[place_id("chart", "reward/mean")]["data"]
    assert one["line"] != other["line"]
    assert (len(one["x"]), len(other["x"])) == (30, 20)  # the second under its own framework's name
    assert HOSTILE not in str(one)
    assert "There is no run gone" in str(values["compare-legend"])
    values = site.values(
        compare.PART,
        f"/compare?run={first}&run={second}&metric=reward/mean&smooth=off&hide={second}",
    )
    (alone,) = values[place_id("chart", "reward/mean")]["data"]
    assert (alone["meta"], alone["line"]) == (first, one["line"])


def test_a_run_that_fails_leaves_the_others(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, third = (site.run(5) for _ in range(3))
    plain = charts.read_shown

    async def read_shown(
        client: Any, view: View, run: RunDetail, *rest: Any, **known: Any
    ) -> Shown:
        if run.id == first:
            raise ZeroDivisionError("planted")
        if run.id == second:
            raise ApiError("The database can't answer now.", 503, "store_unavailable")
        return await plain(client, view, run, *rest, **known)

    monkeypatch.setattr(charts, "read_shown", read_shown)
    address = f"/compare?run={first}&run={second}&run={third}&metric=reward/mean&smooth=off"
    values = site.values(compare.PART, address)
    assert len(values[place_id("chart", "reward/mean")]["data"]) == 1
    legend = words(values["compare-legend"])
    assert f"Run {first} can't be shown. ZeroDivisionError: planted" in legend
    assert f"Run {second} can't be read: The database can't answer now." in legend


def test_runs_of_one_name_are_told_apart(site: Site) -> None:
    runs = [site.run(5, name="twin"), site.run(5, name="twin"), site.run(5, name="other")]
    address = "/compare?metric=reward/mean&smooth=off" + "".join(f"&run={run}" for run in runs)
    lines = site.values(compare.PART, address)[place_id("chart", "reward/mean")]["data"]
    names = [f"twin {runs[0][-6:]}", f"twin {runs[1][-6:]}", "other"]
    assert [line["name"] for line in lines] == names
    for line, name in zip(lines, names, strict=True):
        assert line["hovertemplate"].startswith(name)


def test_looks_differ_and_stay() -> None:
    names = [f"run-{number}" for number in range(30)]
    looks = [look_of("dark", look) for look in looks_of(names)]
    assert len(set(looks)) == len(names)
    alone = [look_of("dark", looks_of([name])[0]) for name in names]
    assert {dash for _, dash in alone} == {"solid"}
    # A second of a colour has its other shade: dashes mean a forecast elsewhere.
    second = [look_of("dark", number + len(LINES["dark"])) for number in range(len(LINES["dark"]))]
    assert second == [(shade, "solid") for shade in SHADES["dark"]]
    of_a_hue = {*LINES["dark"], *SHADES["dark"]}
    assert {color for color, _ in looks} <= of_a_hue


def test_the_style_sheet_has_each_colour() -> None:
    style = (ASSETS / "00-base.css").read_text()
    light, dark = re.findall(r"^  (--line-0.*)$", style, re.MULTILINE)
    for scheme, declared in (("light", light), ("dark", dark)):
        assert re.findall(r"#\w+", declared) == list(LINES[scheme])  # type: ignore[index]
    assert color_of("run-1") == f"var(--line-{looks_of(['run-1'])[0]})"


def test_a_projects_runs_are_drawn_in_their_colours(site: Site) -> None:
    runs = [site.run(20, project="wall"), site.run(10, project="wall")]
    site.run(5, project="alone")
    values = site.values(project.PART, "/?project=wall&smooth=off")
    for metric in ("entropy/mean", "reward/mean"):
        lines = {line["meta"]: line for line in values[f"chart-project-{metric}"]["data"]}
        assert lines.keys() == set(runs)
        assert values[f"chart-project-{metric}"]["layout"]["yaxis"]["range"][0] == 0
        for (run, line), look in zip(lines.items(), looks_of([*lines]), strict=True):
            reported = site.client.series(run, metric).series[metric]
            assert (line["x"], line["y"]) == (reported.step, reported.value)
            assert line["line"]["color"] == look_of("light", look)[0]
    assert site.values(project.PART, "/?project=alone") == {"project": None}
    assert site.values(project.PART, "/") == {"project": None}  # of several projects


@pytest.mark.slow
@pytest.mark.browser
def test_a_projects_charts_follow_its_runs(site: Site, open_page: OpenPage) -> None:
    runs = [site.run(20, project="followed"), site.run(10, project="followed")]
    page = open_page("/?order=project&q=followed")
    page.get_by_role("button", name="Charts").click()
    expect(page.locator(".project-charts .js-plotly-plot")).to_have_count(2)
    site.more(runs[1], 5)
    page.wait_for_function(
        "run => document.querySelector('.project-charts .js-plotly-plot').data.some("
        "line => line.meta === run && line.x.at(-1) === 15)",
        arg=runs[1],
    )


def test_a_group_is_the_mean_of_its_runs_and_their_range() -> None:
    def columns(steps: list[int], values: list[float]) -> SeriesColumns:
        return SeriesColumns(step=steps, value=values, min=None, max=None)

    mean = compare.mean_of(
        [columns([1, 2, 3, 4], [1, 2, 3, 4]), columns([2, 4], [4, 8]), columns([], [])]
    )
    assert (mean.step, mean.value, mean.min, mean.max) == (
        [1, 2, 3, 4],
        [1, 3, 4.5, 6],
        [1, 2, 3, 4],
        [1, 4, 6, 8],
    )
    broken = compare.mean_of([columns([1, 2], [1, math.nan]), columns([1, 2], [2, 3])])
    assert broken.value[0] == 1.5
    assert math.isnan(broken.value[1])
    values = np.where(np.arange(60) % 10 == 9, 11.0, 1.0)
    seed = reduce(Series(steps=np.arange(60), values=values), 6)
    group = compare.mean_of([seed, seed])
    assert group.value == [11.0] * 6
    assert smoothed(group, 9) == pytest.approx([2.0] * 6)


def test_runs_that_differ_in_the_seed_are_one_line(site: Site) -> None:
    def run(lr: float, seed: int) -> str:
        config = {"optim": {"lr": lr}, "seed": seed, "output_dir": f"out/{lr}-{seed}"}
        return site.run(10 + seed, config=config, tags=(f"lr-{lr}",) if seed else ())

    ids = [run(lr, seed) for lr in (1e-6, 1e-5) for seed in (0, 1, 2)]
    address = "/compare?metric=entropy/mean&smooth=off&" + "&".join(
        f"run={run_id}" for run_id in ids
    )
    for by, names in {
        "seed": ["optim.lr 1e-06", "optim.lr 1e-05"], "tag": ["no tag", "lr-1e-06", "lr-1e-05"], 
            "none": [f"recorded {run_id[-6:]}" for run_id in ids],
    }.items():  # fmt: skip
        values = site.values(compare.PART, f"{address}&group={by}")
        lines = [
            trace
            for trace in values[place_id("chart", "entropy/mean")]["data"]
            if trace.get("name")
        ]
        assert [line["name"] for line in lines] == names
    assert "Band: lowest to highest" in str(
        site.values(compare.PART, f"{address}&group=seed")["compare-legend"]
    )


@pytest.mark.slow
@pytest.mark.browser
def test_runs_are_found_and_stay_in_the_address(site: Site, open_page: OpenPage) -> None:
    first = site.run(20, name="first", config={"lr": 1})
    second = site.run(20, name="zebra", config={"lr": 2})
    page = open_page(f"/compare?run={first}")
    expect(page.locator(".legend li")).to_have_count(1)
    page.get_by_role("textbox", name="Runs, at most 36").fill("zebra")
    page.get_by_role("option", name="zebra").click()
    expect(page.locator(".legend li")).to_have_count(2)
    assert f"run={first}&run={second}" in page.url
    expect(page.get_by_role("rowheader", name="lr")).to_be_visible()
    page.keyboard.press("Escape")
    page.locator(f".legend [data-line={first}]").click()
    expect(page.locator(".legend .hidden-line")).to_contain_text("first")
    site.more(second, 1)
    expect(page.locator(".legend li").nth(1)).to_contain_text("step 21")
