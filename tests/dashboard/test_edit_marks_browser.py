"""Each field of the form says whether it was edited here or set by somebody else meanwhile, and goes back by itself."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.dashboard.conftest import OpenPage
from tests.dashboard.fake_api import FakeApi
from tests.dashboard.test_accessibility_browser import violations
from tests.dashboard.test_browser import PATH, parameter_field, wait_for_step
from tests.dashboard.test_followed_control_browser import CLIPPED, HELD, HOLD, SHOWN, Form, clipping_run, script

__all__ = ["script"]
pytestmark = pytest.mark.browser


@pytest.mark.parametrize(
    ("base", "shown", "edited", "marks"),
    [
        pytest.param({}, {}, {}, {}, id="nothing"),
        pytest.param({}, {}, {"high": 3}, {"mu_high": ("edited", "Edited; was 2")}, id="a threshold"),
        pytest.param({}, {}, {"low_on": True}, {"mu_low": ("edited", "Edited; was off")}, id="a threshold switched on"),
        pytest.param({}, {}, {"scope": "negative"}, {"scope": ("edited", "Edited; was all")}, id="the scope"),
        pytest.param({}, {}, {"max_fraction": "0.1"}, {"max_fraction": ("edited", "Edited; was off")}, id="a parameter"),
        pytest.param(
            {}, {}, {"method": "clip_cov", "ratio": "0.3"},
            {"method": ("edited", "Edited; was Clip_V"), "ratio": ("edited", "Edited; was 0.0002"),
             "mu_high": ("edited fixed", "Off with this method; was 2")},
            id="a method, and what goes with it",
        ),
        pytest.param({}, {}, {"hold_on": True, "target": "1"}, {"hold": ("edited", "Edited; was off")}, id="a hold"),
        pytest.param(
            {"hold": HOLD}, HELD, {"target": "0.7", "mu_min": ""},
            {"hold.target_entropy": ("edited", "Edited; was 0.5"), "hold.mu_min": ("edited", "Edited; was 0")},
            id="fields of a hold",
        ),
    ],
)  # fmt: skip
def test_a_field_is_marked_where_it_is_not_what_is_in_force(
    script: Page,
    base: dict[str, Any],
    shown: dict[str, Any],
    edited: dict[str, Any],
    marks: dict[str, tuple[str, str]],
) -> None:
    form = Form(script, {**CLIPPED, **base}, {**SHOWN, **shown, **edited})
    assert form.marks() == marks
    assert form.state()[0] == ("in sync" if not marks else f"{len(marks)} change{'s' * (len(marks) > 1)}")


@pytest.mark.parametrize(
    ("base", "shown", "edited", "field", "back"),
    [
        pytest.param({}, {}, {"high": 3, "scope": "negative"}, "mu_high", {"high": 2}, id="a threshold"),
        pytest.param({}, {}, {"high": "", "scope": "negative"}, "mu_high", {"high": 2}, id="a half typed one"),
        pytest.param({}, {}, {"low_on": True, "low": 4}, "mu_low", {"low_on": False}, id="one that was off"),
        pytest.param({}, {}, {"high": 3, "scope": "negative"}, "scope", {"scope": "all"}, id="the scope"),
        pytest.param({}, {}, {"method": "none", "scope": "negative"}, "method", {"method": "clip_v"}, id="the method"),
        pytest.param({}, {}, {"max_fraction": "0.1", "high": 3}, "max_fraction", {"max_fraction": ""}, id="a parameter"),
        pytest.param({}, {}, {"method": "clip_cov", "ratio": "1"}, "ratio", {"ratio": "0.0002"}, id="to its default"),
        pytest.param({}, {}, {"hold_on": True, "target": "1"}, "hold", {"hold_on": False}, id="a hold"),
        pytest.param(
            {"hold": HOLD}, HELD, {"target": "0.7", "mu_min": "1"}, "hold.mu_min", {"mu_min": "0"}, id="a bound of a hold"
        ),
        pytest.param({"hold": HOLD}, HELD, {"side": "raise", "high": 3}, "hold.side", {"side": "both"}, id="its side"),
    ],
)  # fmt: skip
def test_one_field_goes_back_alone(
    script: Page,
    base: dict[str, Any],
    shown: dict[str, Any],
    edited: dict[str, Any],
    field: str,
    back: dict[str, Any],
) -> None:
    form = Form(script, {**CLIPPED, **base}, {**SHOWN, **shown, **edited})
    assert field in form.marks()
    assert form.revert(field) == back
    assert field not in form.marks()


def test_fields_tell_mine_from_a_colleague_s_and_from_those_we_both_changed(script: Page) -> None:
    form = Form(script, CLIPPED, {**SHOWN, "high": 3})
    form.follow({**CLIPPED, "mu_high": 4.0, "scope": "positive", "parameters": {"max_fraction": 0.1}})
    assert form.marks() == {
        "mu_high": ("edited contested", "Edited; alice set 4 meanwhile, was 2"),
        "scope": ("theirs", "Set by alice meanwhile; was all"),
        "max_fraction": ("theirs", "Set by alice meanwhile; was off"),
    }
    form.follow({**CLIPPED, "mu_high": 4.0, "scope": "negative", "parameters": {"max_fraction": 0.1}}, author="bob")
    assert form.marks()["scope"] == ("theirs", "Set by bob meanwhile; was all")
    form.shown["max_fraction"] = "0.2"
    assert form.marks()["max_fraction"] == ("edited", "Edited; was 0.1")
    assert form.revert("mu_high") == {"high": 4}  # theirs, which is what is in force
    assert form.revert("max_fraction") == {"max_fraction": "0.1"}
    assert form.marks() == {}  # nothing of mine is left to tell theirs from


def test_what_followed_a_push_while_nothing_was_edited_carries_no_mark(script: Page) -> None:
    form = Form(script, CLIPPED, dict(SHOWN))
    form.follow({**CLIPPED, "mu_high": 4.0, "scope": "positive"})
    form.shown["max_fraction"] = "0.2"
    assert form.marks() == {"max_fraction": ("edited", "Edited; was off")}


def marked(page: Page, field: str) -> Locator:
    return page.locator(f'[id*=\'"field":"{field}"\'][id*="edit-mark"]:visible')


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_edits_stay_marked_through_live_news_and_one_is_taken_back(
    fake: FakeApi, open_page: OpenPage, scheme: str
) -> None:
    run = clipping_run(fake)
    watched = open_page(PATH, scheme=scheme)
    page, badge = watched.page, watched.page.locator("#control-badge")
    expect(badge).to_have_text("in sync")
    expect(page.locator(".mark-line:visible")).to_have_count(0)
    page.fill("#mu-high-number", "3")
    parameter_field(page, "clip_v", "max_fraction").fill("0.5")
    expect(marked(page, "mu_high")).to_contain_text("Edited; was 2")
    run.request_control({**CLIPPED, "scope": "decreasing"})
    fake.add_steps(run, 4)
    wait_for_step(page, 17)
    expect(marked(page, "scope")).to_contain_text("Set by alice meanwhile; was all")
    expect(page.locator("#mu-high-number")).to_have_value("3.00")
    expect(badge).to_have_text("2 changes")
    page.get_by_role("button", name="Close this notification").click()
    expect(page.locator(".mantine-Notification-root")).to_have_count(0)
    assert violations(page) == []
    page.get_by_role("button", name="Revert Upper threshold").click()
    expect(page.locator("#mu-high-number")).to_have_value("2.00")
    expect(marked(page, "mu_high").locator(".mark-line")).to_be_hidden()
    expect(parameter_field(page, "clip_v", "max_fraction")).to_have_value("0.5")
    expect(badge).to_have_text("1 change")
    page.click("#control-reset")
    expect(page.locator(".mark-line:visible")).to_have_count(0)
    assert watched.problems == []
