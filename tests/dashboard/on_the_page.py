"""What a person does on a page of the dashboard, and what a test reads from it."""

from __future__ import annotations

import json
import time
from typing import Any

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Locator, Page, expect

from tests.dashboard.fake_predictions import tail

PATH = "/runs/run-000001"


def choose_clip_v(page: Page, mu_low: str) -> None:
    page.click("#control-method")
    page.get_by_role("option", name="Clip_V").click()
    page.locator("#mu-low-switch").check(force=True)
    page.fill("#mu-low-number", mu_low)
    expect(page.locator("#control-push")).to_be_enabled()


def push(page: Page, version: int) -> None:
    expect(page.locator("#control-push")).to_be_enabled()
    page.click("#control-push")
    expect(page.locator("#control-progress")).to_contain_text(f"v{version}")


def choose_metric(page: Page, field: str, typed: str, name: str) -> None:
    page.click(field)
    page.fill(field, typed)
    page.get_by_role("option", name=name, exact=True).click()


def parameter_field(page: Page, method: str, name: str) -> Locator:
    # Dash writes the id of a field that patterns match as JSON with sorted names.
    return page.locator(f'[id=\'{{"method":"{method}","name":"{name}","type":"parameter"}}\']')


def step_shown(page: Page) -> int:
    return int(page.inner_text("#run-step .strong").replace(",", "").replace("–", "0"))


def wait_for_step(page: Page, step: int) -> None:
    until = time.monotonic() + 60
    while step_shown(page) < step:
        assert time.monotonic() < until, f"the page still shows step {step_shown(page)} instead of {step}"
        page.wait_for_timeout(50)


def entropy_chart(page: Page, expression: str) -> Any:
    """What the entropy chart has, e.g. `data[2].x.length`: traces 2, 3, 4 are entropy, observed and predicted change.

    None before it is drawn for the first time."""
    return page.evaluate(f"document.querySelector('#entropy-graph .js-plotly-plot')?.{expression}")


def eventually(page: Page, expression: str, value: object) -> None:
    """Wait until the entropy chart has `value` there. (The page's policy forbids playwright's own waiting, by eval.)"""
    until = time.monotonic() + 60
    while (found := entropy_chart(page, expression)) != value:
        assert time.monotonic() < until, f"{expression} is still {found!r} instead of {value!r}"
        page.wait_for_timeout(50)


def expect_chart(page: Page, graph: str, expression: str, value: object) -> None:
    """A chart is drawn a little later than the words beside it."""
    seen = f"document.querySelector('#{graph} .js-plotly-plot')?.{expression}"
    page.wait_for_function(
        f"(value) => {{ try {{ return JSON.stringify({seen}) === value }} catch {{ return false }} }}",
        arg=json.dumps(value, separators=(",", ":"), ensure_ascii=False),
    )


def would_clip(mu_low: float | None, mu_high: float | None) -> str:
    """Share of all tokens that these thresholds would clip, by the fake API."""
    return f"{100 * (tail(mu_low, 0.45) + tail(mu_high, 0.5)):.2f}%"


def violations(page: Page) -> list[str]:
    """What axe-core finds: rule, where, and what is wrong."""
    found: list[dict[str, Any]] = Axe().run(page).response["violations"]
    return [f"{rule['id']}: {node['html'][:200]} {node['failureSummary']}" for rule in found for node in rule["nodes"]]


def settled(page: Page) -> None:
    """Wait until every chart is as wide as its place after a change of the window's size."""
    page.wait_for_function(
        """() => [...document.querySelectorAll('.dash-graph .js-plotly-plot')].every((plot) =>
            !plot.clientWidth || Math.abs(plot.querySelector('.main-svg').clientWidth - plot.clientWidth) <= 1)"""
    )
