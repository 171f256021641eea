"""Holding an entropy from the page, in a real browser: switched on and off, shown, and never dropped unasked."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.dashboard.conftest import OpenPage
from tests.dashboard.fake_api import FakeApi, FakeRun
from tests.dashboard.test_browser import PATH, choose_clip_v, eventually, parameter_field

pytestmark = pytest.mark.browser

HOLD = {"target_entropy": 1.2, "max_change_per_step": 0.06, "mu_min": 0.5, "mu_max": 10.0, "side": "both"}


def held_run(fake: FakeApi, **control: Any) -> FakeRun:
    run = fake.add_run(steps=30)
    run.request_control({"method": "clip_v", "mu_low": 2.0, "scope": "all", "hold": HOLD, **control})
    for _ in range(30):
        run.add_step()
    return run


def push(page: Page, version: int) -> None:
    expect(page.locator("#control-push")).to_be_enabled()
    page.click("#control-push")
    expect(page.locator("#control-progress")).to_contain_text(f"v{version}")


def test_a_push_of_something_else_keeps_the_hold_and_the_parameters_that_are_in_force(
    fake: FakeApi, open_page: OpenPage
) -> None:
    hold = {**HOLD, "rate_of_a_newer_probe": 0.2}
    run = held_run(fake, hold=hold, parameters={"max_fraction": 0.01})
    watched = open_page(PATH)
    page = watched.page
    expect(page.locator("#hold-target")).to_have_value("1.2")
    expect(page.locator("#control-badge")).to_have_text("in sync")
    page.fill("#mu-low-number", "3")
    expect(page.locator("#control-badge")).to_have_text("1 change")
    push(page, 2)
    assert run.pushed[-1]["hold"] == hold
    assert run.pushed[-1]["parameters"] == {"max_fraction": 0.01}
    assert run.pushed[-1]["mu_low"] == 3.0
    assert watched.problems == []


def test_a_hold_begins_where_the_entropy_stands_and_ends_when_it_is_switched_off(
    fake: FakeApi, open_page: OpenPage
) -> None:
    run = fake.add_run(steps=60)
    watched = open_page(PATH)
    page, switch = watched.page, watched.page.locator("#hold-switch")
    expect(page.locator("#hold-target")).to_be_hidden()
    expect(page.locator("#hold-facts")).to_be_empty()
    switch.check(force=True)
    stands = float(page.locator("#hold-target").input_value())
    assert stands == pytest.approx(run.rows[-1]["scalars"]["entropy/mean"], abs=0.1)
    page.fill("#hold-target", "1.5")
    expect(page.locator("#what-if-reading")).to_contain_text("below the target")
    expect(page.locator("#what-if-reading")).to_contain_text("By entropy/gain 0.4")
    page.fill("#hold-mu-min", "0.25")
    push(page, 1)
    assert run.pushed[-1]["hold"] == {"target_entropy": 1.5, "mu_min": 0.25, "side": "both"}
    run.labels = {"hold/state": "slewing"}
    fake.add_steps(run, 6)
    expect(page.locator("#hold-running")).to_have_text("1.5000 nats")
    expect(page.locator("#hold-facts")).to_contain_text("Slewing")
    expect(page.locator("#what-if-reading")).to_contain_text(
        "controller's own gain 1.900 and drift −0.0020 nats a step"
    )
    eventually(page, "layout.xaxis.anchor", "y3")
    eventually(page, "data[7].y.at(-1)", 1.5)
    fake.add_steps(run, 2)  # what is drawn now grows
    eventually(page, "data[7].x.at(-1)", 68)
    eventually(page, "data[12].y.slice(-2).every((mu) => mu > 0)", True)

    switch.uncheck(force=True)
    push(page, 2)
    assert run.pushed[-1]["hold"] is None
    fake.add_steps(run, 2)
    expect(page.locator("#hold-facts")).to_be_empty()
    expect(page.locator("#history-grid [row-id=v2]")).to_contain_text("hold 1.5 → off")
    assert watched.problems == []


def test_a_hold_that_can_not_be_pushed_says_why(fake: FakeApi, open_page: OpenPage) -> None:
    run = held_run(fake)
    page = open_page(PATH).page
    target, button, hint = (page.locator(f"#{name}") for name in ("hold-target", "control-push", "control-hint"))
    expect(target).to_have_value("1.2")
    for field, typed in (("hold-target", ""), ("hold-target", "-1"), ("hold-change", "0"), ("hold-mu-max", "0.1")):
        before = page.locator(f"#{field}").input_value()
        page.fill(f"#{field}", typed)
        expect(page.locator(f"#{field}")).to_have_attribute("aria-invalid", "true")
        expect(button).to_be_disabled()
        page.fill(f"#{field}", before)
    page.click("#control-method")
    page.get_by_role("option", name="Clip-Cov").click()
    expect(hint).to_contain_text("switch the hold off")
    expect(button).to_be_disabled()
    page.click("#control-reset")
    expect(page.locator("#control-badge")).to_have_text("in sync")
    assert len(run.pushed) == 0


def test_a_probe_that_can_not_hold_is_not_asked_to(
    fake: FakeApi, open_page: OpenPage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.dashboard.fake_api.CAPABILITIES", ["method:none", "method:clip_v"])
    fake.add_run(steps=5)
    page = open_page(PATH).page
    choose_clip_v(page, "1")
    expect(page.locator("#hold-switch")).to_be_hidden()


def test_a_preset_fills_the_form_in_and_what_it_can_not_do_is_said_before_the_push(
    fake: FakeApi, open_page: OpenPage
) -> None:
    run = fake.add_run(steps=30)
    page = open_page(PATH).page
    choose_clip_v(page, "1")
    page.get_by_role("button", name="Fill in the preset trinity").click()
    expect(page.locator("#mu-low-number")).to_have_value("8.50")
    expect(parameter_field(page, "clip_v", "max_fraction")).to_have_value("0.0001")
    expect(page.locator("#control-foreseen")).to_contain_text("max_fraction 0.0001 would bind")
    push(page, 1)
    sent = run.pushed[-1]
    assert (sent["mu_low"], sent["mu_high"], sent["scope"], sent["hold"]) == (8.5, None, "negative", None)
    assert sent["parameters"] == {"max_fraction": 1e-4, "denominator": "shrink"}
    page.get_by_role("button", name="Fill in the preset paper").click()
    expect(parameter_field(page, "clip_v", "max_fraction")).to_have_value("")
    expect(page.locator("#control-foreseen")).to_be_empty()
