"""Take the README's pictures of the recorded run, as `isentrope demo --replay` shows it: `make
pictures`.

    python -m tests.pictures [FOLDER]

A language model loses two thirds of its entropy in 10 steps, when the first alert comes; the
control that it suggests is pushed then, and acts from step 12 on.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Literal
from unittest import mock

from playwright.sync_api import Page, ViewportSize

from tests.browsing import chromium
from tests.trainer.running_demo import login_address, running_demo

FOLDER = Path(__file__).parents[1] / "docs" / "pictures"
STEPS_A_SECOND = 0.25
"""Slow enough for a picture between the alert and the push."""
AT_THE_ALERT, AFTER_THE_PUSH = 10, 40
SIZE: ViewportSize = {"width": 1440, "height": 900}
SCHEMES: tuple[Literal["dark"], Literal["light"]] = ("dark", "light")


def _wait_for_step(page: Page, step: int) -> None:
    page.wait_for_function(
        f"() => Number(document.querySelector('#run-step')?.textContent) >= {step}", timeout=200_000
    )
    page.wait_for_timeout(2_000)


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as home,
        mock.patch.dict(os.environ, {"ISENTROPE_HOME": home}),
        running_demo("--replay", "--speed", str(STEPS_A_SECOND), longest_seconds=400) as (
            _,
            origin,
            _,
            run,
        ),
        chromium() as browser,
    ):
        pages = {}
        for scheme in SCHEMES:
            context = browser.new_context(viewport=SIZE, color_scheme=scheme, device_scale_factor=1)
            context.request.get(login_address(origin), max_redirects=0)
            while not context.request.get(f"{origin}/api/v1/runs/{run}/steps/5").ok:
                time.sleep(0.5)
            pages[scheme] = context.new_page()
            pages[scheme].goto(f"{origin}/runs/{run}")
        _wait_for_step(pages["dark"], AT_THE_ALERT)
        for scheme, page in pages.items():
            page.screenshot(path=folder / f"overview-{scheme}.png")
        _wait_for_step(pages["dark"], AFTER_THE_PUSH)
        pages["dark"].screenshot(path=folder / "verdict-dark.png")
        for name, address in (("tokens", f"/runs/{run}?tab=tokens"), ("runs", "/")):
            pages["dark"].goto(origin + address)
            pages["dark"].wait_for_timeout(4_000)
            pages["dark"].screenshot(path=folder / f"{name}-dark.png")
    for path in sorted(folder.glob("*.png")):
        print(
            f"{path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path} "
            f" {os.path.getsize(path):,} bytes"
        )


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
