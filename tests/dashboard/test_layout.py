"""Nothing is printed over something else: at any size, in both schemes, no two texts of a run's
page touch, and none leaves its card."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from isentrope_wire.metrics import HOLD_TARGET
from isentrope_wire.reports import Alert, AlertLevel, StepReport
from tests.dashboard.conftest import OpenPage, Site
from tests.dashboard.test_states import finished

SIZES = ((1440, 900), (1920, 1080), (390, 844))
SETTLED_MILLISECONDS = 250

TOUCHING = """() => {
  const cut = (a, b) => ({
    left: Math.max(a.left, b.left),
    right: Math.min(a.right, b.right),
    top: Math.max(a.top, b.top),
    bottom: Math.min(a.bottom, b.bottom),
  });
  const isOutside = (a, b) =>
    a.left < b.left - 1 || a.right > b.right + 1 || a.top < b.top - 1 || a.bottom > b.bottom + 1;
  const boxes = [], range = document.createRange();
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode, own = node.parentElement, words = node.textContent.trim();
    const isShown = own.checkVisibility({
      contentVisibilityAuto: true, opacityProperty: true, visibilityProperty: true,
    });
    const isUnderSheet = document.body.dataset.sheet && innerWidth < 768
      && !own.closest(".control");
    if (!words || !isShown || isUnderSheet || own.closest(".sr-only, script, style")) continue;
    range.selectNodeContents(node);
    let box = range.getBoundingClientRect();
    // What scrolls, or ends in an ellipsis, may be cut; words of a picture may not.
    for (let at = own; at && at !== document.body; at = at.parentElement)
      if (at.tagName !== "svg" && /hidden|auto|scroll|clip/.test(getComputedStyle(at).overflow))
        box = cut(box, at.getBoundingClientRect());
    if (box.right - box.left < 1 || box.bottom - box.top < 1) continue;
    const frames = [own.closest(".card, .health"), own.closest("svg")].filter(Boolean);
    const leaves = frames.some((frame) => isOutside(box, frame.getBoundingClientRect()));
    boxes.push({ own: own.closest("text") || own, box, words, leaves });
  }
  const isWide = document.documentElement.scrollWidth > innerWidth;
  const found = boxes.filter(({ leaves }) => leaves)
    .map(({ words }) => "leaves its card: " + words);
  if (isWide) found.push("scrolls sideways");
  boxes.forEach((a, at) => boxes.slice(at + 1).forEach((b) => {
    const both = cut(a.box, b.box);
    const touch = both.right - both.left > 2 && both.bottom - both.top > 2;
    if (touch && !a.own.contains(b.own) && !b.own.contains(a.own))
      found.push(a.words + " × " + b.words);
  }));
  return found;
}"""


def several_controls(site: Site) -> str:
    run = site.run(40)
    controls: list[dict[str, Any]] = [
        {"method": "clip_v", "mu_low": 5.5, "scope": "decreasing"},
        {},
        {"method": "clip_b", "mu_low": 1.0},
    ]
    for version, control in enumerate(controls, start=1):
        site.client.set_control(
            run, if_version=version - 1, reason="because the entropy falls", **control
        )
        site.apply(run, version)
    site.more(run, 30)
    return run


FINDINGS = ("not_finite", "repetition", "zero_advantage", "reward_parts")


def held(report: StepReport) -> StepReport:
    """A run of many steps; at its end much is found at once."""
    findings = FINDINGS if report.step == 58 else ()
    alerts = [Alert(kind=kind, level=AlertLevel.ACT, message="0 % " * 40) for kind in findings]
    return replace(
        report,
        step=report.step + 1000,
        scalars={**report.scalars, HOLD_TARGET: 0.3},
        alerts=(*report.alerts, *alerts),
    )


def tried(page: Page) -> None:
    page.locator("#try").click()
    expect(page.locator("#control-status")).to_contain_text("Not pushed")
    expect(page.locator(".what-if .unchanged")).to_contain_text("as now")


def previewed(page: Page) -> None:
    """Who may not push sees what thresholds would do."""
    expect(page.locator(".what-if .unchanged")).to_contain_text("as now")
    expect(page.locator("#control-push")).to_be_hidden()


STATES: dict[str, tuple[Callable[[Site], str], Callable[[Page], None]]] = {
    "empty": (lambda site: site.run(0), lambda page: None),
    "read by a reader": (lambda site: site.run(14), previewed),
    "act": (lambda site: site.run(60), tried),
    "controls": (several_controls, lambda page: None),
    "held": (lambda site: site.run(60, change=held), lambda page: None),
    "failed": (
        lambda site: site.run(
            50, name="grpo-7b-lr1e-5-" * 4, finished=finished("failed", "CUDA " * 40)
        ),
        lambda page: expect(page.locator(".last-output")).to_be_visible(),
    ),
}


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.parametrize("state", STATES)
def test_no_two_texts_touch_and_none_leaves_its_card(
    state: str, site: Site, open_page: OpenPage
) -> None:
    make, do = STATES[state]
    token = site.server.token("read") if "reader" in state else None
    page = open_page(f"/runs/{make(site)}", token=token)
    expect(page.locator(".health")).to_be_visible()
    do(page)
    problems = {}
    for width, height in SIZES:
        page.set_viewport_size({"width": width, "height": height})
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            for _ in range(8):  # on a busy machine a chart takes its time to follow
                page.wait_for_timeout(SETTLED_MILLISECONDS)
                problems[width, scheme] = page.evaluate(TOUCHING)
                if not problems[width, scheme]:
                    break
    assert {where: found for where, found in problems.items() if found} == {}
