"""What holds for all pages in a real browser: no server, no such run, narrow screens, and what axe-core finds."""

from __future__ import annotations

import pytest
from playwright.sync_api import BrowserContext, expect

from isentrope_server.security.sessions import REFUSED_PAGE
from tests.dashboard.conftest import OpenPage
from tests.dashboard.fake_api import FakeApi, FakeRun, serving
from tests.dashboard.on_the_page import PATH, choose_clip_v, choose_metric, eventually, settled, violations
from tests.dashboard.test_diagnosis import TOKEN

pytestmark = [pytest.mark.browser, pytest.mark.slow]

CUT_CHARTS = """() => [...document.querySelectorAll('.dash-graph')].filter((graph) => {
    const drawing = graph.querySelector('.main-svg'), card = graph.closest('.mantine-Card-root');
    return drawing && drawing.clientHeight && graph.clientHeight
        && (drawing.clientHeight > graph.clientHeight + 1 || card.scrollHeight > card.clientHeight + 1);
}).map((graph) => graph.id)"""
CUT_WORDS = """() => [...document.querySelectorAll(
    '.panel-head .mantine-Badge-label, .panel-head button, .panel-head .mantine-Button-label, '
    + '.panel-head .mantine-SegmentedControl-root, .kpi .mantine-Badge-label')]
  .filter((e) => e.scrollWidth > e.clientWidth + 1
    || e.getBoundingClientRect().right > e.closest('.mantine-Card-root').getBoundingClientRect().right)
  .map((e) => e.textContent)"""


@pytest.mark.usefixtures("own_server")
def test_pages_show_that_the_server_is_gone_until_it_is_back(fake: FakeApi, open_page: OpenPage, served: str) -> None:
    fake.add_run(steps=10)
    run, listed = (open_page(path).page for path in (PATH, "/"))
    expect(run.locator("#run-status")).to_have_text("Live")
    for page in (run, listed):
        expect(page.locator("#connection").get_by_text("Connection lost")).to_be_hidden()
    fake.stop()
    for page in (run, listed):
        expect(page.locator("#connection").get_by_text("Connection lost")).to_be_visible(timeout=60_000)
        expect(page.locator("#run-status")).to_be_hidden()
    with serving(fake, int(served.rsplit(":", 1)[1])):
        for page in (run, listed):
            expect(page.locator("#connection").get_by_text("Connection lost")).to_be_hidden(timeout=90_000)
        expect(run.locator("#run-status")).to_have_text("Live")


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
    page.wait_for_timeout(9000)  # longer than what a page takes for a lost connection
    expect(page.locator("#connection").get_by_text("Connection lost")).to_be_hidden()
    assert watched.problems == []


def twice_steered_run(fake: FakeApi) -> FakeRun:
    run = fake.add_run(steps=54)
    for mu_low in (1.0, 2.0):
        run.request_control({"method": "clip_v", "mu_low": mu_low, "scope": "all"})
        for _ in range(3):
            run.add_step()
    return run


