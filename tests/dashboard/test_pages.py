"""What holds for every page and every tab: no violation that axe-core finds, no sideways scroll on
a telephone, nothing runs that a run, a tag or a token brought along."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from isentrope_dashboard.pages.run import TABS
from isentrope_wire.reports import RunFinished, StepReport
from tests.dashboard.conftest import OpenPage, Site

pytestmark = pytest.mark.browser

PIECES = (
    "<img src=x onerror=window.ran=1>",
    "<script>window.ran=1</script>",
    '"><svg onload=window.ran=1>',
    "javascript:window.ran=1",
    "{{constructor.constructor('window.ran=1')()}}",
    "<b>bold</b>",
    "<a href='javascript:1'>x</a>",
    "</title><script>window.ran=1</script>",
    "$\\href{javascript:window.ran=1}{x}$",
    "%{x}<extra></extra>",
)
WRAPPED = (
    "{}",
    "a{}",
    "{}b",
    "'{}'",
    '"{}"',
    "<!--{}-->",
    "&lt;{}&gt;",
    "\u202e{}",
    "{}\u2028",
    "\\{}",
    "`{}`",
    "<{}>",
    "[{}](x)",
    "{}{}",
    "\ufeff{}",
    "x={}&y",
    "/*{}*/",
    "<p>{}</p>",
    "'-{}-'",
    "</p>{}",
)
PAYLOADS = [wrapping.replace("{}", piece) for piece in PIECES for wrapping in WRAPPED]
"""200 texts that would run, or break out of their place, where a page took them for markup."""


def violations(page: Page) -> list[str]:
    found = Axe().run(page).response["violations"]
    return [
        f"{rule['id']}: {node['html'][:200]} {node['failureSummary']}"
        for rule in found
        for node in rule["nodes"]
    ]


@pytest.fixture(scope="module")
def run(site: Site) -> str:
    return site.run(60, tags=("7b",), finished=None)


ADDRESSES = [
    "/",
    "/?order=project",
    "/compare?run={run}",
    "/access",
    "/start",
    *(f"/runs/{{run}}?tab={tab}" for tab in TABS),
]


@pytest.mark.slow
@pytest.mark.parametrize("address", ADDRESSES)
def test_no_page_has_a_violation_and_none_scrolls_sideways(
    address: str, site: Site, run: str, open_page: OpenPage
) -> None:
    for scheme in ("light", "dark"):
        page = open_page(address.format(run=run), scheme=scheme)
        page.wait_for_timeout(1_500)
        assert violations(page) == []
    page.set_viewport_size({"width": 390, "height": 844})
    page.wait_for_timeout(500)
    wide = page.evaluate("""() => [...document.querySelectorAll('body *')].filter((e) => {
             const box = e.getBoundingClientRect();
             if (!box.width || box.right <= innerWidth + 1) return false;
             for (let p = e; p && p !== document.body; p = p.parentElement)
               if (/auto|scroll|hidden|clip/.test(getComputedStyle(p).overflowX)) return false;
             return true;
           }).slice(0, 5).map((e) => e.tagName + '.' + e.className)""")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390, wide
    assert violations(page) == []


@pytest.mark.slow
def test_a_phone_keeps_header_and_shadow(run: str, open_page: OpenPage) -> None:
    """The header stays in sight; a shadow is at that end of the tabs where there are more."""
    page = open_page(f"/runs/{run}", width=390, height=844)
    tabs = page.locator(".bar .tabs")
    box = tabs.bounding_box()
    assert box is not None

    def ends() -> list[bytes]:
        places = (box["x"] + 2, box["x"] + box["width"] - 8)
        return [
            page.screenshot(clip={"x": x, "y": box["y"] + 2, "width": 6, "height": 3})
            for x in places
        ]

    left, right = ends()
    assert left != right
    tabs.evaluate("(tabs) => { tabs.scrollLeft = tabs.scrollWidth; }")
    page.wait_for_timeout(200)
    after_left, after_right = ends()
    assert after_right == left
    assert after_left != left
    page.evaluate("scrollTo(0, document.body.scrollHeight)")
    page.wait_for_function("() => scrollY > 400")
    expect(page.locator(".top")).to_be_in_viewport()
    assert page.locator(".top").evaluate("(top) => top.getBoundingClientRect().top") == 0


@pytest.mark.slow
def test_hostile_texts_stay_texts(site: Site, open_page: OpenPage) -> None:
    def hostile(report: StepReport) -> StepReport:
        tokens = tuple(
            replace(token, text=PAYLOADS[(report.step * 16 + place) % len(PAYLOADS)][:40])
            for place, token in enumerate(report.tokens)
        )
        rollouts = tuple(
            replace(
                rollout,
                texts=tuple(PAYLOADS[place % len(PAYLOADS)] for place in range(len(rollout.texts))),
            )
            for rollout in report.rollouts
        )
        labels = {f"own/{number}": text for number, text in enumerate(PAYLOADS[:20])}
        scalars = {f"own/{text[:60]}": 1.0 for text in PAYLOADS[20:60]}
        return replace(
            report,
            tokens=tokens,
            rollouts=rollouts,
            labels={**report.labels, **labels},
            scalars={**report.scalars, **scalars},
        )

    runs = [
        site.run(
            20,
            name=" ".join(PAYLOADS[part::10])[:200],
            project=PAYLOADS[part][:60],
            tags=tuple(text[:60] for text in PAYLOADS[part::20]),
            config={text[:80]: text for text in PAYLOADS[part::5]},
            change=hostile,
            finished=(
                RunFinished(status="failed", error="\n".join(PAYLOADS), finished_at=time.time())
                if part
                else None
            ),
        )
        for part in range(2)
    ]
    of_runs = [f"/runs/{run}?tab={tab}" for run in runs for tab in TABS]
    pages = {
        address: open_page(address)
        for address in ["/", f"/compare?run={runs[0]}&run={runs[1]}", *of_runs]
    }
    pages["/"].wait_for_timeout(1_500)
    for address, page in pages.items():
        assert page.evaluate("window.ran") is None, address
        assert page.locator("main img[src=x], main a[href^=javascript]").count() == 0, address


def test_an_unknown_run_is_said_to_be_none(site: Site, open_page: OpenPage) -> None:
    expect(open_page("/runs/nowhere").locator(".refusal")).to_contain_text("nowhere")
