"""What a run's page shows, and how it stays up to date, in a real browser."""

from __future__ import annotations

import re
import time

import pytest
from playwright.sync_api import expect

from isentrope_dashboard.components.load_errors import PLACES
from tests.dashboard.conftest import OpenPage
from tests.dashboard.fake_api import FakeApi
from tests.dashboard.on_the_page import (
    PATH,
    choose_clip_v,
    choose_metric,
    entropy_chart,
    eventually,
    expect_chart,
    wait_for_step,
)
from tests.dashboard.test_diagnosis import TOKEN
from tests.dashboard.test_load_errors import PLACES_OF_CALLS

pytestmark = [pytest.mark.browser, pytest.mark.slow]

HOSTILE = "<img src=x onerror=\"document.title='owned'\">"
HOSTILE_METRIC = "eval/<img src=x onerror=alert(1)>"


def test_the_chart_grows_is_not_interrupted_keeps_its_zoom_and_slides(fake: FakeApi, open_page: OpenPage) -> None:
    run = fake.add_run(steps=20)
    page = open_page(PATH).page
    fake.add_steps(run)  # the prediction's first value
    wait_for_step(page, 21)
    eventually(page, "data[4].mode", "lines+markers")
    fake.add_steps(run)
    eventually(page, "data[4].mode", "lines")
    eventually(page, "data[4].y.filter((value) => value !== null).length", 2)

    fake.add_steps(run, 79)
    wait_for_step(page, 101)
    eventually(page, "data[2].x.length", 101)

    box = page.locator("#entropy-graph .nsewdrag").first.bounding_box()
    assert box is not None
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + 0.3 * box["width"], middle)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.6 * box["width"], middle, steps=5)
    page.mouse.up()
    zoomed = entropy_chart(page, "layout.xaxis.range.slice()")
    assert 25 < zoomed[0] < 35
    assert 55 < zoomed[1] < 66
    run.request_control({"method": "clip_v", "mu_low": 1.0, "scope": "all"})
    fake.add_steps(run, 4)  # with a marker, so that the chart is drawn again and not only extended
    wait_for_step(page, 105)
    eventually(page, "data[2].x.at(-1)", 105)
    assert entropy_chart(page, "layout.xaxis.range") == zoomed

    fake.add_steps(run, 195)
    wait_for_step(page, 300)
    page.get_by_role("radiogroup").get_by_text("200", exact=True).click()
    eventually(page, "data[2].x.length", 200)
    fake.add_steps(run, 10)
    wait_for_step(page, 310)
    eventually(page, "data[2].x.at(-1)", 310)
    assert entropy_chart(page, "data[2].x[0]") == 111


def test_run_without_data_is_marked_until_data_come(fake: FakeApi, open_page: OpenPage) -> None:
    run = fake.add_run(planned_steps=None)
    watched = open_page(PATH)
    page = watched.page
    expect(page.locator("#kpi-entropy-value")).to_have_text("–")
    eventually(page, "layout.annotations.length", 1)  # what is waited for
    fake.add_steps(run, 2)
    wait_for_step(page, 2)
    eventually(page, "data[2].x.length", 2)
    eventually(page, "layout.annotations?.length ?? 0", 0)
    expect(page.locator("#kpi-entropy-value")).not_to_have_text("–")
    expect(page.locator("#kpi-predicted-value")).to_have_text("–")
    assert watched.problems == []


def test_hostile_text_stays_text_and_what_is_missing_is_marked_with_its_reason(
    fake: FakeApi, open_page: OpenPage
) -> None:
    run = fake.add_run(steps=30, name=HOSTILE)
    run.request_control({"method": "clip_v", "mu_low": 1.0, "scope": "all", "reason": HOSTILE})
    for _ in range(10):
        run.add_step()
    run.request_control({"method": "clip_b", "mu_high": 1.0, "reason": "=cmd()"})
    run.tokens = [TOKEN]
    alert = {
        "step": 12, "recorded_at": 0.0, "kind": "collapse", "level": "act", "evidence": {}, "cause": None, "suggestion": None,
    }  # fmt: skip
    run.alerts = [{**alert, "message": "<script>document.title='taken'</script>"}]
    run.rows[20:25] = []
    run.gaps = [{"incarnation": "a", "rank": 0, "first_seq": 22, "last_seq": 26, "reason": "<b>queue full</b>"}]
    for row in run.rows[::10]:
        row["scalars"][HOSTILE_METRIC] = row["step"] / 100
    watched = open_page(PATH)
    page = watched.page
    expect(page.locator("#history-grid [row-id=v1]")).to_contain_text(HOSTILE)
    expect(page.locator("#tokens tbody tr")).to_have_count(1)
    expect(page.locator("#tokens")).to_contain_text("<img␣src=x␣onerror=alert(1)>\\u202e\\u0000")
    for shown in ("step 12", "<script>"):
        expect(page.locator("#alerts")).to_contain_text(shown)
    for shown in ("21 to 25", "5 records lost", "<b>queue full</b>"):
        expect(page.locator("#record")).to_contain_text(shown)
    eventually(page, "layout.shapes.map((shape) => shape.x1 - shape.x0).includes(5)", True)
    eventually(page, "data[2].y[20]", None)
    hrefs = page.locator(".export-links a").evaluate_all("links => links.map((link) => link.getAttribute('href'))")
    assert hrefs == [f"/api/v1{PATH}/export?format={word}" for word in ("csv", "jsonl", "parquet")]

    expect(page.locator("#metrics-choice")).to_be_hidden()
    page.get_by_role("button", name="Search and chart any metric").click()
    expect(page.locator("#metrics-grid")).to_contain_text("change/negative_high")
    page.fill("#metrics-filter", "eval/")
    expect(page.locator("#metrics-grid")).not_to_contain_text("change/")
    expect(page.locator("#metrics-grid [row-id]")).to_contain_text(HOSTILE_METRIC)
    choose_metric(page, "#metrics-choice", "eval/", HOSTILE_METRIC)
    choose_metric(page, "#metrics-choice", "reward", "reward/mean")
    values = "data.map((line) => line.y.filter((value) => value !== null).length)"
    expect_chart(page, "metrics-graph", values, [4, 35])
    fake.add_steps(run, 2)
    expect_chart(page, "metrics-graph", "data[1].x.at(-1)", 42)

    assert page.locator("img[src=x]").count() == 0
    assert page.title() == f"{HOSTILE} · Isentrope"
    assert watched.problems == []


