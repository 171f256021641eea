"""A fake API with the dashboard attached, in memory and on a port, and pages of it in a browser."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, BrowserContext, expect

from isentrope_dashboard.app import attach
from tests.browsing import Watched
from tests.dashboard.fake_api import TOKEN, FakeApi, serving

expect.set_options(timeout=15_000)  # on a busy machine a page takes its time


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


OpenPage = Callable[..., Watched]


@pytest.fixture
def open_page(browser: Browser, served: str) -> Iterator[OpenPage]:
    """Opens a path in a signed-in tab of its own, in the colour scheme given."""
    contexts: list[BrowserContext] = []

    def open_it(
        path: str,
        *,
        scheme: str = "light",
        init_script: str | None = None,
        ready: str | None = None,
        width: int = 1600,
    ) -> Watched:
        context = browser.new_context(viewport={"width": width, "height": 1000}, color_scheme=scheme)  # type: ignore[arg-type]
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
