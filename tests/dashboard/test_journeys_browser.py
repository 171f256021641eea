"""What each page is for, done once from its beginning to its end, in a real browser."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.dashboard.conftest import OpenPage
from tests.dashboard.fake_api import TOKEN, FakeApi, FakeRun
from tests.dashboard.on_the_page import (
    PATH,
    choose_clip_v,
    choose_metric,
    entropy_chart,
    eventually,
    expect_chart,
    push,
    wait_for_step,
    would_clip,
)

pytestmark = pytest.mark.browser

BACKGROUND = {"light": "rgb(246, 247, 249)", "dark": "rgb(14, 17, 22)"}
INK = {"light": "#4456c8", "dark": "#8b9af8"}


def test_a_run_is_followed_and_a_pushed_threshold_until_it_is_applied(fake: FakeApi, open_page: OpenPage) -> None:
    run = fake.add_run(steps=50)
    watched = open_page(PATH, scheme="light")
    page = watched.page
    fake.add_steps(run, 3)
    wait_for_step(page, 53)
    assert page.title() == "countdown · Isentrope"
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == BACKGROUND["light"]
    assert entropy_chart(page, "data[2].line.color") == INK["light"]

    page.click("[aria-label='Toggle colour scheme']")
    eventually(page, "data[2].line.color", INK["dark"])
    fake.add_steps(run)
    wait_for_step(page, 54)
    eventually(page, "data[2].x.at(-1)", 54)
    assert entropy_chart(page, "data[2].line.color") == INK["dark"]
    assert entropy_chart(page, "data[2].x.length") == 54

    choose_clip_v(page, "0.75")
    expect(page.locator("#what-if-reading")).to_contain_text(would_clip(0.75, None))
    expect(page.locator("#control-badge")).to_have_text("2 changes")
    page.fill("#control-reason", "=hold()")
    push(page, 1)
    progress = page.locator("#control-progress [data-state]")
    expect(progress).to_have_attribute("data-state", "PENDING")
    fake.add_steps(run)
    expect(progress).to_have_attribute("data-state", "DELIVERED")
    fake.add_steps(run)
    expect(progress).to_have_attribute("data-state", "APPLIED")
    expect(page.locator("#control-badge")).to_have_text("in sync")
    expect(page.locator("#mu-low-running")).to_have_text("0.75")
    for shown in ("#control-progress", ".mantine-Notification-root"):
        expect(page.locator(shown)).to_contain_text("applied at step 56")
    eventually(page, "layout.shapes.length", 1)
    asked = run.controls[-1]
    assert (asked["method"], asked["mu_low"], asked["mu_high"], asked["scope"]) == ("clip_v", 0.75, None, "all")

    entry = page.locator("#history-grid [row-id=v1]")
    for shown in ("µ₋ off → 0.75", "=hold()"):
        expect(entry).to_contain_text(shown)
    with page.expect_download() as download:
        page.click("#history-export")
    text = download.value.path().read_text(encoding="utf-8-sig")
    assert '"Time","Version","Author"' in text
    assert '"\'=hold()"' in text, "a formula is made harmless"
    assert {token for _, _, token in fake.requests} == {TOKEN}
    assert watched.problems == []


def test_the_list_links_to_each_run_and_follows_their_status(fake: FakeApi, open_page: OpenPage) -> None:
    first: FakeRun = fake.add_run(steps=10)
    fake.add_run("run-000002", "second", steps=5)
    watched = open_page("/", scheme="dark")
    page = watched.page
    row = page.locator("#runs-grid [row-id=run-000001]")
    expect(row).to_contain_text("running")
    first.status = "finished"
    expect(row).to_contain_text("finished", timeout=60_000)
    assert watched.problems == []
    row.get_by_role("link").click()
    page.wait_for_selector("#control-progress [data-state]")
    assert page.url.endswith(PATH)
    expect(page.locator("#run-status")).to_have_text("Finished")
    assert page.get_attribute("html", "data-mantine-color-scheme") == "dark"
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == BACKGROUND["dark"]
    eventually(page, "data[2].line.color", INK["dark"])


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
