"""What axe-core finds in the pages, with everything opened that a page can open: nothing."""

from __future__ import annotations

from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from isentrope_server.security.browsers import REFUSED_PAGE
from tests.dashboard.conftest import OpenPage
from tests.dashboard.fake_api import FakeApi
from tests.dashboard.test_browser import PATH, choose_clip_v
from tests.dashboard.test_compare_browser import choose_metric
from tests.dashboard.test_diagnosis import TOKEN

pytestmark = pytest.mark.browser


def violations(page: Page) -> list[str]:
    """Rule, where, and what is wrong."""
    found: list[dict[str, Any]] = Axe().run(page).response["violations"]
    return [f"{rule['id']}: {node['html'][:200]} {node['failureSummary']}" for rule in found for node in rule["nodes"]]


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


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_run_page_has_no_violation(fake: FakeApi, open_page: OpenPage, scheme: str) -> None:
    full_run(fake)
    fake.failing = {"/law": 500}
    page = open_page(PATH, scheme=scheme).page
    page.get_by_role("button", name="Search and chart any metric").click()
    choose_metric(page, "#metrics-choice", "reward", "reward/mean")
    page.fill("#hold-target", "")
    expect(page.locator("#hold-target")).to_have_attribute("aria-invalid", "true")
    assert violations(page) == []
    page.click("#control-reset")
    choose_clip_v(page, "0.75")
    expect(page.locator("#what-if-reading")).to_contain_text("Step")
    assert violations(page) == []


def test_the_list_and_the_comparison_have_no_violation(fake: FakeApi, open_page: OpenPage) -> None:
    full_run(fake)
    for scheme in ("light", "dark"):
        assert violations(open_page("/", scheme=scheme).page) == []
    compared = open_page("/compare?run=run-000001&run=run-000002", ready=".compare-table .run-link").page
    assert violations(compared) == []


def test_the_pages_that_refuse_have_no_violation(fake: FakeApi, open_page: OpenPage, browser: Browser) -> None:
    assert violations(open_page("/runs/nowhere", ready=".mantine-Alert-root").page) == []
    with browser.new_context() as context:
        page = context.new_page()
        page.set_content(REFUSED_PAGE)
        assert violations(page) == []
