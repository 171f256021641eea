"""Nothing is printed over something else: at any size, in both schemes, no two texts of a run's page touch, and none leaves its card."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import pytest
from playwright.sync_api import Page, expect

from isentrope_wire.metrics import HOLD_TARGET
from isentrope_wire.reports import ControlOutcome, OutcomeState, RunFinished, StepReport
from tests.dashboard.conftest import OpenPage, Site, recording

SIZES = ((1440, 900), (1920, 1080), (390, 844))
SETTLED_MILLISECONDS = 250

TOUCHING = """() => {
  const cut = (box, by) => ({ left: Math.max(box.left, by.left), right: Math.min(box.right, by.right), top: Math.max(box.top, by.top), bottom: Math.min(box.bottom, by.bottom) });
  const boxes = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const own = node.parentElement;
    if (!node.textContent.trim() || own.closest(".sr-only, script, style, title")) continue;
    if (!own.checkVisibility({ contentVisibilityAuto: true, opacityProperty: true, visibilityProperty: true })) continue;
    // Over the page lies a sheet.
    if (document.body.dataset.sheet && innerWidth < 768 && !own.closest(".control")) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    let box = range.getBoundingClientRect();
    for (let at = own; at && at !== document.body; at = at.parentElement) {
      const { overflowX, overflowY } = getComputedStyle(at);
      if (overflowX !== "visible" || overflowY !== "visible" || at.tagName === "svg") {
        const frame = at.getBoundingClientRect();
        // Words of a picture that it cuts are an error; what scrolls, or ends in an ellipsis, is not.
        if (at.tagName !== "svg") box = cut(box, frame);
        else if (own.closest(".plot") && (box.right > frame.right + 1 || box.left < frame.left - 1)) boxes.push({ cut: true, text: node.textContent });
      }
    }
    if (box.right - box.left < 1 || box.bottom - box.top < 1) continue;
    const card = own.closest(".card, .health")?.getBoundingClientRect();
    const leaves = card && (box.left < card.left - 1 || box.right > card.right + 1 || box.top < card.top - 1 || box.bottom > card.bottom + 1);
    boxes.push({ own: own.closest("text") || own, box, leaves, text: node.textContent.trim() });
  }
  const found = boxes.filter((one) => one.cut || one.leaves).map((one) => (one.cut ? "cut: " : "leaves its card: ") + one.text);
  const placed = boxes.filter((one) => one.box);
  placed.forEach((a, at) => placed.slice(at + 1).forEach((b) => {
    if (a.own === b.own || a.own.contains(b.own) || b.own.contains(a.own)) return;
    const both = cut(a.box, b.box);
    if (both.right - both.left > 2 && both.bottom - both.top > 2) found.push(a.text + " × " + b.text);
  }));
  return found;
}"""


def applied(site: Site, run: str, version: int, **control: object) -> None:
    """Push a control, and send the step that it is applied from."""
    site.client.set_control(run, if_version=version - 1, reason="because the entropy falls", **control)  # type: ignore[arg-type]
    rank = site.rank(run)
    report = recording().reports[rank.seq]
    outcome = ControlOutcome(version=version, state=OutcomeState("APPLIED"), at=time.time(), step=report.step)
    rank.send(replace(report, recorded_at=time.time(), control_version=version, outcomes=(outcome,)))


def several_controls(site: Site) -> str:
    run = site.run(40, name="controls")
    applied(site, run, 1, method="clip_v", mu_low=5.5, mu_high=5.5, scope="decreasing")
    applied(site, run, 2, method="none")
    applied(site, run, 3, method="clip_b", mu_low=1.0)
    site.more(run, 30)
    return run


def held(site: Site) -> str:
    def at_target(report: StepReport) -> StepReport:
        return replace(report, scalars={**report.scalars, HOLD_TARGET: 0.3})

    return site.run(60, name="held", change=at_target)


def failed(site: Site) -> str:
    over = RunFinished(
        status="failed", finished_at=time.time(), error="Traceback\ntorch.OutOfMemoryError: " + "CUDA " * 20
    )
    return site.run(50, name="grpo-7b-math-lr1e-5-batch64-seed3-with-a-long-name", finished=over)


def tried(page: Page) -> None:
    page.locator("#try").click()
    expect(page.locator("#control-status")).to_contain_text("Not pushed")
    expect(page.locator(".what-if .unchanged")).to_contain_text("unchanged")


def previewed(page: Page) -> None:
    """Who may not push sees what thresholds would do."""
    expect(page.locator(".what-if .unchanged")).to_contain_text("unchanged")
    expect(page.locator("#control-push")).to_be_hidden()


STATES: dict[str, tuple[Callable[[Site], str], Callable[[Page], None]]] = {
    "empty": (lambda site: site.run(0, name="empty"), lambda page: None),
    "read by a reader": (lambda site: site.run(14, name="early"), previewed),
    "act": (lambda site: site.run(60, name="act"), tried),
    "controls": (several_controls, lambda page: None),
    "held": (held, lambda page: None),
    "failed": (failed, previewed),
}


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.parametrize("state", STATES)
def test_no_two_texts_touch_and_none_leaves_its_card(state: str, site: Site, open_page: OpenPage) -> None:
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
            page.wait_for_timeout(SETTLED_MILLISECONDS)
            problems[width, scheme] = page.evaluate(TOUCHING)
    assert {where: found for where, found in problems.items() if found} == {}
