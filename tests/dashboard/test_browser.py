"""Journeys of a person in front of the dashboard, in a real browser."""

from __future__ import annotations

import time
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.dashboard.conftest import OpenPage
from tests.dashboard.fake_api import FakeApi, FakeRun, serving

pytestmark = pytest.mark.browser

PATH = "/runs/run-000001"


def choose_clip_v(page: Page, mu_low: str) -> None:
    page.click("#control-method")
    page.get_by_role("option", name="Clip_V").click()
    page.locator("#mu-low-switch").check(force=True)
    page.fill("#mu-low-number", mu_low)
    expect(page.locator("#control-push")).to_be_enabled()


def step_shown(page: Page) -> int:
    return int(page.inner_text("#run-step .strong").replace(",", "").replace("–", "0"))


def wait_for_step(page: Page, step: int) -> None:
    until = time.monotonic() + 60
    while step_shown(page) < step:
        assert time.monotonic() < until, f"the page still shows step {step_shown(page)} instead of {step}"
        page.wait_for_timeout(100)


def entropy_chart(page: Page, expression: str) -> Any:
    """What the entropy chart has, e.g. `data[2].x.length`: traces 2, 3, 4 are entropy, observed and predicted change.

    None before it is drawn for the first time."""
    return page.evaluate(f"document.querySelector('#entropy-graph .js-plotly-plot')?.{expression}")


def eventually(page: Page, expression: str, value: object) -> None:
    """Wait until the entropy chart has `value` there. (The page's policy forbids playwright's own waiting, by eval.)"""
    until = time.monotonic() + 60
    while (found := entropy_chart(page, expression)) != value:
        assert time.monotonic() < until, f"{expression} is still {found!r} instead of {value!r}"
        page.wait_for_timeout(100)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_run_opens_without_an_error_and_without_a_request_to_the_outside(
    fake: FakeApi, open_page: OpenPage, scheme: str
) -> None:
    run = fake.add_run(steps=120)
    watched = open_page(PATH, scheme=scheme)
    fake.add_steps(run, 3)
    wait_for_step(watched.page, 123)

    assert watched.problems == []
    assert watched.page.get_attribute("html", "data-mantine-color-scheme") == scheme
    assert watched.page.title() == "countdown · Isentrope"
    background = watched.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert background == {"light": "rgb(246, 247, 249)", "dark": "rgb(14, 17, 22)"}[scheme]
    ink = entropy_chart(watched.page, "data[2].line.color")
    assert ink == {"light": "#4456c8", "dark": "#8b9af8"}[scheme]


def test_charts_change_colour_with_the_switch_and_keep_what_they_show(fake: FakeApi, open_page: OpenPage) -> None:
    run = fake.add_run(steps=60)
    page = open_page(PATH, scheme="light").page
    fake.add_steps(run, 5)
    wait_for_step(page, 65)
    page.click("[aria-label='Toggle colour scheme']")

    eventually(page, "data[2].line.color", "#8b9af8")
    fake.add_steps(run, 1)
    wait_for_step(page, 66)
    eventually(page, "data[2].x.at(-1)", 66)
    assert entropy_chart(page, "data[2].line.color") == "#8b9af8"
    assert entropy_chart(page, "data[2].x.length") == 66


def test_a_pushed_threshold_is_followed_until_the_trainer_applied_it(fake: FakeApi, open_page: OpenPage) -> None:
    run = fake.add_run(steps=50)
    watched = open_page(PATH)
    page = watched.page
    choose_clip_v(page, "0.75")
    expect(page.locator("#control-badge")).to_have_text("2 changes")
    page.fill("#control-reason", "hold entropy")
    page.click("#control-push")

    progress = page.locator("#control-progress [data-state]")
    expect(progress).to_have_attribute("data-state", "PENDING")
    expect(page.locator("#control-badge")).to_have_text("pending")
    fake.add_steps(run)
    expect(progress).to_have_attribute("data-state", "DELIVERED")
    fake.add_steps(run)
    expect(progress).to_have_attribute("data-state", "APPLIED")
    expect(page.locator("#control-progress")).to_contain_text("applied at step 52")
    expect(page.locator("#control-badge")).to_have_text("in sync")
    expect(page.locator("#mu-low-running")).to_have_text("0.75")
    expect(page.locator(".mantine-Notification-root")).to_contain_text("applied at step 52")
    expect(page.locator("#history-grid [row-id=v1]")).to_contain_text("method None → Clip_V, µ₋ off → 0.75")
    expect(page.locator("#history-grid [row-id=v1]")).to_contain_text("hold entropy")
    eventually(page, "layout.shapes.length", 1)
    asked = run.controls[-1]
    assert (asked["method"], asked["mu_low"], asked["mu_high"], asked["scope"]) == ("clip_v", 0.75, None, "all")
    assert watched.problems == []


