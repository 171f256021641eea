"""The control card in a browser: from the choice of a method to the applied control; conflicts; a
server that is away."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import BrowserContext, Page, expect

from tests.dashboard.conftest import OpenPage, Site
from tests.server.in_thread import ServerInThread

pytestmark = pytest.mark.browser

WITH = (
    "document.querySelector('#chart-entropy .js-plotly-plot').data.filter(t => t.meta ==="
    " 'with').length === 1"
)
LINE = (
    "document.querySelector('#{chart} .js-plotly-plot').data.filter(t => ['with',"
    " 'suggested'].includes(t.meta)).map(t => [t.meta, t.y[1]])"
)


def choose(page: Page, label: str, option: str) -> None:
    page.get_by_label(label, exact=True).first.click()
    page.get_by_role("option", name=re.compile(f"^{re.escape(option)}")).click()


def test_a_caught_handle_chooses_pushes_and_applies(site: Site, open_page: OpenPage) -> None:
    run = site.run(40)
    page = open_page(f"/runs/{run}")
    method = page.locator("#control-method")
    expect(method).to_have_value("None (observe only)")
    # Nothing is chosen: the preview is of what the page offers, and there is nothing to push.
    handle, reason = page.locator(".handle.high .pill"), page.locator("#control-reason")
    expect(page.locator("#control-offer")).to_contain_text("Not active: what Clip_V would do")
    expect(handle).to_have_text("‹ µ₊ 2.0 ›")
    expect(reason).to_be_hidden()
    before, grip = page.locator("#control-clipped").inner_text(), handle.bounding_box()
    assert grip is not None
    page.mouse.move(grip["x"] + 8, grip["y"] + 6)
    page.mouse.down()
    page.mouse.move(grip["x"] - 50, grip["y"] + 20, steps=4)
    # The server is asked while it is dragged.
    expect(method).to_have_value("Clip_V")
    expect(page.locator("#control-clipped")).not_to_have_text(before)
    expect(page.locator("#control-mu-low")).to_have_value("2")
    page.wait_for_function(f"() => {WITH}")
    # Beside the entropy: the change and the clipped share at the thresholds of the form, in place
    # of the suggested ones.
    for chart in ("chart-change", "chart-clip"):
        page.wait_for_function(
            f"() => {LINE.format(chart=chart)}.map(([kind]) => kind).join() === 'with'"
        )
    share = LINE.format(chart="chart-clip") + "[0][1]"
    page.wait_for_function(
        "() => document.querySelector('#control-clipped').textContent.startsWith((100 *"
        f" {share}).toFixed(1))"
    )
    page.mouse.up()
    expect(page.locator("#control-status")).to_contain_text("Not pushed")
    expect(page.locator("#control-offer")).to_be_hidden()
    upper = float(page.locator("#control-mu-high").input_value())
    assert 0.5 < upper < 1.8

    reason.fill("entropy halves")
    page.locator("#control-push").click()
    expect(page.locator("[data-version='1'][data-state='PENDING']")).to_contain_text("expires in")
    # What was pushed comes first, the form is folded behind one button until it is asked for.
    expect(method).to_be_hidden()
    expect(page.locator("#open-control")).to_be_focused()
    expect(page.locator("#control-status")).to_contain_text("v1 pending")
    expect(page.locator("#control-form")).not_to_have_attribute("data-older", "")
    latest, card = (page.locator(name).bounding_box() for name in ("#latest-control", "#control"))
    assert latest
    assert card
    assert latest["y"] + latest["height"] <= card["y"]
    site.apply(run, 1)
    expect(page.locator("[data-version='1'][data-state='APPLIED']")).to_contain_text("step 41")
    expect(page.locator("#control-status")).to_contain_text("v1 active since step 41")
    pushed = site.client.control(run)
    assert (pushed.method, pushed.mu_low, pushed.mu_high, pushed.reason) == (
        "clip_v",
        2.0,
        upper,
        "entropy halves",
    )


@pytest.mark.slow
def test_a_touched_form_outlives_anothers_push(site: Site, open_page: OpenPage) -> None:
    run = site.run(40)
    site.client.set_control(run, method="clip_v", mu_high=1.5, if_version=0)
    site.apply(run, 1)
    page = open_page(f"/runs/{run}")
    lower, unfold = page.locator("#control-mu-low"), page.locator("#open-control")
    expect(page.locator("#control-status")).to_contain_text("v1 active since step 41")
    # Somebody else pushes: an untouched form follows, a touched one stays and is refused.
    site.client.set_control(run, method="clip_v", mu_low=2.0, if_version=1)
    expect(lower).to_have_value("2")
    expect(lower).to_be_hidden()
    unfold.click()
    expect(page.locator("#control-method")).to_be_focused()
    lower.fill("2.5")
    expect(page.locator("#control-status")).to_contain_text("Not pushed")
    site.client.set_control(run, method="clip_v", mu_low=3.0, if_version=2)
    expect(page.locator("#control-status")).to_contain_text("v3 by owner is newer")
    page.locator("#control-push").click()
    expect(page.locator("#control-conflict")).to_contain_text(
        "v3 by owner: Clip_V · µ₋ 3.00yours: Clip_V · µ₋ 2.50"
    )
    page.locator("#push-mine").click()
    expect(page.locator("[data-version='4']")).to_be_visible()
    assert site.client.control(run).mu_low == 2.5
    expect(lower).to_be_hidden()


@pytest.mark.slow
def test_what_was_said_of_a_push_goes(site: Site, open_page: OpenPage) -> None:
    run = site.run(40)
    site.client.set_control(run, method="clip_v", mu_high=1.5, if_version=0)
    site.apply(run, 1)
    site.client.set_control(run, method="clip_v", mu_low=3.0, if_version=1)
    page = open_page(f"/runs/{run}")
    page.get_by_role("button", name="Revert to v1").click()
    expect(page.locator("[data-version='3']")).to_contain_text("revert to v1")
    expect(page.locator("#control-mu-high")).to_have_value("1.5")
    site.apply(run, 3, "REJECTED")
    expect(page.locator("[data-version='3'][data-state='REJECTED']")).to_be_visible()
    page.locator("#open-control").click()
    expect(page.locator("#control-outcome")).to_be_hidden()
    site.client.set_control(run, method="clip_v", mu_low=2.0, if_version=3)
    expect(page.locator("[data-version='4'][data-state='PENDING']")).to_be_visible()
    expect(page.locator("#control-mu-low")).to_have_value("2")
    expect(page.locator("#control-mu-low")).to_be_hidden()


def test_the_suggestion_is_tried_on_a_phone(site: Site, open_page: OpenPage) -> None:
    page = open_page(f"/runs/{site.run(60)}", width=390, height=844, scheme="dark")
    page.locator("#try").click()
    expect(page.locator("#control-status")).to_contain_text("Not pushed")
    expect(page.locator("#control-method")).to_have_value("Clip_V")
    expect(page.locator("#control-push")).to_be_enabled()
    expect(page.locator("#control-numbers")).to_be_in_viewport()
    assert page.locator("#control").evaluate("(card) => getComputedStyle(card).position") == "fixed"
    # The chart that the preview is about stays in sight above the sheet.
    chart, sheet = (page.locator(name).bounding_box() for name in ("#chart-entropy", "#control"))
    assert chart
    assert sheet
    assert 0 <= chart["y"] < chart["y"] + chart["height"] <= sheet["y"]
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.get_by_role("button", name="More").click()
    expect(page.get_by_role("textbox", name="max fraction")).to_be_visible()
    assert Axe().run(page, context="#control").response["violations"] == []
    page.locator("#control").get_by_role("button", name="Close").click()
    assert page.locator("#control").evaluate("(card) => getComputedStyle(card).position") != "fixed"
    page.locator("#chart-entropy").scroll_into_view_if_needed()
    page.wait_for_function(f"() => {WITH}")


def test_an_alert_says_who_acknowledged_it(site: Site, open_page: OpenPage) -> None:
    rows = open_page(f"/runs/{site.run(60)}").locator(".alert-row")
    newest = rows.filter(has_text="step 41")
    expect(newest).to_contain_text("The entropy is 50% below its early level")
    expect(newest).not_to_contain_text("Suggested")
    expect(newest.locator(".chip")).to_have_class("chip act")
    newest.get_by_role("button", name="Acknowledge").click()
    expect(newest).to_contain_text("acknowledged by owner")
    expect(newest.locator(".chip")).to_have_class("chip")


@pytest.mark.slow
def test_a_push_to_a_server_that_is_away_says_so(tmp_path: Path, window: BrowserContext) -> None:
    with ServerInThread(tmp_path / "home", dashboard=True) as server:
        site = Site(server)
        run = site.run(12)
        window.clear_cookies()
        page = window.new_page()
        page.request.get(f"{site.url}/?token={server.owner_token}", max_redirects=0)
        page.goto(f"{site.url}/runs/{run}")
        choose(page, "Method", "Clip_V")
        expect(page.locator("#control-push")).to_be_enabled()
        server.stop()
        began = time.monotonic()
        page.locator("#control-push").press("Enter")
        expect(page.locator(".control .failed, .control .when-lost:visible").first).to_be_visible(
            timeout=8_000
        )
        assert time.monotonic() - began < 8
        expect(page.locator("#control-outcome")).to_contain_text(
            "No answer from the server", timeout=8_000
        )
        page.close()


def test_a_typed_target_turns_the_hold_on(site: Site, open_page: OpenPage) -> None:
    page = open_page(f"/runs/{site.run(12)}")
    checks = page.locator("#checks details")
    checks.locator("summary").click()
    expect(checks).to_have_attribute("open", "")
    page.keyboard.press("Escape")
    expect(checks).not_to_have_attribute("open", "")
    hold = page.locator("#control-hold")
    expect(hold).not_to_be_checked()
    page.locator("#control-hold-target").fill("60%")
    expect(hold).to_be_checked()
