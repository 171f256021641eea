"""The what-if under the thresholds, and the law, in a real browser."""

from __future__ import annotations

import json
import re

import pytest
from playwright.sync_api import Page, expect

from tests.dashboard.conftest import OpenPage
from tests.dashboard.fake_api import FakeApi
from tests.dashboard.fake_predictions import tail
from tests.dashboard.test_browser import PATH, choose_clip_v

pytestmark = pytest.mark.browser


def share(mu_low: float | None, mu_high: float | None) -> str:
    """What the fake API says these thresholds would clip, of all tokens."""
    return f"would clip {100 * (tail(mu_low, 0.45) + tail(mu_high, 0.5)):.2f}%"


def expect_chart(page: Page, graph: str, expression: str, value: object) -> None:
    """A chart is drawn a little later than the words beside it."""
    seen = f"document.querySelector('#{graph} .js-plotly-plot')?.{expression}"
    page.wait_for_function(
        f"(value) => {{ try {{ return JSON.stringify({seen}) === value }} catch {{ return false }} }}",
        arg=json.dumps(value, separators=(",", ":"), ensure_ascii=False),
    )


def test_thresholds_tell_what_they_would_do_before_they_are_pushed(fake: FakeApi, open_page: OpenPage) -> None:
    run = fake.add_run(steps=40)
    watched = open_page(PATH, scheme="dark")
    page, told = watched.page, watched.page.locator("#what-if-reading")
    expect(told).to_contain_text("Choose Clip_B or Clip_V")
    expect(page.locator("#what-if-graph")).to_be_hidden()
    choose_clip_v(page, "0.75")
    expect(told).to_contain_text("Step 40 " + share(0.75, None))
    expect_chart(page, "what-if-graph", "data[4].x.slice()", [-0.75])
    expect_chart(page, "what-if-graph", "data[0].line.color", "#8b9af8")
    page.fill("#mu-low-number", "1.5")
    expect(told).to_contain_text(share(1.5, None))
    page.locator("#mu-high-switch").check(force=True)
    expect(told).to_contain_text(share(1.5, 1.0))
    expect(told).to_contain_text("nats")
    assert len(run.controls) == 1
    page.set_viewport_size({"width": 1500, "height": 1400})  # a chart that is laid out anew keeps its height
    page.wait_for_timeout(500)
    box = page.locator("#what-if-graph .main-svg").first.bounding_box()
    assert box is not None
    assert box["height"] == pytest.approx(250, abs=2)
    assert watched.problems == []


def test_what_is_in_force_is_marked_and_a_newer_step_is_asked_about(fake: FakeApi, open_page: OpenPage) -> None:
    run = fake.add_run(steps=30)
    run.request_control({"method": "clip_v", "mu_low": 1.25, "scope": "all"})
    for _ in range(3):
        run.add_step()
    page = open_page(PATH).page
    told = page.locator("#what-if-reading")
    expect(told).to_contain_text("Step 33 " + share(1.25, None))
    expect_chart(page, "what-if-graph", "layout.shapes.map((line) => line.x0)", [-1.25])
    fake.add_steps(run, 2)
    expect(told).to_contain_text("Step 35")


def test_a_threshold_that_is_none_and_a_method_without_any_say_so(fake: FakeApi, open_page: OpenPage) -> None:
    fake.add_run(steps=30)
    page = open_page(PATH).page
    told = page.locator("#what-if-reading")
    choose_clip_v(page, "1")
    page.fill("#mu-low-number", "")
    expect(told).to_contain_text("Enter a number")
    page.click("#control-method")
    page.get_by_role("option", name="Clip-Cov").click()
    expect(told).to_contain_text("Clip-Cov shows what it does once it is pushed")
    expect(page.locator("#what-if-graph")).to_be_hidden()


def test_what_can_not_be_said_is_said_to_be_missing_with_its_reason(fake: FakeApi, open_page: OpenPage) -> None:
    fake.add_run(steps=150)
    page = open_page(PATH).page
    facts = page.locator("#law-facts")
    expect(facts).to_contain_text(re.compile(r"Ceiling b − a, reward at H = 0\s*0\.\d{3}"))
    expect(facts).to_contain_text("last 10 steps so far")
    expect_chart(page, "law-graph", "data.length", 6)
    fake.add_run("run-000002", "young", steps=3)
    fake.runs["run-000002"].measures_what_if = False
    watched = open_page("/runs/run-000002")
    expect(watched.page.locator("#law-facts")).to_contain_text("The law needs at least 20 steps, there are 3.")
    choose_clip_v(watched.page, "1")
    expect(watched.page.locator("#what-if-reading")).to_contain_text("has no step with what-if sums")
    assert watched.problems == []
