"""A real Chromium, and pages that remember what went wrong in them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

CHROMIUM_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
CHROMIUM_ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]


@contextmanager
def chromium(*arguments: str) -> Iterator[Browser]:
    """One headless Chromium; the test fails where there is none."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=_path(), args=[*CHROMIUM_ARGUMENTS, *arguments]
        )
        yield browser
        browser.close()


@contextmanager
def chromium_with_profile(profile: Path) -> Iterator[BrowserContext]:
    """A headless Chromium that keeps in this folder what it loaded and compiled: a page it knows
    opens a third cheaper."""
    with sync_playwright() as playwright:
        context = playwright.chromium.launch_persistent_context(
            profile, executable_path=_path(), args=CHROMIUM_ARGUMENTS
        )
        yield context
        context.close()


def _path() -> str:
    path = next((found for name in CHROMIUM_NAMES if (found := shutil.which(name))), None)
    if path is None:
        pytest.fail(
            f"Browser tests need one of {', '.join(CHROMIUM_NAMES)} on the PATH; deselect them with"
            " -m 'not browser'."
        )
    return path


class Watched:
    """A page, and everything that went wrong in it."""

    def __init__(self, page: Page, origin: str) -> None:
        self.page = page
        self.problems: list[str] = []
        page.on(
            "console",
            lambda message: self._note_if(message.type == "error", f"console: {message.text}"),
        )
        page.on(
            "pageerror", lambda error: self.problems.append(f"exception: {error} {error.stack}")
        )
        page.on(
            "requestfailed",
            lambda request: self.problems.append(f"failed: {request.url} {request.failure}"),
        )
        page.on(
            "response",
            lambda answer: self._note_if(answer.status >= 400, f"{answer.status}: {answer.url}"),
        )
        page.on(
            "request",
            lambda request: self._note_if(
                is_outside(request.url, origin), f"outside: {request.url}"
            ),
        )

    def _note_if(self, wrong: bool, problem: str) -> None:
        if wrong:
            self.problems.append(problem)


def is_outside(url: str, origin: str) -> bool:
    return not url.startswith((origin, "data:", "blob:"))
