"""The overview: what its charts and numbers say of a run, and that they follow it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from dash import html
from playwright.sync_api import expect

import isentrope_dashboard
from isentrope.client import calls
from isentrope_dashboard.figures.chart import EMPTY, Scale
from isentrope_dashboard.figures.panel import Forecast, Mark, Shown
from isentrope_dashboard.figures.panels import OVERVIEW
from isentrope_dashboard.pages import overview
from isentrope_server.digests import renew_digests
from isentrope_wire.answers import HealthLevel, SeriesColumns
from isentrope_wire.control import Control
from isentrope_wire.control_answers import EntropyForecast, Estimate, PredictedEffect
from isentrope_wire.diagnosis.health import Diagnosis
from isentrope_wire.metrics import CLIP_FRACTION, ENTROPY_MEAN, ENTROPY_OBSERVED_CHANGE
from isentrope_wire.reports import AlertLevel, RunFinished
from tests.dashboard.conftest import OpenPage, Site, apart
from tests.dashboard.made_answers import version
from tests.dashboard.made_answers import words as said

ASSETS = Path(isentrope_dashboard.__file__).parent / "assets"


def test_entropy_chart_shows_the_early_level_and_the_reported_values(site: Site) -> None:
    run = site.run(20)
    values = site.values(overview.PART, f"/runs/{run}")
    reported = site.client.series(run, "entropy/mean").series["entropy/mean"]
    line = next(
        trace for trace in values["chart-entropy"]["data"] if trace.get("name") == "entropy"
    )
    assert line["x"] == reported.step
    assert line["y"] == reported.value
    early = sorted(reported.value[:3])[1]
    levels = [
        shape["y0"]
        for shape in values["chart-entropy"]["layout"]["shapes"]
        if shape.get("xref") == "paper"
    ]
    assert levels == pytest.approx([early, 0.75 * early, 0.5 * early])


def drawn(course: Callable[[int], float], *, every: int = 1, **known: Any) -> dict[str, Any]:
    """The entropy chart of 100 values, `every` so many steps one."""
    steps = list(range(0, 100 * every, every))
    entropy = SeriesColumns(step=steps, value=[course(step) for step in steps], min=None, max=None)
    fields: dict[str, Any] = {"early_level": 1.0, "series": {ENTROPY_MEAN: entropy}} | known
    figure = OVERVIEW[0].figure(
        Shown(scheme="dark", scale=Scale(), first=0, last=steps[-1], **fields)
    )
    assert not isinstance(figure, str)
    return figure


@pytest.mark.parametrize(("every", "end"), [(1, 99 + 50), (1000, 99_000 + 7_920)])
def test_every_alert_and_control_is_marked_at_any_length(every: int, end: int) -> None:
    marks = [
        Mark(step=41 * every + 1, label="Watch", kind="watch", text="R² fell below 0"),
        Mark(step=60 * every, label="v1 · Clip_V", is_active=True),
        Mark(step=98 * every + 1, label="Act", kind="act", text="half is lost"),
    ]

    def course(step: int) -> float:
        return 1 - 0.005 * step / every

    figure = drawn(course, every=every, marks=marks, forecasts=[forecast(0.5, label="as now")])
    triangles = {
        trace["text"][0]: trace["x"][0]
        for trace in figure["data"]
        if "triangle" in str(trace.get("marker"))
    }
    assert triangles == {"R² fell below 0": 41 * every + 1, "half is lost": 98 * every + 1}
    assert [(pill["x"], pill["text"]) for pill in figure["layout"]["meta"]["pills"]] == [
        (60 * every, "v1")
    ]
    assert [shape["x0"] for shape in figure["layout"]["shapes"]].count(60 * every) == 1
    assert figure["layout"]["xaxis"]["range"] == [0, end]
    assert drawn(course, every=every)["layout"]["xaxis"]["range"] == [0, 99 * every]


def test_each_key_above_a_chart_has_a_colour() -> None:
    css = (ASSETS / "00-base.css").read_text(encoding="utf-8")
    named = {color for panel in OVERVIEW for _, _, color in panel.keys}
    assert {name for name in named if css.count(f"--{name}: ") != 2} == set()


def test_a_zoomed_axis_follows_what_is_seen() -> None:
    figure = drawn(lambda step: 1 - 0.005 * step, zoom=(40.0, 60.0))
    low, high = figure["layout"]["yaxis"]["range"]
    assert 0.65 < low < 0.7
    assert 0.8 < high < 0.85


def forecast(end: float, **known: Any) -> Forecast:
    steps = list(range(100, 150))
    values = [0.6 + (end - 0.6) * (step - 99) / 50 for step in steps]
    course = EntropyForecast(
        step=steps, entropy=values, low=[0.8 * v for v in values], high=[1.2 * v for v in values]
    )
    return Forecast(course=course, pace=-0.004, **known)


@pytest.mark.parametrize(("unchanged", "helped"), [(0.3, 0.58), (0.55, 0.4)])
def test_the_forecasts_are_drawn_as_they_were_answered(unchanged: float, helped: float) -> None:
    lines = [
        forecast(unchanged, label="as now", has_band=True),
        forecast(helped, label="with Clip_V 1.0", tone="hold"),
    ]
    figure = drawn(lambda step: 1 - 0.004 * step, forecasts=lines)
    strokes = [trace for trace in figure["data"] if trace.get("x") == list(range(100, 150))]
    assert [trace["y"] for trace in strokes] == [line.course.entropy for line in lines]  # type: ignore[union-attr]
    band = next(trace for trace in figure["data"] if trace.get("fill") == "toself")
    assert max(band["y"]) == pytest.approx(1.2 * max(lines[0].course.entropy))  # type: ignore[union-attr]
    labels = {one["text"]: one["y"] for one in figure["layout"]["meta"]["ends"]}
    assert labels["Act 0.500"] == 0.5
    ends = [y for text, y in labels.items() if text.startswith("<b>")]
    assert ends == [line.course.entropy[-1] for line in lines]  # type: ignore[union-attr]


def test_a_pace_ahead_lies_within_its_chart() -> None:
    change = SeriesColumns(step=[1, 2, 3], value=[0.001, 0.002, 0.001], min=None, max=None)
    for pace in (-0.03, 0.03):
        lines = [replace(forecast(0.5, label="as now"), pace=pace)]
        shown = Shown(
            scheme="dark", scale=Scale(), first=1, last=3, forecasts=lines,
            series={ENTROPY_OBSERVED_CHANGE: change},
        )  # fmt: skip
        figure = OVERVIEW[2].figure(shown)
        assert not isinstance(figure, str)
        low, high = figure["layout"]["yaxis"]["range"]
        assert low < pace < high


def test_what_the_form_tries_has_room_in_the_charts(site: Site) -> None:
    tried = Control(method="clip_b", mu_low=1.0)
    outlook = site.client.ask(calls.outlook(site.run(56), tried))
    assert [line.label for line in overview.forecasts(outlook)] == ["as now", "with Clip_V"]
    lines = overview.forecasts(outlook, tried)
    assert [line.label for line in lines] == ["as now", "with Clip_B"]
    assert outlook.preview is not None
    assert lines[1].clip_fraction == outlook.preview.clip_fraction


@pytest.mark.browser
def test_a_new_step_is_painted(site: Site, open_page: OpenPage) -> None:
    run = site.run(12)
    page = open_page(f"/runs/{run}")
    expect(page.locator("#run-step")).to_have_text("12")
    site.more(run, 1)
    expect(page.locator("#run-step")).to_have_text("13")
    page.wait_for_function(
        "() => document.querySelector('#chart-entropy .js-plotly-plot').data.find(t => t.name ==="
        " 'entropy').x.at(-1) === 13"
    )


@pytest.mark.slow
@pytest.mark.browser
def test_back_ends_a_zoom(site: Site, open_page: OpenPage) -> None:
    page = open_page(f"/runs/{site.run(40)}")
    plot = page.locator("#chart-entropy .nsewdrag")
    expect(plot).to_be_attached()
    box = plot.bounding_box()
    assert box is not None
    height = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + 60, height)
    page.mouse.down()
    page.mouse.move(box["x"] + 200, height, steps=5)
    page.mouse.up()
    page.wait_for_url("**zoom=**")
    page.go_back()
    page.wait_for_function("() => !location.search.includes('zoom')")
    expect(page.locator("#run-step")).to_have_text("40")
    expect(page.locator("body")).not_to_have_attribute("data-zoomed", "")


def test_the_promise_of_the_active_control_stays() -> None:
    promised = [0.6 - 0.001 * step for step in range(1, 51)]
    unchanged = [0.6 - 0.004 * step for step in range(1, 51)]
    effect = PredictedEffect(
        steps=10,
        clip_fraction=0.01,
        clip_fraction_std=0.0,
        change=0.003,
        change_error=0.001,
        pace=None,
        forecast=promised,
        unchanged=unchanged,
    )
    control = Control(method="clip_v", mu_low=3.0)
    pushed = replace(version(1, "APPLIED", control, 61), requested_step=60, predicted=effect)
    figure = drawn(lambda step: 1 - 0.004 * step, history=[pushed])
    drawn_lines = {tuple(trace["y"]) for trace in figure["data"] if trace.get("x", [0])[0] == 61}
    assert {tuple(promised), tuple(unchanged)} <= drawn_lines
    labels = {end["text"] for end in figure["layout"]["meta"]["ends"]}
    assert {"<b>promised</b><br>0.550 at 110", "<b>without it</b><br>0.400 at 110"} <= labels


@pytest.mark.parametrize(
    ("pace", "words"), [(-0.0027, "−0.9\u00a0% a step"), (-1.5e-7, "level"), (None, "–")]
)
def test_the_pace_is_a_share_of_the_entropy(site: Site, pace: float | None, words: str) -> None:
    mean = None if pace is None else Estimate(value=pace, low=pace, high=pace)
    known = replace(_diagnosis(site), entropy=0.3, mean_pace=mean, pace=mean)
    assert words in said(overview.pace_card(known, EMPTY))


def test_an_unclear_pace_is_not_written_large(site: Site) -> None:
    pace = Estimate(value=-0.0027, low=-0.006, high=0.001)
    known = replace(_diagnosis(site), entropy=0.3, mean_pace=pace, pace=pace)
    assert said(overview.pace_card(known, EMPTY)).split()[4:] == [
        "unclear", "about", "−0.0027", "nats", "a", "step"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("level", "lost", "look", "flag"),
    [
        (HealthLevel.HEALTHY, 0.05, "ok", ["Healthy"]),
        (HealthLevel.HEALTHY, 0.38, "ok", ["Healthy", "38\u00a0%", "lost"]),
        (HealthLevel.HOLDING, 0.62, "ok", ["Holding", "62\u00a0%", "lost"]),
        (HealthLevel.HOLDING, 0.98, "watch", ["Held", "low", "98\u00a0%", "lost"]),
        (HealthLevel.ACT, 0.98, "act", ["Act"]),
    ],
)
def test_the_flag_says_what_was_lost(
    site: Site, level: HealthLevel, lost: float, look: str, flag: list[str]
) -> None:
    run_id = site.run(3)
    known = replace(_diagnosis(site), level=level, share_lost=lost)
    line = overview.health_line(known, site.client.run(run_id))
    assert said(line.children[0]).split(" ") == flag
    assert look in line.className.split()


def test_clipped_counts_the_steps_under_the_control(site: Site) -> None:
    clipped = SeriesColumns(
        step=[4, 5, 6, 7, 8], value=[0.0, 0.0, 0.0, 0.02, 0.04], min=None, max=None
    )
    newest: dict[str, SeriesColumns] = {CLIP_FRACTION: clipped}
    for since, words in (
        (7, "Clipped 2 steps under the control 3.0\u00a0%"),
        (0, "Clipped last 5 steps 0.0\u00a0%"),
        (9, "Clipped last 5 steps 0.0\u00a0%"),
    ):
        cards = overview.kpi_cards(_diagnosis(site), {}, {}, newest, since=since)
        assert " ".join(said(cards[-1]).split(" ")).startswith(words)


def test_an_ended_run_shows_the_number_of_the_list(site: Site) -> None:
    run_id = site.run(40, finished=RunFinished(status="finished", finished_at=1.0, error=""))
    values = site.values(overview.PART, f"/runs/{run_id}")
    entropy, reward, pace, _ = (said(card).split() for card in values["kpis"])
    apart(renew_digests(site.server.backend, rest=0))
    digest = site.client.run(run_id).digest
    assert digest is not None
    assert (entropy[5], reward[5]) == (f"{digest.entropy:.3f}", f"{digest.reward:.3f}")
    assert " ".join(entropy[:5]) == "Entropy nats, last 5 steps"
    assert " ".join(pace[5:]) == "the run is over"


def test_an_ended_run_names_its_worst_alert(site: Site) -> None:
    run_id = site.run(40, finished=RunFinished(status="finished", finished_at=1.0, error=""))
    run, (alert, *_) = site.client.run(run_id), site.client.ask(calls.alerts(run_id)).items
    urgent = replace(alert, step=33, kind="collapse", level=AlertLevel.ACT)
    for alerts, words in (
        ([replace(urgent, level=AlertLevel.WATCH)], False),
        ([alert, urgent], True),
    ):
        line = said(overview.health_line(_diagnosis(site), run, alerts))
        assert ("Worst alert, at step 33: collapse." in line) == words


def test_the_banner_names_the_cause_in_words(site: Site) -> None:
    diagnosis, run = _diagnosis(site), site.client.run(site.run(3))
    rising = replace(diagnosis, pace=Estimate(value=0.01, low=0.005, high=0.015))
    assert "pull it up." in said(overview.health_line(rising, run))
    line = overview.health_line(diagnosis, run)
    assert "Unlikely tokens that are punished pull it down." in said(line)
    link = next(part for part in line.children if isinstance(part, html.A))
    assert link.href == "?tab=tokens&a=negative_low&sign=down"
    assert "ΔH" not in said(line)
    assert "More reward is not shown." in said(line)


def test_checks_without_data_say_what_would_give_it(site: Site) -> None:
    found = said(site.values(overview.CHECKS, f"/runs/{site.run(56)}")["checks"])
    assert "checks have data; found: collapse" in found
    assert "No data: needs " in found


def test_the_same_advice_of_two_checks_stands_once(site: Site) -> None:
    checks = site.client.ask(calls.checks(site.run(56))).items
    check = next(check for check in checks if check.cure)
    shown = said(overview.checks_line([check, replace(check, title="Other")]))
    assert shown.count(check.cure) == 1
    assert "What to do: as for " in shown
    advised = replace(check, message=f"{check.message} {check.cure}")
    assert said(overview.checks_line([advised])).count(check.cure) == 1


def test_see_the_check_opens_the_list(site: Site) -> None:
    message = "No control is suggested: see the check."
    line = overview.health_line(
        replace(_diagnosis(site), message=message), site.client.run(site.run(3))
    )
    assert said(line).count("see the check") == 1
    assert "show-checks" in str(line)


def _diagnosis(site: Site) -> Diagnosis:
    return site.client.diagnosis(site.run(56))


def test_cards_tell_small_and_large_rewards() -> None:
    shown = [overview.sized(value) for value in (0.97917, 0.0, 4e-5, -0.002, 1.25e9, None)]
    assert shown == ["0.979", "0.000", "4e−5", "−0.002", "1.25e9", "–"]
