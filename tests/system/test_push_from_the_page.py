"""The journey a newcomer makes: the demo runs, the page is opened, a µ is pushed, the trainer applies it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import Browser, BrowserContext, expect

from tests.browsing import Watched
from tests.trainer.running_demo import running_demo

pytestmark = [pytest.mark.browser, pytest.mark.slow]

CHART = "document.querySelector('#entropy-graph .js-plotly-plot')"
STEP = "Number(document.querySelector('#run-step .strong').innerText.replaceAll(',', ''))"


@pytest.fixture
def demo_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, str, str]]:
    """The server's address, the login address and the run's id of a demo that trains for as long as the test lasts."""
    for name in ("ISENTROPE_TOKEN", "ISENTROPE_URL", "ISENTROPE_GRPC", "ISENTROPE_RUN_ID", "ISENTROPE_MODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ISENTROPE_HOME", str(tmp_path / "home"))
    with running_demo("--steps", "100000", "--prompts", "4") as (_, url, login, run_id):
        yield url, login, run_id


@pytest.fixture
def context(browser: Browser, demo_run: tuple[str, str, str]) -> Iterator[BrowserContext]:
    """A browser that has logged in with the printed address."""
    with browser.new_context(viewport={"width": 1600, "height": 1000}) as context:
        context.set_default_timeout(60_000)
        page = context.new_page()
        page.goto(demo_run[1])
        page.wait_for_selector(".run-link")
        assert "token=" not in page.url
        page.close()
        yield context


def open_run(context: BrowserContext, url: str, run_id: str, scheme: Literal["dark", "light"]) -> Watched:
    page = context.new_page()
    page.emulate_media(color_scheme=scheme)
    watched = Watched(page, url)
    page.goto(f"{url}/runs/{run_id}")
    page.wait_for_selector("#control-progress [data-state]")
    return watched


def test_pushed_threshold_is_applied_and_marked(context: BrowserContext, demo_run: tuple[str, str, str]) -> None:
    url, _, run_id = demo_run
    watched = open_run(context, url, run_id, "dark")
    page = watched.page
    expect(page.locator("#run-status")).to_contain_text("Live")

    page.click("#control-method")
    page.get_by_role("option", name="Clip_V").click()
    page.locator("#mu-low-switch").check(force=True)
    page.fill("#mu-low-number", "0.75")
    page.fill("#control-reason", "hold the entropy")
    page.click("#control-push")
    page.wait_for_selector("#control-progress [data-state=APPLIED][data-version='1']")

    expect(page.locator("#control-progress")).to_contain_text("applied at step")
    expect(page.locator("#mu-low-running")).to_contain_text("0.75")
    expect(page.locator("#history-grid [row-id=v1]")).to_contain_text("hold the entropy")
    assert page.evaluate(f"{CHART}.layout.shapes.length") >= 1

    # The page goes on without reloading.
    page.wait_for_function(f"before => {STEP} > before", arg=page.evaluate(STEP))
    assert watched.problems == []

    in_light = open_run(context, url, run_id, "light")
    expect(in_light.page.locator("#control-method-running")).to_contain_text("Clip_V")
    assert in_light.problems == []
