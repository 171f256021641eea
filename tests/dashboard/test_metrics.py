"""The Metrics tab: which metrics are recognised, grouped and drawn, and how a chart shows what is
odd in them."""

from __future__ import annotations

import csv
import math
import time
from dataclasses import replace
from typing import Any

import pytest
from playwright.sync_api import expect

from isentrope_dashboard.components.basics import place_id
from isentrope_dashboard.figures.chart import Scale, log_ticks
from isentrope_dashboard.figures.panel import Panel, Shown, metric_panel
from isentrope_dashboard.live import Part
from isentrope_dashboard.pages import charts, metrics, overview
from isentrope_dashboard.pages.metrics import MOST_CHARTS, arrange
from isentrope_dashboard.view import View, listed
from isentrope_wire.metrics import (
    COMPLETION_LENGTH_MEAN,
    KL_REFERENCE,
    REWARD_MEAN,
    TRAIN_GRAD_NORM,
    reported_names,
)
from isentrope_wire.reports import RunFinished, StepReport
from tests.dashboard.conftest import OpenPage, Site
from tests.dashboard.made_answers import columns
from tests.server.rank import Rank, step_report

FRAMEWORKS = {
    "trl": ("reward", "grad_norm", "kl", "completions/mean_length"),
    "trl in W&B": ("train/reward", "train/grad_norm", "train/kl", "train/completions/mean_length"),
    "verl": ("critic/score/mean", "actor/grad_norm", "actor/kl_loss", "response_length/mean"),
    "slime": (
        "rollout/raw_reward",
        "train/grad_norm",
        "train/kl_loss",
        "rollout/response_len/mean",
    ),
    "prime-rl": (
        "reward/all/mean",
        "optim/grad_norm",
        "mismatch_kl/all/mean",
        "decode_len/all/mean",
    ),
    "OpenRLHF": ("reward", "kl", "response_length"),
}


@pytest.mark.parametrize("names", FRAMEWORKS.values(), ids=FRAMEWORKS)
def test_frameworks_names_are_at_a_glance(names: tuple[str, ...]) -> None:
    arranged = arrange({*names, "loss", "some/other"}, View())
    assert list(arranged.glance) == list(names)
    assert arranged.glance[names[0]] == "Reward"


def test_own_name_precedes_the_frameworks() -> None:
    known = reported_names({"reward", "reward/mean", "train/kl", "completion_length", "grad_norm"})
    assert known == {
        REWARD_MEAN: "reward/mean",
        KL_REFERENCE: "train/kl",
        COMPLETION_LENGTH_MEAN: "completion_length",
        TRAIN_GRAD_NORM: "grad_norm",
    }


def view(**query: str) -> View:
    return View(query=query)


def test_metrics_are_grouped_by_prefix() -> None:
    arranged = arrange({"loss", "rewards/a/mean", "rewards/b", "entropy/mean"}, view())
    assert {group.name: list(group.metrics) for group in arranged.groups} == {
        ".": ["loss"],
        "entropy": ["entropy/mean"],
        "rewards": ["rewards/a/mean", "rewards/b"],
    }
    assert [group.name for group in arranged.groups if group.is_open] == [
        ".",
        "rewards",
    ]  # the run's own


def test_few_of_300_metrics_are_drawn() -> None:
    names = {f"layer{number:02d}/{what}" for number in range(30) for what in "abcdefghij"}
    assert [group.name for group in arrange(names, view()).groups if group.is_open] == [
        "layer00",
        "layer01",
    ]
    assert len(arrange({f"one/{number}" for number in range(300)}, view()).drawn) == MOST_CHARTS
    arranged = arrange(names, view(open=listed(["layer00", "layer01", "layer20"])))
    charts = {group.name: group.charts for group in arranged.groups if group.is_open}
    assert charts == {"layer20": 10, "layer01": 10, "layer00": 4}  # opened last, drawn first
    assert arrange(names, view(open=listed([]))).drawn == []
    assert len(arrange(names, view(q="LAYER07/")).drawn) == 10


def test_address_keeps_names_with_commas() -> None:
    odd = "loss/a,b%2C&c"
    arranged = arrange({odd, "loss/z"}, view(pin=listed([odd]), open=listed([])))
    assert list(arranged.glance) == [odd]


