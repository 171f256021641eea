"""Any metric by its name, several runs side by side, what is missing and what can be downloaded, in a real browser."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.dashboard.conftest import OpenPage
from tests.dashboard.fake_api import FakeApi
from tests.dashboard.test_browser import PATH, eventually
from tests.dashboard.test_what_if_browser import expect_chart

pytestmark = pytest.mark.browser

HOSTILE = "eval/<img src=x onerror=alert(1)>"


def choose_metric(page: Page, field: str, typed: str, name: str) -> None:
    page.click(field)
    page.fill(field, typed)
    page.get_by_role("option", name=name, exact=True).click()


def test_any_metric_is_found_by_its_raw_name_and_charted(fake: FakeApi, open_page: OpenPage) -> None:
    run = fake.add_run(steps=40)
    for row in run.rows[::10]:
        row["scalars"][HOSTILE] = row["step"] / 100
    watched = open_page(PATH)
    page = watched.page
    expect(page.locator("#metrics-choice")).to_be_hidden()
    page.get_by_role("button", name="Search and chart any metric").click()
    expect(page.locator("#metrics-grid")).to_contain_text("change/negative_high")
    page.fill("#metrics-filter", "eval/")
    expect(page.locator("#metrics-grid")).not_to_contain_text("change/")
    expect(page.locator("#metrics-grid [row-id]")).to_contain_text(HOSTILE)
    choose_metric(page, "#metrics-choice", "eval/", HOSTILE)
    choose_metric(page, "#metrics-choice", "reward", "reward/mean")
    expect_chart(page, "metrics-graph", "data.map((line) => line.x.length)", [4, 40])
    fake.add_steps(run, 2)
    expect_chart(page, "metrics-graph", "data[1].x.at(-1)", 42)
    assert page.locator("img[src=x]").count() == 0
    assert watched.problems == []


def test_two_runs_are_picked_from_the_list_and_laid_over_each_other(fake: FakeApi, open_page: OpenPage) -> None:
    fake.add_run(steps=30)
    fake.add_run("run-000002", "<b>second</b>", steps=50, seed=3)
    watched = open_page("/")
    page, button = watched.page, watched.page.locator("#compare-button")
    expect(button).to_be_disabled()
    for run_id in ("run-000001", "run-000002"):
        page.locator(f"#runs-grid [row-id={run_id}] input[type=checkbox]").check(force=True)
    expect(button).to_have_text("Compare 2 runs")
    button.click()
    expect(page.locator("#compare-table")).to_contain_text("<b>second</b>")
    assert page.url.endswith("/compare?run=run-000001&run=run-000002") or page.url.endswith(
        "?run=run-000002&run=run-000001"
    )
    expect_chart(page, "compare-graph", "data.map((line) => line.x.length).sort()", [30, 30, 50, 50])
    choose_metric(page, "#compare-metrics", "clip", "clip/fraction")
    expect_chart(page, "compare-graph", "data.length", 6)
    expect(page.locator("#compare-table thead")).to_contain_text("clip/fraction")
    assert [problem for problem in watched.problems if "ERR_ABORTED" not in problem] == []  # by leaving the list


def test_an_address_names_what_is_compared_and_unknown_runs_are_left_out(fake: FakeApi, open_page: OpenPage) -> None:
    fake.add_run(steps=10)
    fake.add_run("run-000002", "second", steps=10)
    watched = open_page("/compare?run=run-000002&run=nowhere", ready=".compare-table .run-link")
    page = watched.page
    expect(page.locator(".compare-table tbody tr")).to_have_count(1)
    assert page.title() == "Compare runs · Isentrope"
    choose_metric(page, "#compare-runs", "count", "countdown · 000001")
    expect(page.locator(".compare-table tbody tr")).to_have_count(2)
    assert page.url.endswith("/compare?run=run-000002&run=run-000001")
    page.wait_for_timeout(9000)
    expect(page.locator("#connection").get_by_text("Connection lost")).to_be_hidden()
    assert watched.problems == []


def test_missing_steps_are_marked_with_their_reason_and_the_record_is_called_incomplete(
    fake: FakeApi, open_page: OpenPage
) -> None:
    run = fake.add_run(steps=40)
    run.rows[20:25] = []
    run.gaps = [{"incarnation": "a", "rank": 0, "first_seq": 22, "last_seq": 26, "reason": "<b>queue full</b>"}]
    watched = open_page(PATH)
    page = watched.page
    record = page.locator("#record")
    expect(record).to_contain_text("Record incomplete")
    expect(record).to_contain_text("steps 21 to 25 without data")
    expect(record).to_contain_text("5 records lost: <b>queue full</b>")
    eventually(page, "layout.shapes.map((shape) => shape.x1 - shape.x0)", [5])
    eventually(page, "data[2].y[20]", None)
    hrefs = page.locator(".export-links a").evaluate_all("links => links.map((link) => link.getAttribute('href'))")
    assert hrefs == [f"/api/v1{PATH}/export?format={word}" for word in ("csv", "jsonl", "parquet")]
    assert watched.problems == []