@pytest.mark.parametrize(
    ("widths", "labels"), [((390, 400), ["µ₋ 2.00"]), ((1440, 1280, 1400), ["Clip_V · µ₋ 1.00", "µ₋ 2.00"])]
)
def test_charts_are_as_high_as_their_places_and_no_word_is_cut(
    fake: FakeApi, open_page: OpenPage, widths: tuple[int, ...], labels: list[str]
) -> None:
    twice_steered_run(fake)
    page = open_page(PATH, width=widths[0]).page
    eventually(page, "data[2].x.length", 60)
    eventually(page, "layout.annotations.map((label) => label.text)", labels)
    eventually(page, "layout.shapes.length", 2)
    expect(page.locator("#split-graph .main-svg").first).to_be_visible()
    for graph, height in (("score-graph", 300), ("split-graph", 300), ("law-graph", 290)):
        assert page.evaluate(f"document.querySelector('#{graph} .main-svg').clientHeight") == height
    assert page.evaluate(CUT_CHARTS) == []
    page.set_viewport_size({"width": widths[0], "height": 2600})
    settled(page)
    assert page.evaluate(CUT_CHARTS) == []
    for width in widths:
        page.set_viewport_size({"width": width, "height": 1000})
        settled(page)
        assert page.evaluate(CUT_WORDS) == []
    page.fill("#mu-low-number", "0.75")
    expect(page.locator("#control-badge")).to_have_text("1 change")
    for width in widths:
        page.set_viewport_size({"width": width, "height": 1000})
        assert page.evaluate(CUT_WORDS) == []
        if width <= 400:
            assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_a_telephone_shows_all_four_numbers_at_once_and_whether_a_run_is_running(
    fake: FakeApi, open_page: OpenPage
) -> None:
    fake.add_run(steps=60)
    page = open_page(PATH, width=390).page
    boxes = [page.locator(".kpi").nth(index).bounding_box() for index in range(4)]
    assert all(box is not None and box["y"] + box["height"] < 420 for box in boxes)
    clipped = "(e) => e.scrollWidth > e.clientWidth + 1"
    assert not any(page.locator(".kpi").nth(index).evaluate(clipped) for index in range(4))
    listed = open_page("/", width=390).page
    status = listed.locator("#runs-grid [row-id=run-000001] .state").bounding_box()
    assert status is not None
    assert status["x"] + status["width"] < 390


def full_run(fake: FakeApi) -> None:
    """A run with all there is to show: missing steps, alerts, tokens, a hold, a knob that can't act."""
    run = fake.add_run(steps=60)
    run.rows[20:25] = []
    run.gaps = [{"incarnation": "a", "rank": 0, "first_seq": 22, "last_seq": 26, "reason": "queue full"}]
    run.tokens, run.alerts = [TOKEN], [{"step": 12, "kind": "collapse", "reason": "Entropy falls."}]
    run.labels = {"control/dead": "beta can't act: the importance ratio is 1 on every token.", "hold/state": "holding"}
    run.request_control({"method": "clip_v", "mu_low": 2.0, "scope": "all", "hold": {"target_entropy": 1.2}})
    for _ in range(5):
        run.add_step()
    fake.add_run("run-000002", "second", steps=30)


def test_the_run_page_has_no_violation(fake: FakeApi, open_page: OpenPage) -> None:
    full_run(fake)
    fake.failing = {"/law": 500}
    page = open_page(PATH, scheme="light").page
    page.get_by_role("button", name="Search and chart any metric").click()
    choose_metric(page, "#metrics-choice", "reward", "reward/mean")
    page.fill("#hold-target", "")
    expect(page.locator("#hold-target")).to_have_attribute("aria-invalid", "true")
    assert violations(page) == []
    page.click("[aria-label='Toggle colour scheme']")
    eventually(page, "data[2].line.color", "#8b9af8")
    assert violations(page) == []
    page.click("#control-reset")
    choose_clip_v(page, "0.75")
    expect(page.locator("#what-if-reading")).to_contain_text("Step")
    assert violations(page) == []
    page.click("[aria-label='Toggle colour scheme']")
    eventually(page, "data[2].line.color", "#4456c8")
    assert violations(page) == []


def test_the_list_and_the_comparison_have_no_violation(fake: FakeApi, open_page: OpenPage) -> None:
    full_run(fake)
    for scheme in ("light", "dark"):
        assert violations(open_page("/", scheme=scheme).page) == []
    compared = open_page("/compare?run=run-000001&run=run-000002", ready=".compare-table .run-link").page
    assert violations(compared) == []


def test_the_pages_that_refuse_name_the_run_and_have_no_violation(
    fake: FakeApi, open_page: OpenPage, window: BrowserContext
) -> None:
    page = open_page("/runs/nowhere", ready=".mantine-Alert-root").page
    expect(page.locator(".mantine-Alert-root")).to_contain_text("nowhere")
    assert violations(page) == []
    page = window.new_page()
    page.set_content(REFUSED_PAGE)
    assert violations(page) == []
    page.close()
