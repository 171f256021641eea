"""A fake API with the dashboard attached, in memory and on a port, and a browser to look at it."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from isentrope_dashboard.app import attach
from tests.dashboard.fake_api import TOKEN, FakeApi, serving

CHROMIUM_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
CHROMIUM_ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]


@pytest.fixture
def fake() -> FakeApi:
    """A fake API without runs, not served anywhere."""
    return FakeApi()


@pytest.fixture
def served(fake: FakeApi) -> Iterator[str]:
    """The URL at which the fake API and the dashboard answer."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    attach(fake.app, api_url=f"http://127.0.0.1:{port}")
    with serving(fake, port) as url:
        yield url


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """One headless Chromium for all tests."""
    path = next((found for name in CHROMIUM_NAMES if (found := shutil.which(name))), None)
    if path is None:
        pytest.fail(
            f"Browser tests need one of {', '.join(CHROMIUM_NAMES)} on the PATH; deselect them with -m 'not browser'."
        )
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=path, args=CHROMIUM_ARGUMENTS)
        yield chromium
        chromium.close()


class Watched:
    """A page, and everything that went wrong in it."""

    def __init__(self, page: Page, origin: str) -> None:
        self.page = page
        self.problems: list[str] = []
        page.on("console", lambda message: self._note_if(message.type == "error", f"console: {message.text}"))
        page.on("pageerror", lambda error: self.problems.append(f"exception: {error}"))
        page.on("requestfailed", lambda request: self.problems.append(f"failed: {request.url} {request.failure}"))
        page.on("response", lambda answer: self._note_if(answer.status >= 400, f"{answer.status}: {answer.url}"))
        page.on("request", lambda request: self._note_if(is_outside(request.url, origin), f"outside: {request.url}"))

    def _note_if(self, wrong: bool, problem: str) -> None:
        if wrong:
            self.problems.append(problem)


def is_outside(url: str, origin: str) -> bool:
    return not url.startswith((origin, "data:", "blob:"))


OpenPage = Callable[..., Watched]


@pytest.fixture
def open_page(browser: Browser, served: str) -> Iterator[OpenPage]:
    """Opens a path in a signed-in tab of its own, in the colour scheme given."""
    contexts: list[BrowserContext] = []

    def open_it(
        path: str, *, scheme: str = "light", init_script: str | None = None, ready: str | None = None
    ) -> Watched:
        context = browser.new_context(viewport={"width": 1600, "height": 1000}, color_scheme=scheme)  # type: ignore[arg-type]
        contexts.append(context)
        context.add_cookies([{"name": "isentrope_session", "value": TOKEN, "url": served}])
        context.set_default_timeout(30_000)
        page = context.new_page()
        if init_script is not None:
            page.add_init_script(init_script)
        watched = Watched(page, served)
        page.goto(served + path)
        page.wait_for_selector(ready or "#control-progress [data-state], .run-link")
        return watched

    yield open_it
    for context in contexts:
        context.close()
