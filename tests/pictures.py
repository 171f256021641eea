"""Take the README's pictures of the recorded run, as `isentrope demo --replay` shows it: `make pictures`.

    python -m tests.pictures [FOLDER]

The run loses half of its entropy in 41 steps; at step 81 a hold is pushed, which the replay pushes again.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from playwright.sync_api import Page

from tests.browsing import chromium
from tests.system.running_server import clean_environment, free_port

FOLDER = Path(__file__).parents[1] / "docs" / "pictures"
STEPS_A_SECOND = 3
BEFORE_THE_HOLD, AFTER_IT = 72, 125


def _replay(home: str) -> tuple[subprocess.Popen[str], str, str]:
    """The process, its address with the token, and the run's id."""
    ports = ["--http-port", str(free_port()), "--grpc-port", str(free_port())]
    process = subprocess.Popen(
        [sys.executable, "-m", "isentrope", "demo", "--replay", "--speed", str(STEPS_A_SECOND), *ports],
        env=clean_environment() | {"ISENTROPE_HOME": home}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    url = run = ""
    for line in process.stdout:
        url = url or "".join(re.findall(r"http://\S+token=\S+", line))
        run = run or "".join(re.findall(r"run: (\S+)", line))
        if url and run:
            threading.Thread(target=process.stdout.read, daemon=True).start()
            return process, url, run
    raise RuntimeError("The replay did not start.")


def _wait_for_step(page: Page, step: int) -> None:
    page.wait_for_function(f"Number(document.querySelector('#run-step')?.textContent) >= {step}", timeout=120_000)
    page.wait_for_timeout(1_000)


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as home, chromium() as browser:
        process, url, run = _replay(home)
        try:
            origin = url.partition("/?")[0]
            pages = {}
            for scheme in ("dark", "light"):
                context = browser.new_context(
                    viewport={"width": 1440, "height": 900}, color_scheme=scheme, device_scale_factor=1.5
                )
                context.request.get(url, max_redirects=0)
                pages[scheme] = context.new_page()
                pages[scheme].goto(f"{origin}/runs/{run}")
            _wait_for_step(pages["dark"], BEFORE_THE_HOLD)
            for scheme, page in pages.items():
                page.screenshot(path=folder / f"overview-{scheme}.png")
            _wait_for_step(pages["dark"], AFTER_IT)
            pages["dark"].screenshot(path=folder / "verdict-dark.png")
            for name, address in (("tokens", f"/runs/{run}?tab=tokens"), ("runs", "/")):
                pages["dark"].goto(origin + address)
                pages["dark"].wait_for_timeout(4_000)
                pages["dark"].screenshot(path=folder / f"{name}-dark.png")
        finally:
            process.terminate()
            process.wait()
    for path in sorted(folder.glob("*.png")):
        print(
            f"{path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}  {os.path.getsize(path):,} bytes"
        )


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