def test_a_refused_control_is_shown_with_its_reason_and_the_running_one_stays(
    fake: FakeApi, open_page: OpenPage
) -> None:
    run = fake.add_run(steps=30)
    run.refuse_next = "out_of_range"
    page = open_page(PATH).page
    choose_clip_v(page, "2")
    page.click("#control-push")
    expect(page.locator("#control-progress [data-state]")).to_have_attribute("data-state", "PENDING")
    fake.add_steps(run, 2)

    expect(page.locator("#control-progress")).to_contain_text("rejected (out_of_range: the probe said no)")
    expect(page.locator("#control-method-running")).to_have_text("None")
    expect(page.locator("#control-badge")).to_have_text("in sync")  # the form went back to what runs
    assert page.input_value("#control-method") == "None (observe only)"


def test_a_conflict_is_explained_and_the_edits_stay(fake: FakeApi, open_page: OpenPage) -> None:
    run = fake.add_run(steps=30)
    page = open_page(PATH).page
    choose_clip_v(page, "1.5")
    run.author = "alice"
    run.request_control({"method": "clip_b", "mu_low": 3.0, "scope": "negative"})
    page.click("#control-push")

    expect(page.locator(".mantine-Notification-root")).to_contain_text("changed by alice while you edited")
    expect(page.locator("#control-progress")).to_contain_text("v1")
    assert page.input_value("#mu-low-number") == "1.50"
    assert len(run.controls) == 2
    page.click("#control-push")
    expect(page.locator("#control-progress")).to_contain_text("v2")
    assert run.controls[-1]["mu_low"] == 1.5


def test_reset_takes_the_form_back_to_the_running_control(fake: FakeApi, open_page: OpenPage) -> None:
    fake.add_run(steps=5)
    page = open_page(PATH).page
    choose_clip_v(page, "1.5")
    page.click("#control-reset")
    expect(page.locator("#control-badge")).to_have_text("in sync")
    expect(page.locator("#control-push")).to_be_disabled()
    assert page.input_value("#control-method") == "None (observe only)"


def test_a_threshold_without_a_number_or_below_zero_can_not_be_pushed(fake: FakeApi, open_page: OpenPage) -> None:
    run = fake.add_run(steps=5)
    run.request_control({"method": "clip_v", "mu_low": 1.0, "mu_high": 1.0, "scope": "all"})
    for _ in range(3):
        run.add_step()
    page = open_page(PATH).page
    field, push, hint = (page.locator(f"#{name}") for name in ("mu-low-number", "control-push", "control-hint"))
    expect(page.locator("#control-badge")).to_have_text("in sync")
    for typed, told in (("", "Enter a number"), ("-1", "can't be negative"), ("-", "Enter a number")):
        field.fill(typed)
        field.press("Tab")
        expect(hint).to_contain_text(told)
        expect(push).to_be_disabled()
        expect(field).to_have_attribute("aria-invalid", "true")
    field.fill("0.5")
    field.press("Tab")
    expect(push).to_be_enabled()
    expect(hint).to_have_text("")


def test_only_what_the_probe_can_do_is_offered(fake: FakeApi, open_page: OpenPage) -> None:
    fake.add_run(steps=5)
    page = open_page(PATH).page
    page.click("#control-method")
    offered = page.get_by_role("option").all_inner_texts()
    assert [name.strip() for name in offered] == ["None (observe only)", "Clip_B", "Clip_V", "Clip-Cov"]


def parameter_field(page: Page, method: str, name: str) -> Locator:
    # Dash writes the id of a field that patterns match as JSON with sorted names.
    return page.locator(f'[id=\'{{"method":"{method}","name":"{name}","type":"parameter"}}\']')


