"""Parts of the run page that can't be read, in a real browser: one sentence each, until they can be read again."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from isentrope_dashboard.components.unread import PLACES
from tests.dashboard.conftest import OpenPage
from tests.dashboard.fake_api import FakeApi
from tests.dashboard.test_browser import PATH, wait_for_step
from tests.dashboard.test_diagnosis import TOKEN
from tests.dashboard.test_unread import PLACES_OF_CALLS

pytestmark = pytest.mark.browser


def test_every_part_may_fail_at_once_and_comes_back(
    fake: FakeApi, open_page: OpenPage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("isentrope_dashboard.pages.live.HEAL_SECONDS", 1.0)
    monkeypatch.setattr("isentrope_dashboard.pages.live.LAW_SECONDS", 1.0)
    run = fake.add_run(steps=60)
    run.tokens = [TOKEN]
    fake.failing = {**dict.fromkeys(PLACES_OF_CALLS, 500), "/steps/60": 500, "/v1/runs": 503}
    page = open_page(PATH, ready="#entropy-graph-unread:not(:empty)").page
    for place in PLACES:
        expect(page.locator(f"#{place}-unread")).to_contain_text("could not be read")
    for hidden in ("#entropy-graph", "#law-facts", "#kpi-entropy-value", "#record", "#tokens", "#history-grid"):
        expect(page.locator(hidden)).to_be_hidden()
    expect(page.locator("#run-status")).to_have_text("Live")
    expect(page.locator("#control-push")).to_be_disabled()
    fake.failing = {}
    fake.add_steps(run, 3)
    wait_for_step(page, 63)
    for place in PLACES:
        if place != "method-forms":  # the fields are built with the page
            expect(page.locator(f"#{place}-unread")).to_be_empty()
    for shown in ("#law-facts", "#kpi-entropy-value", "#record", "#tokens", "#history-grid"):
        expect(page.locator(shown)).to_be_visible()
    for graph in ("entropy-graph", "law-graph", "score-graph", "split-graph"):
        box = page.locator(f"#{graph} .main-svg").first.bounding_box()
        assert box is not None
        assert box["height"] > 200


def test_one_part_that_fails_leaves_the_others_as_they_are(fake: FakeApi, open_page: OpenPage) -> None:
    fake.add_run(steps=60)
    fake.failing = {"/law": 500}
    page = open_page(PATH).page
    expect(page.locator("#law-graph-unread")).to_have_text("The law could not be read: /law answers 500.")
    expect(page.locator("#law-facts")).to_be_hidden()
    expect(page.locator("#entropy-graph .main-svg").first).to_be_visible()
    assert page.locator(".unread:not(:empty)").count() == 1


def test_steps_are_shown_while_an_answer_beside_them_is_waited_for(
    fake: FakeApi, open_page: OpenPage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("isentrope_dashboard.pages.live.HISTOGRAM_SECONDS", 0.0)
    run = fake.add_run(steps=20)
    page = open_page(PATH).page
    fake.add_steps(run)
    wait_for_step(page, 21)
    fake.held = {"/gaps"}
    for step in (22, 23, 24):
        fake.add_steps(run)
        wait_for_step(page, step)
        while not fake.waiting:
            page.wait_for_timeout(50)
    assert len(fake.waiting) == 1
    run.gaps = [{"incarnation": "a", "rank": 0, "first_seq": 2, "last_seq": 3, "reason": "told late"}]
    fake.held = set()
    expect(page.locator("#record")).to_contain_text("told late")
