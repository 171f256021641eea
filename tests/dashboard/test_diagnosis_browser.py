"""Alerts and the tokens that counted most, in a real browser: what a model wrote stays text."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.dashboard.conftest import OpenPage
from tests.dashboard.fake_api import FakeApi
from tests.dashboard.test_browser import PATH
from tests.dashboard.test_diagnosis import TOKEN

pytestmark = pytest.mark.browser


def test_hostile_tokens_and_reasons_are_shown_and_never_run(fake: FakeApi, open_page: OpenPage) -> None:
    run = fake.add_run(steps=30)
    run.tokens = [TOKEN]
    run.alerts = [{"step": 12, "kind": "collapse", "reason": "<script>document.title='taken'</script>"}]
    watched = open_page(PATH)
    page = watched.page
    expect(page.locator("#tokens tbody tr")).to_have_count(1)
    expect(page.locator("#tokens")).to_contain_text("<img␣src=x␣onerror=alert(1)>\\u202e\\u0000")
    expect(page.locator("#alerts")).to_contain_text("Collapse ahead, step 12")
    expect(page.locator("#alerts")).to_contain_text("<script>")
    assert page.locator("#tokens img").count() == 0
    assert page.title() == "countdown · Isentrope"
    assert watched.problems == []