def test_a_method_s_parameters_are_fields_and_the_push_carries_them(fake: FakeApi, open_page: OpenPage) -> None:
    run = fake.add_run(steps=30)
    watched = open_page(PATH)
    page = watched.page
    ratio, seed = (parameter_field(page, "clip_cov", name) for name in ("ratio", "seed"))
    expect(ratio).to_be_hidden()
    page.click("#control-method")
    page.get_by_role("option", name="Clip-Cov").click()
    expect(ratio).to_be_visible()
    assert (ratio.input_value(), seed.input_value()) == ("0.0002", "0")
    expect(page.locator("#control-panel, .parameters:visible").last).to_contain_text("What ratio does. Default 0.0002.")
    expect(parameter_field(page, "kl_cov", "beta")).to_have_count(0)  # the probe can't do it

    for typed in ("2", "", "-", "nan"):
        ratio.fill(typed)
        expect(page.locator("#control-push")).to_be_disabled()
        expect(ratio).to_have_attribute("aria-invalid", "true")
    expect(page.locator("#control-hint")).to_contain_text("marked in red")
    ratio.fill("1e-3")
    expect(page.locator("#control-badge")).to_have_text("2 changes")
    page.click("#control-push")
    expect(page.locator("#control-progress [data-state]")).to_have_attribute("data-state", "PENDING")
    assert run.controls[-1]["parameters"] == {"ratio": 0.001}
    fake.add_steps(run, 2)
    expect(page.locator("#control-progress")).to_contain_text("applied at step")
    expect(page.locator("#control-badge")).to_have_text("in sync")
    expect(page.locator("#history-grid [row-id=v1]")).to_contain_text("ratio default → 0.001")

    # Another change of the same method leaves the parameter standing.
    seed.fill("7")
    expect(page.locator("#control-badge")).to_have_text("1 change")
    page.click("#control-push")
    expect(page.locator("#control-progress")).to_contain_text("v2")
    assert run.controls[-1]["parameters"] == {"ratio": 0.001, "seed": 7}
    assert watched.problems == []


def test_a_knob_that_can_not_act_is_named_with_its_reason_until_it_can(fake: FakeApi, open_page: OpenPage) -> None:
    run = fake.add_run(steps=5)
    run.labels = {"control/dead": "beta can't act: the importance ratio is 1 on every token."}
    page = open_page(PATH).page
    expect(page.locator("#dead-knobs")).to_have_text("Can't act: " + run.labels["control/dead"])
    run.labels = {}
    fake.add_steps(run)
    expect(page.locator("#dead-knobs")).to_be_hidden(timeout=60_000)


def test_the_form_shows_the_parameters_in_force_and_reset_brings_them_back(fake: FakeApi, open_page: OpenPage) -> None:
    run = fake.add_run(steps=5)
    run.request_control(
        {
            "method": "clip_v",
            "mu_low": 2.0,
            "scope": "all",
            "parameters": {"max_fraction": 0.01, "denominator": "shrink"},
        }
    )
    for _ in range(3):
        run.add_step()
    page = open_page(PATH).page
    share, denominator = (parameter_field(page, "clip_v", name) for name in ("max_fraction", "denominator"))
    expect(share).to_have_value("0.01")
    expect(denominator).to_have_value("shrink")
    expect(page.locator("#control-badge")).to_have_text("in sync")
    share.fill("")
    expect(page.locator("#control-badge")).to_have_text("1 change")
    expect(page.locator("#control-push")).to_be_enabled()
    page.click("#control-reset")
    expect(share).to_have_value("0.01")
    page.fill("#mu-low-number", "3")
    page.click("#control-push")
    expect(page.locator("#control-progress")).to_contain_text("v2")
    assert (run.controls[-1]["mu_low"], run.controls[-1]["parameters"]) == (
        3.0,
        {"max_fraction": 0.01, "denominator": "shrink"},
    )