def test_missing_answers_have_their_reason(fake: FakeApi, open_page: OpenPage) -> None:
    fake.add_run(steps=150)
    page = open_page(PATH).page
    facts = page.locator("#law-facts")
    expect(facts).to_contain_text(re.compile(r"Ceiling b − a, reward at H = 0\s*0\.\d{3}"))
    expect_chart(page, "law-graph", "data.length", 6)
    fake.add_run("run-000002", "young", steps=3)
    fake.runs["run-000002"].measures_what_if = False
    watched = open_page("/runs/run-000002")
    for shown in ("20 steps", "are 3"):
        expect(watched.page.locator("#law-facts")).to_contain_text(shown)
    choose_clip_v(watched.page, "1")
    expect(watched.page.locator("#what-if-reading")).to_contain_text("run-000002")
    assert watched.problems == []


def test_every_part_may_fail_at_once_and_comes_back(
    fake: FakeApi, open_page: OpenPage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("isentrope_dashboard.pages.live.HEAL_SECONDS", 1.0)
    run = fake.add_run(steps=60)
    run.tokens = [TOKEN]
    fake.failing = {**dict.fromkeys(PLACES_OF_CALLS, 500), "/steps/60": 500, "/v1/runs": 503}
    page = open_page(PATH, ready="#entropy-graph-load-error:not(:empty)").page
    for place in PLACES:
        expect(page.locator(f"#{place}-load-error")).to_contain_text("500")
    for hidden in ("#entropy-graph", "#law-facts", "#kpi-entropy-value", "#record", "#tokens", "#history-grid"):
        expect(page.locator(hidden)).to_be_hidden()
    expect(page.locator("#run-status")).to_have_text("Live")
    expect(page.locator("#control-push")).to_be_disabled()
    fake.failing = {}
    fake.add_steps(run, 3)
    wait_for_step(page, 63)
    for place in PLACES:
        expect(page.locator(f"#{place}-load-error")).to_be_empty()
    for shown in ("#law-facts", "#kpi-entropy-value", "#record", "#tokens", "#history-grid"):
        expect(page.locator(shown)).to_be_visible()
    for graph in ("entropy-graph", "law-graph", "score-graph", "split-graph"):
        box = page.locator(f"#{graph} .main-svg").first.bounding_box()
        assert box is not None
        assert box["height"] > 200


def test_one_part_that_fails_leaves_the_others_as_they_are(fake: FakeApi, open_page: OpenPage) -> None:
    fake.add_run(steps=20)
    fake.failing = {"/law": 500}
    page = open_page(PATH).page
    expect(page.locator("#law-graph-load-error")).to_contain_text("/law answers 500")
    expect(page.locator("#law-facts")).to_be_hidden()
    expect(page.locator("#entropy-graph .main-svg").first).to_be_visible()
    assert page.locator(".load-error:not(:empty)").count() == 1


def test_steps_are_shown_while_a_slow_answer_is_waited_for(fake: FakeApi, open_page: OpenPage) -> None:
    run = fake.add_run(steps=25)
    page = open_page(PATH).page
    fake.held = {"/gaps"}
    for step in range(26, 32):
        fake.add_steps(run)
        wait_for_step(page, step)
    while not fake.waiting:
        page.wait_for_timeout(50)
    assert len(fake.waiting) == 1
    fake.add_steps(run)
    wait_for_step(page, 32)
    run.gaps = [{"incarnation": "a", "rank": 0, "first_seq": 2, "last_seq": 3, "reason": "reported late"}]
    fake.held = set()
    expect(page.locator("#record")).to_contain_text("reported late")


def test_steps_come_within_two_seconds_and_without_new_ones_little_is_sent(fake: FakeApi, open_page: OpenPage) -> None:
    run = fake.add_run(steps=30)
    page = open_page(PATH).page
    eventually(page, "data[2].x.length", 30)
    waited = []
    for step in (31, 32, 33, 34):
        began = time.monotonic()
        fake.add_steps(run)
        wait_for_step(page, step)
        waited.append(time.monotonic() - began)
    assert min(waited) < 2  # a busy machine may delay some of them
    page.wait_for_timeout(5_000)  # what is read every few seconds has followed
    sent: list[int] = []
    page.on("response", lambda answer: sent.append(len(answer.body())))
    page.wait_for_timeout(3_500)
    assert 2 <= len(sent) <= 8
    assert sum(sent) < 4_000


def test_a_page_goes_on_after_its_server_forgot_everything(fake: FakeApi, open_page: OpenPage) -> None:
    run = fake.add_run(steps=30)
    page = open_page(PATH).page
    run.rows[10:] = []  # as a database restored from a copy
    fake.add_steps(run, 25)
    wait_for_step(page, 35)
    eventually(page, "data[2].x.at(-1)", 35)
    eventually(page, "data[2].x.length", 35)
