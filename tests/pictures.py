"""Take the README's pictures: `make pictures`.

    python -m tests.pictures [FOLDER]

The small model of `isentrope demo` collapses; the control that the page suggests is tried, pushed
and judged. The tokens are those of the recorded language model, `isentrope demo --replay`.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Literal
from unittest import mock

from playwright.sync_api import Browser, Page, ViewportSize, expect

from isentrope_dashboard.components.control_card import PUSH
from isentrope_dashboard.pages.overview import TRY
from tests.browsing import chromium
from tests.trainer.running_demo import login_address, running_demo

FOLDER = Path(__file__).parents[1] / "docs" / "pictures"
STEPS_A_SECOND = 2.0
"""Of the recorded run."""
AT_THE_FALL, AFTER_THE_PUSH = 20, 30
"""A step of the recorded run, and steps of the small model from the push to the verdict."""
LONGEST_SECONDS = 900
SIZE: ViewportSize = {"width": 1440, "height": 900}
Scheme = Literal["dark", "light"]
SCHEMES: tuple[Scheme, ...] = ("dark", "light")


def _wait_for_step(page: Page, step: int) -> None:
    page.wait_for_function(
        f"() => Number(document.querySelector('#run-step')?.textContent) >= {step}",
        timeout=1000 * LONGEST_SECONDS,
    )
    page.wait_for_timeout(2_000)


def _log_in(browser: Browser, origin: str, run: str, scheme: Scheme) -> Page:
    context = browser.new_context(viewport=SIZE, color_scheme=scheme, device_scale_factor=1)
    context.request.get(login_address(origin), max_redirects=0)
    while not context.request.get(f"{origin}/api/v1/runs/{run}/steps/5").ok:
        time.sleep(0.5)
    page = context.new_page()
    page.goto(f"{origin}/runs/{run}")
    return page


def _small_model(browser: Browser, folder: Path) -> None:
    """See it fall, try the cure, push it, read the verdict."""
    with running_demo("--steps", "140", longest_seconds=LONGEST_SECONDS) as (_, origin, _, run):
        pages: dict[str, Page] = {
            scheme: _log_in(browser, origin, run, scheme) for scheme in SCHEMES
        }
        wait = 1000 * LONGEST_SECONDS
        expect(pages["dark"].locator(".health .cure")).to_contain_text("would stop", timeout=wait)
        for scheme, page in pages.items():
            page.locator(f"#{TRY}").click(timeout=wait)
            page.wait_for_timeout(1_500)
            page.screenshot(path=folder / f"overview-{scheme}.png")
        page = pages["dark"]
        step = int(page.locator("#run-step").inner_text())
        page.locator(f"#{PUSH}").click()
        _wait_for_step(page, step + AFTER_THE_PUSH)
        page.screenshot(path=folder / "verdict-dark.png")
        page.goto(origin)
        page.wait_for_timeout(4_000)
        page.screenshot(path=folder / "runs-dark.png")


def _language_model(browser: Browser, folder: Path) -> None:
    """The tokens of a language model, in their text."""
    arguments = ("--replay", "--speed", str(STEPS_A_SECOND))
    with running_demo(*arguments, longest_seconds=LONGEST_SECONDS) as (_, origin, _, run):
        page = _log_in(browser, origin, run, "dark")
        _wait_for_step(page, AT_THE_FALL)
        page.goto(f"{origin}/runs/{run}?tab=tokens")
        page.wait_for_timeout(4_000)
        page.screenshot(path=folder / "tokens-dark.png")


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as home,
        mock.patch.dict(os.environ, {"ISENTROPE_HOME": home}),
        chromium() as browser,
    ):
        _small_model(browser, folder)
        _language_model(browser, folder)
    for path in sorted(folder.glob("*.png")):
        print(
            f"{path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path} "
            f" {os.path.getsize(path):,} bytes"
        )


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