def test_zoom_survives_live_data(fake: FakeApi, open_page: OpenPage) -> None:
    run = fake.add_run(steps=100)
    page = open_page(PATH).page
    fake.add_steps(run)
    wait_for_step(page, 101)
    box = page.locator("#entropy-graph .nsewdrag").first.bounding_box()
    assert box is not None
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + 0.3 * box["width"], middle)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.6 * box["width"], middle, steps=5)
    page.mouse.up()
    zoomed = entropy_chart(page, "layout.xaxis.range.slice()")
    assert 25 < zoomed[0] < 35
    assert 55 < zoomed[1] < 66

    run.request_control({"method": "clip_v", "mu_low": 1.0, "scope": "all"})
    fake.add_steps(run, 4)  # with a marker, so that the chart is drawn anew and not only extended
    wait_for_step(page, 105)
    eventually(page, "data[2].x.at(-1)", 105)
    assert entropy_chart(page, "layout.xaxis.range") == zoomed


def test_a_window_shows_its_last_steps_and_slides(fake: FakeApi, open_page: OpenPage) -> None:
    run = fake.add_run(steps=300)
    page = open_page(PATH).page
    page.get_by_role("radiogroup").get_by_text("200", exact=True).click()
    eventually(page, "data[2].x.length", 200)
    fake.add_steps(run, 10)
    wait_for_step(page, 310)
    eventually(page, "data[2].x.at(-1)", 310)
    assert entropy_chart(page, "data[2].x[0]") == 111


def test_hostile_text_stays_text(fake: FakeApi, open_page: OpenPage) -> None:
    hostile = "<img src=x onerror=\"document.title='owned'\">"
    run = fake.add_run(steps=30, name=hostile)
    run.request_control({"method": "clip_v", "mu_low": 1.0, "scope": "all", "reason": hostile})
    for _ in range(3):
        run.add_step()
    run.request_control({"method": hostile, "scope": hostile, "reason": "=cmd()"})
    watched = open_page(PATH)
    expect(watched.page.locator("#history-grid [row-id=v1]")).to_contain_text(hostile)
    assert watched.page.locator("img[src=x]").count() == 0
    assert watched.page.title() == f"{hostile} · Isentrope"
    assert watched.problems == []


def test_the_history_is_exported_with_formulas_made_harmless(fake: FakeApi, open_page: OpenPage) -> None:
    run = fake.add_run(steps=3)
    run.request_control({"method": "clip_v", "mu_low": 1.0, "scope": "all", "reason": "=cmd()"})
    page = open_page(PATH).page
    expect(page.locator("#history-grid [row-id=v1]")).to_contain_text("=cmd()")
    with page.expect_download() as download:
        page.click("#history-export")
    text = download.value.path().read_text(encoding="utf-8-sig")
    assert '"Time","Version","Author"' in text
    assert '"\'=cmd()"' in text


def test_a_run_without_data_says_so_and_comes_alive(fake: FakeApi, open_page: OpenPage) -> None:
    run = fake.add_run(planned_steps=None)
    watched = open_page(PATH)
    page = watched.page
    expect(page.locator("#kpi-entropy-value")).to_have_text("–")
    expect(page.locator("#entropy-graph")).to_contain_text("Waiting for the first step")
    fake.add_steps(run, 2)
    wait_for_step(page, 2)
    eventually(page, "data[2].x.length", 2)
    expect(page.locator("#entropy-graph")).not_to_contain_text("Waiting")
    expect(page.locator("#kpi-predicted-value")).to_have_text("–")
    assert watched.problems == []


def test_a_lines_first_points_are_seen_as_they_come(fake: FakeApi, open_page: OpenPage) -> None:
    run = fake.add_run(steps=20)
    page = open_page(PATH).page
    fake.add_steps(run)  # the prediction's first value
    wait_for_step(page, 21)
    eventually(page, "data[4].mode", "lines+markers")
    fake.add_steps(run)
    eventually(page, "data[4].mode", "lines")
    eventually(page, "data[4].y.filter((value) => value !== null).length", 2)


def test_a_browser_without_shared_worker_is_kept_up_to_date_slowly(fake: FakeApi, open_page: OpenPage) -> None:
    run = fake.add_run(steps=10)
    page = open_page(PATH, init_script="delete window.SharedWorker").page
    fake.add_steps(run, 5)
    wait_for_step(page, 15)
    assert entropy_chart(page, "data[2].x.at(-1)") == 15


