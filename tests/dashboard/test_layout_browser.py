"""What a page looks like at the size of a desk and of a telephone: nothing cut, nothing that must be scrolled for."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.dashboard.conftest import OpenPage
from tests.dashboard.fake_api import FakeApi
from tests.dashboard.test_browser import PATH, eventually

pytestmark = pytest.mark.browser

CUT_CHARTS = """() => [...document.querySelectorAll('.dash-graph')].filter((graph) => {
    const drawing = graph.querySelector('.main-svg'), card = graph.closest('.mantine-Card-root');
    return drawing && drawing.clientHeight && graph.clientHeight
        && (drawing.clientHeight > graph.clientHeight + 1 || card.scrollHeight > card.clientHeight + 1);
}).map((graph) => graph.id)"""


def heights(page: Page, *graphs: str) -> list[int]:
    return [page.evaluate(f"document.querySelector('#{graph} .main-svg').clientHeight") for graph in graphs]


@pytest.mark.parametrize("width", [390, 1440])
def test_every_chart_is_as_high_as_its_place_and_none_is_cut(fake: FakeApi, open_page: OpenPage, width: int) -> None:
    fake.add_run(steps=60)
    page = open_page(PATH, width=width).page
    eventually(page, "data[2].x.length", 60)
    expect(page.locator("#split-graph .main-svg").first).to_be_visible()
    assert heights(page, "score-graph", "split-graph", "law-graph") == [300, 300, 290]
    assert page.evaluate(CUT_CHARTS) == []
    page.set_viewport_size({"width": width, "height": 2600})
    page.wait_for_timeout(500)
    assert page.evaluate(CUT_CHARTS) == []


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


def test_a_run_without_tokens_says_so_instead_of_showing_an_empty_table(fake: FakeApi, open_page: OpenPage) -> None:
    fake.add_run(steps=3)
    page = open_page(PATH).page
    expect(page.locator("#tokens-subtitle")).to_have_text("The newest report names none")
    expect(page.locator("#tokens th")).to_have_count(0)