def drawn(values: list[float], *, log: bool = False, **known: Any) -> dict[str, Any]:
    series = {"<b>loss</b>": columns(range(1, len(values) + 1), values, **known)}
    shown = Shown(
        scheme="dark", scale=Scale(), first=1, last=12, is_live=False, smooth=False, series=series
    )
    return charts.figure(metric_panel("<b>loss</b>", 200, log=log), shown)


def test_not_finite_values_are_gaps_with_marks() -> None:
    line, marks = drawn([1.0, math.nan, 3.0, math.inf, -math.inf, 2.0])["data"]
    assert line["y"] == [1.0, None, 3.0, None, None, 2.0]
    assert (marks["x"], marks["text"]) == ([2, 4, 5], ["NaN", "∞", "−∞"])
    assert marks["marker"]["symbol"] == ["x", "triangle-up", "triangle-down"]
    assert "<b>loss" not in line["hovertemplate"] + marks["hovertemplate"]


def test_reduced_series_has_an_envelope() -> None:
    band, line = drawn([2.0, 3.0, 4.0], low=[1.0, 0.0, 3.5], high=[2.5, 9.0, 4.0])["data"]
    assert band["fill"] == "toself"
    assert (min(band["y"]), max(band["y"])) == (0.0, 9.0)
    assert line["y"] == [2.0, 3.0, 4.0]


def test_logarithmic_axis_has_gaps_below_zero() -> None:
    figure = drawn([1e-6, 0.0, -1.0, 1e-2], log=True)
    assert figure["layout"]["yaxis"]["type"] == "log"
    assert figure["data"][0]["y"] == [1e-6, None, None, 1e-2]
    assert "type" not in drawn([-1.0, -2.0], log=True)["layout"]["yaxis"]
    assert log_ticks(-6.2, -1.8) == [1e-6, 1e-5, 1e-4, 1e-3, 1e-2]
    assert log_ticks(0.2, 0.9) == [2.0, 5.0]


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize(
    "values",
    [
        [1e9 + 128.0 * step for step in range(60)],
        [1.79e9 + 2.0 * step for step in range(60)],
        [8.5899345920e10 - 4096.0 * step for step in range(7)],
        [12345.0 + 0.01 * step for step in range(60)],
        [1e9 + 0.001, 1e9 + 0.002, 1e9 + 0.003],
    ],
    ids=["tokens", "clock", "bytes", "loss", "near"],
)
def test_values_far_from_zero_are_drawn_as_logged(values: list[float], log: bool) -> None:
    figure = drawn(values, log=log)
    (line,) = figure["data"]
    axis = figure["layout"]["yaxis"]
    low, high = (10**end for end in axis["range"]) if log else axis["range"]
    assert line["y"] == values
    assert all(low <= value <= high for value in values)
    assert len(set(line["text"])) == len(values)
    assert len(set(axis["ticktext"])) == len(axis["tickvals"]) >= 2


HUGE = {
    "beyond": [1e308, -1e308, 1.0],
    "huge": [1.0, 1e30, 1e300],
    "apart": [1e-300, 1.0, 1e300],
    "denormal": [5e-324, 1e-310, 2e-310],
    "float32": [3.4e38, 1.0, 2.0],
}


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("values", HUGE.values(), ids=HUGE)
def test_largest_and_least_values_fail_alone(values: list[float], log: bool) -> None:
    """Each is drawn within an axis that numbers can hold, or a sentence says why not."""
    layout = drawn(values, log=log)["layout"]
    if "annotations" in layout:
        assert "can't be drawn" in layout["annotations"][0]["text"].replace("<br>", " ")
    else:
        low, high = layout["yaxis"]["range"]
        assert 1e-300 < high - low < 1e308
        assert layout["yaxis"]["ticktext"]


def test_a_failing_figure_is_a_chart_that_says_so(caplog: pytest.LogCaptureFixture) -> None:
    def fail(_panel: Panel, _shown: Shown) -> str:
        raise KeyError("<b>what")

    shown = Shown(scheme="dark", scale=Scale(), first=1, last=1)
    figure = charts.figure(replace(metric_panel("a", 200), draw=fail), shown)
    words = figure["layout"]["annotations"][0]["text"].replace("<br>", " ")
    assert words.startswith("This chart failed. KeyError: '&lt;b&gt;what'.")
    assert "KeyError" in caplog.text


def odd(report: StepReport) -> StepReport:
    added = {"<img src=x onerror=alert(1)>/<b>": 1.0, "zz/nan": math.nan}
    return replace(report, scalars={**report.scalars, **added})