def test_a_stream_that_breaks_off_is_taken_up_again_without_a_gap(fake: FakeApi, open_page: OpenPage) -> None:
    run = fake.add_run(steps=10)
    page = open_page(PATH).page
    fake.add_steps(run)
    wait_for_step(page, 11)
    fake.close_streams()
    fake.add_steps(run, 3)
    wait_for_step(page, 14)
    eventually(page, "data[2].x.length", 14)


@pytest.mark.usefixtures("own_server")
@pytest.mark.parametrize("path", [PATH, "/"])
def test_a_page_whose_server_is_gone_says_so_until_it_is_back(
    fake: FakeApi, open_page: OpenPage, served: str, path: str
) -> None:
    fake.add_run(steps=10)
    page = open_page(path).page
    lost, status = page.locator("#connection").get_by_text("Connection lost"), page.locator("#run-status")
    page.wait_for_timeout(1500)
    expect(lost).to_be_hidden()
    fake.stop()
    expect(lost).to_be_visible(timeout=60_000)
    expect(status).to_be_hidden()
    with serving(fake, int(served.rsplit(":", 1)[1])):
        expect(lost).to_be_hidden(timeout=90_000)
        if path == PATH:
            expect(status).to_have_text("Live")


def test_a_page_that_polls_is_connected(fake: FakeApi, open_page: OpenPage) -> None:
    fake.add_run(steps=10)
    page = open_page(PATH, init_script="delete window.SharedWorker").page
    page.wait_for_timeout(12_000)
    expect(page.locator("#connection").get_by_text("Connection lost")).to_be_hidden()
    expect(page.locator("#run-status")).to_have_text("Live")


@pytest.mark.parametrize("width", [400, 1280, 1400])
def test_no_badge_and_no_button_is_cut(fake: FakeApi, open_page: OpenPage, width: int) -> None:
    fake.add_run(steps=30)
    page = open_page(PATH).page
    page.set_viewport_size({"width": width, "height": 1000})
    cut = """() => [...document.querySelectorAll(
        '.panel-head .mantine-Badge-label, .panel-head button, .panel-head .mantine-Button-label, '
        + '.panel-head .mantine-SegmentedControl-root, .kpi .mantine-Badge-label')]
      .filter((e) => e.scrollWidth > e.clientWidth + 1 || e.getBoundingClientRect().right > e.closest('.mantine-Card-root').getBoundingClientRect().right)
      .map((e) => e.textContent)"""
    page.wait_for_timeout(500)
    assert page.evaluate(cut) == []
    choose_clip_v(page, "0.75")
    expect(page.locator("#control-badge")).to_have_text("2 changes")
    assert page.evaluate(cut) == []
    if width == 400:
        assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize(("width", "labels"), [(400, ["µ₋ 2.00"]), (1600, ["Clip_V · µ₋ 1.00", "µ₋ 2.00"])])
def test_a_narrow_chart_labels_the_newest_control_alone(
    fake: FakeApi, open_page: OpenPage, width: int, labels: list[str]
) -> None:
    run = fake.add_run(steps=30)
    for mu_low in (1.0, 2.0):
        run.request_control({"method": "clip_v", "mu_low": mu_low, "scope": "all"})
        for _ in range(3):
            run.add_step()
    page = open_page(PATH, width=width).page
    eventually(page, "layout.annotations.map((label) => label.text)", labels)
    eventually(page, "layout.shapes.length", 2)


def test_the_list_links_to_each_run_and_follows_their_status(fake: FakeApi, open_page: OpenPage) -> None:
    first: FakeRun = fake.add_run(steps=10)
    fake.add_run("run-000002", "second", steps=5)
    watched = open_page("/")
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


def test_an_unknown_run_is_named_and_the_list_offered(fake: FakeApi, open_page: OpenPage) -> None:
    fake.add_run()
    page = open_page("/runs/nowhere", ready=".mantine-Alert-root").page
    expect(page.locator(".mantine-Alert-root")).to_contain_text("There is no run nowhere.")


def test_the_page_calls_the_api_with_the_readers_own_token(fake: FakeApi, open_page: OpenPage) -> None:
    run = fake.add_run(steps=3)
    page = open_page(PATH).page
    fake.add_steps(run)
    wait_for_step(page, 4)
    live = [token for method, path, token in fake.requests if path.endswith("/live")]
    assert live
    assert {token for _, _, token in fake.requests} == {"fake-token"}
