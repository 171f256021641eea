"""The form that steers a run, in a real browser: what it shows, refuses, sends, and does when others push meanwhile."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from isentrope_wire.control import Hold
from tests.dashboard.conftest import OpenPage
from tests.dashboard.fake_api import FakeApi, FakeRun
from tests.dashboard.on_the_page import (
    PATH,
    choose_clip_v,
    eventually,
    expect_chart,
    parameter_field,
    push,
    settled,
    violations,
    wait_for_step,
    would_clip,
)

pytestmark = [pytest.mark.browser, pytest.mark.slow]

NEWS = {PATH.removeprefix("/runs")}
"""End of the address that a page asks first when it asks for news."""
CLIPPED: dict[str, Any] = {"method": "clip_v", "mu_high": 2.0, "scope": "all"}
HOLD = Hold(target_entropy=1.2, max_change_per_step=0.06, mu_min=0.5).to_document()


def steered_run(fake: FakeApi, control: dict[str, Any], *, steps: int = 10, more: int = 3) -> FakeRun:
    """A run whose control is active before the page is opened."""
    run = fake.add_run(steps=steps)
    run.request_control(control)
    for _ in range(more):
        run.add_step()
    return run


def choose_method(page: Page, label: str) -> None:
    page.click("#control-method")
    page.get_by_role("option", name=label).click()


def test_form_begins_with_active_control_refuses_and_reverts(fake: FakeApi, open_page: OpenPage) -> None:
    parameters = {"max_fraction": 0.01, "denominator": "shrink"}
    run = steered_run(fake, {"method": "clip_v", "mu_low": 2.0, "scope": "all", "parameters": parameters}, steps=5)
    page = open_page(PATH).page
    badge, button, hint = (page.locator(f"#control-{name}") for name in ("badge", "push", "hint"))
    share, denominator = (parameter_field(page, "clip_v", name) for name in ("max_fraction", "denominator"))
    expect(share).to_have_value("0.01")
    expect(denominator).to_have_value("shrink")
    expect(badge).to_have_text("in sync")
    expect(page.locator("#tokens th")).to_have_count(0)  # no table without tokens

    page.click("#control-method")
    offered = [name.strip() for name in page.get_by_role("option").all_inner_texts()]
    assert offered == ["None (observe only)", "Clip_B", "Clip_V", "Clip-Cov"]  # the probe can't do KL-Cov
    page.get_by_role("option", name="None (observe only)").click()
    expect(button).to_be_enabled()
    page.click("#control-reset")
    expect(badge).to_have_text("in sync")
    expect(button).to_be_disabled()
    assert page.input_value("#control-method") == "Clip_V"

    field = page.locator("#mu-low-number")
    for typed in ("", "-1", "-"):
        field.fill(typed)
        field.press("Tab")
        expect(field).to_have_attribute("aria-invalid", "true")
        expect(hint).not_to_be_empty()
        expect(button).to_be_disabled()
    field.fill("0.5")
    field.press("Tab")
    expect(button).to_be_enabled()
    expect(hint).to_be_empty()
    page.click("#control-reset")

    share.fill("")
    expect(badge).to_have_text("1 change")
    expect(button).to_be_enabled()
    page.click("#control-reset")
    expect(share).to_have_value("0.01")
    page.fill("#mu-low-number", "3")
    push(page, 2)
    assert (run.controls[-1]["mu_low"], run.controls[-1]["parameters"]) == (3.0, parameters)


def test_a_refused_control_and_a_conflict_are_shown_and_the_edits_stay(fake: FakeApi, open_page: OpenPage) -> None:
    run = fake.add_run(steps=30)
    run.refuse_next = "out_of_range"
    page = open_page(PATH).page
    progress, badge = page.locator("#control-progress"), page.locator("#control-badge")
    choose_clip_v(page, "2")
    page.click("#control-push")
    expect(progress.locator("[data-state]")).to_have_attribute("data-state", "PENDING")
    fake.add_steps(run, 2)
    expect(progress).to_contain_text("rejected (out_of_range: the probe said no)")
    expect(page.locator("#control-method-running")).to_have_text("None")
    expect(badge).to_have_text("in sync")  # the form went back to what runs
    assert page.input_value("#control-method") == "None (observe only)"

    choose_clip_v(page, "1.5")
    run.author = "alice"
    fake.held = NEWS  # the page does not learn of it
    run.request_control({"method": "clip_b", "mu_low": 3.0, "scope": "negative"})
    page.click("#control-push")
    expect(page.locator(".mantine-Notification-root", has_text="alice")).to_be_visible()
    fake.held = set()
    expect(progress).to_contain_text("v2")
    assert page.input_value("#mu-low-number") == "1.50"
    assert len(run.controls) == 3
    push(page, 3)
    assert run.controls[-1]["mu_low"] == 1.5


def test_a_method_s_parameters_are_fields_and_the_push_carries_them(fake: FakeApi, open_page: OpenPage) -> None:
    run = fake.add_run(steps=30)
    run.labels = {"control/dead": "beta can't act: the importance ratio is 1 on every token."}
    watched = open_page(PATH)
    page = watched.page
    expect(page.locator("#dead-knobs")).to_contain_text(run.labels["control/dead"])
    run.labels = {}
    ratio, seed = (parameter_field(page, "clip_cov", name) for name in ("ratio", "seed"))
    expect(ratio).to_be_hidden()
    choose_method(page, "Clip-Cov")
    expect(ratio).to_be_visible()
    assert (ratio.input_value(), seed.input_value()) == ("0.0002", "0")
    expect(page.locator("#control-panel, .parameters:visible").last).to_contain_text("Default 0.0002.")
    expect(parameter_field(page, "kl_cov", "beta")).to_have_count(0)  # the probe can't do it

    for typed in ("2", "", "-", "nan"):
        ratio.fill(typed)
        expect(page.locator("#control-push")).to_be_disabled()
        expect(ratio).to_have_attribute("aria-invalid", "true")
    ratio.fill("1e-3")
    expect(page.locator("#control-badge")).to_have_text("2 changes")
    push(page, 1)
    assert run.controls[-1]["parameters"] == {"ratio": 0.001}
    fake.add_steps(run, 2)
    expect(page.locator("#control-progress [data-state]")).to_have_attribute("data-state", "APPLIED")
    expect(page.locator("#control-badge")).to_have_text("in sync")
    expect(page.locator("#history-grid [row-id=v1]")).to_contain_text("ratio default → 0.001")

    # Another change of the same method leaves the parameter standing.
    seed.fill("7")
    expect(page.locator("#control-badge")).to_have_text("1 change")
    push(page, 2)
    assert run.controls[-1]["parameters"] == {"ratio": 0.001, "seed": 7}
    expect(page.locator("#dead-knobs")).to_be_hidden(timeout=60_000)  # it can act by now
    assert watched.problems == []


def test_thresholds_tell_what_they_would_do_before_they_are_pushed(fake: FakeApi, open_page: OpenPage) -> None:
    run = fake.add_run(steps=40)
    watched = open_page(PATH, scheme="dark")
    page, told, graph = watched.page, watched.page.locator("#what-if-reading"), watched.page.locator("#what-if-graph")
    expect(graph).to_be_hidden()
    choose_clip_v(page, "0.75")
    expect(told).to_contain_text("Step 40 ")
    expect(told).to_contain_text(would_clip(0.75, None))
    expect_chart(page, "what-if-graph", "data[4].x.slice()", [-0.75])
    expect_chart(page, "what-if-graph", "data[0].line.color", "#8b9af8")
    page.fill("#mu-low-number", "1.5")
    expect(told).to_contain_text(would_clip(1.5, None))
    page.locator("#mu-high-switch").check(force=True)
    expect(told).to_contain_text(would_clip(1.5, 1.0))
    expect(told).to_contain_text("nats")
    assert len(run.controls) == 1
    page.set_viewport_size({"width": 1500, "height": 1400})  # a chart that is laid out anew keeps its height
    settled(page)
    box = page.locator("#what-if-graph .main-svg").first.bounding_box()
    assert box is not None
    assert box["height"] == pytest.approx(250, abs=2)
    page.fill("#mu-low-number", "")
    expect(told).not_to_contain_text("%")
    choose_method(page, "Clip-Cov")
    expect(told).to_contain_text("Clip-Cov")
    expect(graph).to_be_hidden()

    page.click("#control-reset")
    run.request_control({"method": "clip_v", "mu_low": 1.25, "scope": "all"})
    fake.add_steps(run, 3)
    expect(told).to_contain_text("Step 43 ")
    expect(told).to_contain_text(would_clip(1.25, None))
    expect_chart(page, "what-if-graph", "layout.shapes.map((line) => line.x0)", [-1.25])
    fake.add_steps(run, 2)
    expect(told).to_contain_text("Step 45 ")
    assert watched.problems == []


def test_a_push_of_something_else_keeps_the_hold_and_a_hold_that_can_not_be_is_not_pushed(
    fake: FakeApi, open_page: OpenPage
) -> None:
    control = {"method": "clip_v", "mu_low": 2.0, "scope": "all", "hold": HOLD, "parameters": {"max_fraction": 0.01}}
    run = steered_run(fake, control, steps=30)
    watched = open_page(PATH)
    page, badge = watched.page, watched.page.locator("#control-badge")
    expect(page.locator("#hold-target")).to_have_value("1.2")
    expect(badge).to_have_text("in sync")
    for field, typed in (("hold-target", ""), ("hold-target", "-1"), ("hold-change", "0"), ("hold-mu-max", "0.1")):
        before = page.locator(f"#{field}").input_value()
        page.fill(f"#{field}", typed)
        expect(page.locator(f"#{field}")).to_have_attribute("aria-invalid", "true")
        expect(page.locator("#control-push")).to_be_disabled()
        page.fill(f"#{field}", before)
    choose_method(page, "Clip-Cov")
    expect(page.locator("#control-hint")).to_contain_text("hold")
    expect(page.locator("#control-push")).to_be_disabled()
    page.click("#control-reset")
    expect(badge).to_have_text("in sync")
    assert len(run.pushed) == 0
    page.fill("#mu-low-number", "3")
    expect(badge).to_have_text("1 change")
    push(page, 2)
    sent = run.pushed[-1]
    assert (sent["mu_low"], sent["hold"], sent["parameters"]) == (3.0, HOLD, {"max_fraction": 0.01})
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
    page.fill("#hold-target", "75%")
    expect(page.locator("#what-if-reading")).to_contain_text("the target")
    page.fill("#hold-target", "1.5")
    expect(page.locator("#what-if-reading")).to_contain_text("By entropy/gain 0.4")
    page.fill("#hold-mu-min", "0.25")
    push(page, 1)
    assert run.pushed[-1]["hold"] == Hold(target_entropy=1.5, mu_min=0.25).to_document()
    run.labels = {"hold/state": "slewing"}
    fake.add_steps(run, 6)
    expect(page.locator("#hold-running")).to_have_text("1.5 nats")
    expect(page.locator("#hold-facts")).to_contain_text("Slewing")
    for told in ("1.900", "−0.0020 nats"):  # the controller's own gain and drift
        expect(page.locator("#what-if-reading")).to_contain_text(told)
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
    expect(page.locator("#history-grid [row-id=v2]")).to_contain_text("hold 1.5 nats → off")
    assert watched.problems == []


def test_a_preset_fills_the_form_in_and_what_can_not_hold_is_not_asked_to(
    fake: FakeApi, open_page: OpenPage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.dashboard.fake_api.CAPABILITIES", ["method:none", "method:clip_v"])
    run = fake.add_run(steps=30)
    page = open_page(PATH).page
    choose_clip_v(page, "1")
    expect(page.locator("#hold-switch")).to_be_hidden()
    page.get_by_role("button", name="Fill in the preset trinity").click()
    expect(page.locator("#mu-low-number")).to_have_value("8.50")
    expect(parameter_field(page, "clip_v", "max_fraction")).to_have_value("0.0001")
    expect(page.locator("#control-would-be-dead")).to_contain_text("max_fraction 0.0001")
    push(page, 1)
    sent = run.pushed[-1]
    assert (sent["mu_low"], sent["mu_high"], sent["scope"], sent["hold"]) == (8.5, None, "negative", None)
    assert sent["parameters"] == {"max_fraction": 1e-4, "denominator": "shrink", "zero_advantage": "clip"}


def test_the_second_push_after_a_conflict_takes_over_what_was_not_edited_and_names_what_was(
    fake: FakeApi, open_page: OpenPage
) -> None:
    run = steered_run(fake, CLIPPED)
    run.author = "alice"
    page = open_page(PATH).page
    badge, hint = page.locator("#control-badge"), page.locator("#control-hint")
    expect(badge).to_have_text("in sync")
    page.fill("#mu-high-number", "3")
    fake.held = NEWS  # the page does not learn of it
    run.request_control({**CLIPPED, "mu_high": 4.0, "scope": "negative", "hold": HOLD})
    expect(badge).to_have_text("1 change")
    page.click("#control-push")
    told = page.locator(".mantine-Notification-root")
    for named in ("alice", "version 2", "µ₊ 2.00 → 4.00, scope all → negative"):
        expect(told).to_contain_text(named)
    fake.held = set()
    expect(hint).to_contain_text("alice to 4")
    expect(page.locator("#mu-high-number")).to_have_value("3.00")
    expect(page.locator("#hold-target")).to_have_value("1.2")
    assert len(run.controls) == 3
    push(page, 3)
    expect(hint).to_be_empty()
    assert (run.pushed[-1]["mu_high"], run.pushed[-1]["scope"], run.pushed[-1]["hold"]) == (3.0, "negative", HOLD)


def marked(page: Page, field: str) -> Locator:
    return page.locator(f'[id*=\'"field":"{field}"\'][id*="edit-mark"]:visible')


def test_edits_stay_marked_through_live_news_one_is_taken_back_and_the_push_keeps_the_rest(
    fake: FakeApi, open_page: OpenPage
) -> None:
    run = steered_run(fake, CLIPPED)
    run.author = "alice"
    watched = open_page(PATH)
    page, badge = watched.page, watched.page.locator("#control-badge")
    expect(badge).to_have_text("in sync")
    expect(page.locator(".mark-line:visible")).to_have_count(0)
    page.fill("#mu-high-number", "3")
    parameter_field(page, "clip_v", "max_fraction").fill("0.5")
    expect(marked(page, "mu_high")).to_contain_text("was 2")
    run.request_control({**CLIPPED, "scope": "decreasing", "hold": HOLD})
    fake.add_steps(run, 4)
    wait_for_step(page, 17)
    expect(marked(page, "scope")).to_contain_text("alice")
    expect(page.locator("#hold-target")).to_have_value("1.2")
    expect(page.locator("#control-scope")).to_have_value("Tokens that lower entropy")
    expect(page.locator("#mu-high-number")).to_have_value("3.00")
    expect(badge).to_have_text("2 changes")
    page.get_by_role("button", name="Close this notification").click()
    expect(page.locator(".mantine-Notification-root")).to_have_count(0)
    assert violations(page) == []
    page.click("[aria-label='Toggle colour scheme']")
    eventually(page, "data[2].line.color", "#8b9af8")
    assert violations(page) == []

    page.get_by_role("button", name="Revert Upper threshold").click()
    expect(page.locator("#mu-high-number")).to_have_value("2.00")
    expect(marked(page, "mu_high").locator(".mark-line")).to_be_hidden()
    expect(parameter_field(page, "clip_v", "max_fraction")).to_have_value("0.5")
    expect(badge).to_have_text("1 change")
    push(page, 3)
    sent = run.pushed[-1]
    assert (sent["mu_high"], sent["scope"], sent["hold"]) == (2.0, "decreasing", HOLD)
    assert sent["parameters"] == {"max_fraction": 0.5}
    fake.add_steps(run, 3)
    expect(page.locator(".mark-line:visible")).to_have_count(0)
    expect(badge).to_have_text("in sync")
    assert watched.problems == []