def test_zoom_reads_the_steps_of_the_zoom(site: Site) -> None:
    run = site.run(40)
    values = site.values(
        metrics.PART, f"/runs/{run}?tab=metrics&q=reward/mean&zoom=10~20&smooth=off"
    )
    figure = values[place_id("chart", "glance", "reward/mean")]
    assert figure["data"][0]["x"] == list(range(9, 22))
    assert figure["layout"]["xaxis"]["range"] == [10.0, 20.0]


@pytest.mark.slow
@pytest.mark.parametrize("part", [metrics.PART, overview.PART], ids=["metrics", "overview"])
def test_time_axis_of_a_long_run_ends_where_it_ends(site: Site, part: Part) -> None:
    """6 000 steps of 1 s, each tenth 11 s."""
    rank = Rank(site.server, name="long")
    for first in range(1, 6001, 500):
        rank.send(
            *(
                step_report(
                    step,
                    {
                        "time/step_seconds": 11.0 if step % 10 == 0 else 1.0,
                        "reward/mean": 1.0,
                        "entropy/mean": 1.0,
                    },
                )
                for step in range(first, first + 500)
            )
        )
    rank.send(RunFinished(status="finished", finished_at=time.time(), error=""))
    values = site.values(part, f"/runs/{rank.run_id}?x=time")
    charts = [
        value["layout"]
        for value in values.values()
        if isinstance(value, dict) and "layout" in value
    ]
    ends = [layout["xaxis"]["range"][1] for layout in charts if "range" in layout["xaxis"]]
    assert ends
    assert ends == pytest.approx([12_000.0] * len(ends))


LOGGED = [1e9 + 0.25, math.nan, math.inf, -math.inf, *(1e9 + step for step in range(26))]


def counted(report: StepReport) -> StepReport:
    return replace(report, scalars={"a<b>/c": LOGGED[report.step - 1]})


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.parametrize("smooth", ["off", "on"])
def test_saved_numbers_are_those_logged(site: Site, open_page: OpenPage, smooth: str) -> None:
    run = site.run(30, change=counted)
    page = open_page(f"/runs/{run}?tab=metrics&smooth={smooth}")
    page.wait_for_selector(".metric .main-svg")
    page.locator(".metric details.menu summary").first.click()
    with page.expect_download() as saving:
        page.locator(".metric [data-save=csv]").first.click()
    rows = list(csv.DictReader(saving.value.path().read_text("utf-8").splitlines()))
    own = {int(row["step"]): float(row["a<b>/c"]) for row in rows if row["line"] == "a<b>/c"}
    assert own == pytest.approx(dict(enumerate(LOGGED, start=1)), rel=0, abs=0, nan_ok=True)
    means = [row for row in rows if row["line"] == "a<b>/c, mean of 9 steps"]
    assert len(rows) == len(own) + len(means)
    assert len(means) == {"off": 0, "on": 27}[smooth]


@pytest.mark.slow
@pytest.mark.browser
def test_groups_open_and_follow_the_run(site: Site, open_page: OpenPage) -> None:
    run = site.run(30, change=odd)
    page = open_page(f"/runs/{run}?tab=metrics")
    glance = page.locator(".metrics > section").first
    expect(glance.locator(".metric")).to_have_count(6)
    heading = page.locator(".group-heading", has_text="entropy")
    expect(heading).to_have_attribute("aria-expanded", "false")
    heading.click()
    expect(heading).to_have_attribute("aria-expanded", "true")
    assert "entropy" in page.url
    page.wait_for_function("() => document.querySelectorAll('.metric .main-svg').length > 20")
    page.evaluate("document.querySelector('.metric .js-plotly-plot').kept = true")
    site.more(run, 1)
    newest = "() => document.querySelector('.metric .js-plotly-plot').data[0].x.at(-1) === 31"
    page.locator(
        ".metric"
    ).first.scroll_into_view_if_needed()  # what is out of sight is not redrawn
    page.wait_for_function(newest)
    # Charts are redrawn, not made again.
    assert page.evaluate("document.querySelector('.metric .js-plotly-plot').kept")
    page.get_by_label("Pin entropy/gain to the top").click()
    expect(glance.locator(".metric")).to_have_count(7)
    page.get_by_label("Search metrics").fill("nan")
    expect(page.locator(".metric")).to_have_count(1)
