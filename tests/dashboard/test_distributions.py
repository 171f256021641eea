"""The tab of distributions: histograms on one axis, thresholds, panels, and the step that is
chosen."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import expect

from isentrope_dashboard.figures import panel
from isentrope_dashboard.figures.chart import Scale
from isentrope_dashboard.figures.heat import (
    MAXIMUM_BINS,
    levels,
    quantile,
    share_axis,
    thresholds,
)
from isentrope_dashboard.figures.panel import Mark, Panel, Shown
from isentrope_dashboard.figures.panels import DISTRIBUTIONS
from isentrope_dashboard.pages import distributions, steps
from isentrope_dashboard.pages.steps import NO_STEP
from isentrope_wire import answers
from isentrope_wire.answers import HistogramColumns
from isentrope_wire.control import Control
from isentrope_wire.reports import LIKELY_CAUSE, StepReport
from tests.dashboard.conftest import OpenPage, Site
from tests.dashboard.made_answers import columns, version
from tests.dashboard.made_answers import histograms as made

SHOWN = Shown(scheme="light", scale=Scale(), first=1, last=9, is_live=False)
PANELS = {one.name: one for one in DISTRIBUTIONS}


def heat_of(panel: Panel, histograms: HistogramColumns) -> dict[str, Any]:
    """The trace of a heat map."""
    assert panel.quantity is not None
    figure = panel.figure(
        replace(SHOWN, histograms={panel.quantity.histogram: histograms}, chosen=1)
    )
    assert not isinstance(figure, str)
    trace: dict[str, Any] = figure["data"][0]
    return trace


def symmetric(*rows: tuple[float, list[int]]) -> HistogramColumns:
    """One histogram over [-reach, reach] per step."""
    reaches = [reach for reach, _ in rows]
    return made(
        range(1, len(rows) + 1),
        [-reach for reach in reaches],
        reaches,
        [counts for _, counts in rows],
    )


def test_wide_bins_are_spread_evenly_over_narrow_ones() -> None:
    axis = share_axis(symmetric((1.0, [4, 0, 2, 2]), (2.0, [8, 4, 4, 0])))
    assert axis.edges.tolist() == [-2, -1.5, -1, -0.5, 0, 0.5, 1]
    assert (8 * axis.shares[0]).tolist() == [0, 0, 4, 0, 2, 2]
    assert (16 * axis.shares[1]).tolist() == [4, 4, 2, 2, 2, 2]


def test_no_token_is_lost_but_in_the_tails() -> None:
    rng = np.random.default_rng(5)
    rows = symmetric(
        *[(2.0 ** int(k), rng.integers(1, 50, 64).tolist()) for k in rng.integers(-2, 3, 30)]
    )
    axis = share_axis(rows)
    assert len(axis.edges) - 1 <= MAXIMUM_BINS
    assert axis.shares.sum(axis=1) == pytest.approx(1.0, abs=1e-12)


def test_one_far_token_does_not_coarsen_the_axis() -> None:
    far = [0] * 64
    far[32:34], far[-1] = [5000, 4999], 1
    axis = share_axis(symmetric((0.5, [20] * 64), (64.0, far)))
    assert float(axis.edges[1] - axis.edges[0]) <= 4 / MAXIMUM_BINS * 2


def test_a_step_that_counted_nothing_is_a_gap() -> None:
    axis = share_axis(symmetric((1.0, [0, 0]), (1.0, [1, 3])))
    assert np.isnan(axis.shares[0]).all()
    assert axis.shares[1].tolist() == [0.25, 0.75]


@pytest.mark.parametrize(
    ("share", "expected"), [(0.0, -1.0), (0.25, -0.5), (0.5, 0.0), (1.0, 1.0), (0.01, -0.98)]
)
def test_quantiles_of_a_uniform_distribution_are_linear(share: float, expected: float) -> None:
    assert quantile(share, [10] * 8, -1.0, 1.0) == pytest.approx(expected)


def test_a_bright_bin_does_not_set_the_colours() -> None:
    counts = [1] * 31 + [9000] + [10] * 32
    heat = heat_of(PANELS["vocab-centered"], symmetric((1.0, counts), (1.0, counts)))
    cells = [cell for row in heat["z"] for cell in row if cell is not None]
    assert max(cells) > 90
    assert heat["zmax"] < 5


def test_tokens_that_no_bin_counts_are_marked() -> None:
    found = replace(made([1, 2, 3], [0.0] * 3, [1.0] * 3, [[1, 3]] * 3), not_finite=[0, 1200, 0])
    panel = PANELS["probability"]
    shown = Shown(
        scheme="dark",
        scale=Scale(),
        first=1,
        last=3,
        is_live=False,
        histograms={str(panel.quantity and panel.quantity.histogram): found},
    )
    figure = panel.figure(shown)
    assert isinstance(figure, dict)
    (marks,) = [trace for trace in figure["data"] if trace.get("mode") == "markers"]
    assert (marks["x"], marks["text"]) == ([2], ["1,200 tokens: NaN or infinite"])


def test_missing_steps_are_empty_columns() -> None:
    found = made([1, 2, 3, 9, 10], [0.0] * 5, [1.0] * 5, [[1, 3]] * 5)
    heat = heat_of(PANELS["probability"], found)
    assert [x for x, cell in zip(heat["x"], heat["z"][0], strict=True) if cell is None] == [4, 8]


def test_thresholds_are_those_of_the_method_that_was_active() -> None:
    vocab_centered, discriminator = (
        PANELS["vocab-centered"].quantity,
        PANELS["discriminator"].quantity,
    )
    assert vocab_centered
    assert discriminator
    history = [
        version(2, "APPLIED", Control(method="clip_b", mu_low=1.0, mu_high=2.0), 6),
        version(1, "APPLIED", Control(method="clip_v", mu_high=2.0), 4),
        version(0, "APPLIED", Control(), 0),
    ]
    series = {
        "control/mu_high": columns([4, 5, 6, 7], [2.0, 2.0, 2.0, 2.0]),
        "control/mu_low": columns([6, 7], [1.0, 1.0]),
        "score/vocab_centered_std": columns(range(1, 8), [0.25] * 7),
        "score/discriminator_std": columns(range(1, 8), [0.5] * 7),
        "score/discriminator_mean": columns(range(1, 8), [0.125] * 7),
    }
    scalars = {"score/discriminator_mean": 0.125, "score/discriminator_std": 0.5}
    report = answers.StepReport(
        step=7,
        recorded_at=0,
        received_at=0,
        control_version=0,
        incarnation="a",
        rank=0,
        scalars=scalars,
        histograms=[],
        labels={},
    )
    shown = replace(SHOWN, series=series, history=history, chosen=7, report=report)
    assert thresholds(vocab_centered, shown) == {"µ₊": {4: (2.0, 0.5), 5: (2.0, 0.5)}}
    assert thresholds(discriminator, shown) == {
        "µ₊": {6: (2.0, 1.125), 7: (2.0, 1.125)},
        "µ₋": {6: (1.0, -0.375), 7: (1.0, -0.375)},
    }
    assert levels(discriminator, shown) == [
        (1.125, "µ₊ 2.00", "upper"),
        (-0.375, "µ₋ 1.00", "upper"),
    ]
    assert [value for value, _, _ in levels(discriminator, replace(shown, chosen=3))] == [
        0.625,
        -0.375,
    ]


def test_a_panel_says_why_it_is_absent() -> None:
    ratios, mechanisms = PANELS["ratios"], PANELS["mechanisms"]

    def why(one: Panel, **series: list[float]) -> str:
        named = {
            name.replace("__", "/"): columns(range(len(values)), values)
            for name, values in series.items()
        }
        return panel.absent(one, replace(SHOWN, series=named))

    assert why(ratios) == ratios.needs
    assert why(ratios, ratio__mean=[1.0, 1.0002]) == ratios.rest
    assert why(ratios, ratio__max=[1.0, 1.2]) == ""
    assert why(mechanisms) == mechanisms.needs
    assert why(mechanisms, change__by_policy_loss=[0.1]) == mechanisms.rest
    assert why(mechanisms, change__by_entropy_bonus=[0.1]) == ""


def test_slider_marks_have_labels_where_there_is_room() -> None:
    found = [
        Mark(step=50, label="Watch", kind="watch"),
        Mark(step=52, label="v1 · µ₊ 1"),
        Mark(step=52, label="Act", kind="act"),
    ]
    assert steps.labelled(found, 1, 100) == {50: "Watch", 52: ""}
    assert steps.labelled(found[1:], 1, 100) == {52: "v1"}


def test_the_tab_shows_the_chosen_step(site: Site) -> None:
    run = site.run(20)
    values = site.values(distributions.PART, f"/runs/{run}?tab=distributions&step=7")
    figure = values["chart-token-entropy"]
    report = site.client.step(run, 7)
    reported = next(known for known in report.histograms if known.name == "entropy/token")
    bars = next(trace for trace in figure["data"] if trace["type"] == "bar")
    assert bars["name"] == "step 7"
    shares = [tokens / sum(reported.counts) for tokens in reported.counts if tokens]
    assert bars["x"] == pytest.approx(
        [math.sqrt(share) for share in shares[: len(bars["x"])]], abs=1e-5
    )
    heat = figure["data"][0]
    assert heat["x"] == list(range(1, 21))
    for column in zip(*heat["z"], strict=True):
        assert sum(cell or 0 for cell in column) == pytest.approx(100, abs=1)
    hidden = {name for name in PANELS if values[f"place-{name}"]}
    assert {"ratios", "kl", "samples", "mechanisms"} <= hidden
    assert not hidden & {"quadrants", "covariance", "difficulty", "vocab-centered"}


def test_an_unreported_step_is_the_nearest_reported_one(site: Site) -> None:
    run = site.run(10)
    _, before, number, after, _, follow, *_ = site.values(steps.PART, f"/runs/{run}?step=99")[
        "step-bar"
    ]
    assert [number["props"][name] for name in ("min", "max", "data-value")] == [1, 10, 10]
    assert [getattr(button, "data-show") for button in (before, after)] == [
        '{"step": 9}',
        '{"step": null}',
    ]
    assert after.disabled
    assert getattr(follow, "aria-pressed") == "false"
    newest = site.values(steps.PART, f"/runs/{run}")["step-bar"]
    assert getattr(newest[5], "aria-pressed") == "true"


def test_a_run_without_reports_shows_what_would_make_panels_appear(site: Site) -> None:
    bare = site.run(1, change=lambda report: replace(report, histograms=(), scalars={"loss": 1.0}))
    empty = site.run(0)
    of_bare, of_empty = (
        site.values(distributions.PART, f"/runs/{run}?tab=distributions") for run in (bare, empty)
    )
    assert all(values[f"place-{name}"] for name in PANELS for values in (of_bare, of_empty))
    assert PANELS["kl"].needs in str(of_bare["not-shown"])
    assert NO_STEP in str(of_empty["not-shown"])


def test_the_likely_cause_is_named_in_its_step_only(site: Site) -> None:
    def marked(report: StepReport) -> StepReport:
        return (
            replace(report, labels={**report.labels, LIKELY_CAUSE: "mask: <b>"})
            if report.step == 3
            else report
        )

    run = site.run(4, change=marked)
    assert "mask: <b>" in str(
        site.values(distributions.PART, f"/runs/{run}?step=3")["likely-cause"]
    )
    assert site.values(distributions.PART, f"/runs/{run}?step=4")["likely-cause"] == []


@pytest.mark.slow
@pytest.mark.browser
def test_a_step_is_chosen_by_keys_by_click_and_followed(site: Site, open_page: OpenPage) -> None:
    run = site.run(30)
    page = open_page(f"/runs/{run}?tab=distributions")
    number = page.get_by_role("spinbutton", name="Step", exact=True)
    expect(number).to_have_value("30")
    page.get_by_role("button", name="Previous step").click()
    expect(number).to_have_value("29")
    assert "step=29" in page.url
    page.get_by_role("slider", name="Step", exact=True).focus()
    page.keyboard.press("ArrowLeft")
    expect(number).to_have_value("28")
    page.locator("#chart-quadrants .nsewdrag").first.click(position={"x": 20, "y": 60})
    expect(number).to_have_value(re.compile("^[1-9]$"))
    page.get_by_role("button", name="Follow live").click()
    expect(number).to_have_value("30")
    site.more(run, 1)
    expect(number).to_have_value("31")
    assert "step=" not in page.url
    page.locator(
        "#chart-probability"
    ).scroll_into_view_if_needed()  # what is out of sight is not redrawn
    page.wait_for_function(
        "() => document.querySelector('#chart-probability .js-plotly-plot').data[0].x.at(-1) === 31"
    )
    page.locator("#copy-link").click()
    expect(page.locator(".said")).to_be_visible()
    # Keys work after a choice, too.
    page.get_by_text("Raw", exact=True).click()
    expect(page).to_have_url(re.compile("smooth=off"))
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_contain_text("Search")
    page.keyboard.press("Escape")
    page.keyboard.press("5")
    expect(page).to_have_url(re.compile("tab=config"))
