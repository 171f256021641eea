"""A fake API with the dashboard attached, in memory and on a port, and pages of it in a browser."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest
from playwright.sync_api import Browser, BrowserContext, Error, Page, expect

from isentrope_dashboard.app import attach
from tests.browsing import Watched
from tests.dashboard.fake_api import SESSION_COOKIE, TOKEN, FakeApi, serving

expect.set_options(timeout=30_000)  # on a busy machine a page takes its time


OWN_SERVER = "own_server"
"""A test that uses this fixture may stop its server."""


@contextmanager
def _served(fake: FakeApi) -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    attach(fake.app, api_url=f"http://127.0.0.1:{port}")
    with serving(fake, port) as url:
        yield url


@pytest.fixture(scope="session")
def shared_api() -> Iterator[tuple[FakeApi, str]]:
    """One server for all tests and its URL, so that a browser loads the pages' scripts once."""
    fake = FakeApi()
    with _served(fake) as url:
        yield fake, url


@pytest.fixture
def own_server() -> None:
    """Asks for a server that no other test uses."""


@pytest.fixture
def fake(request: pytest.FixtureRequest) -> FakeApi:
    """A fake API without runs; served, where a test wants it served."""
    if "served" not in request.fixturenames or OWN_SERVER in request.fixturenames:
        return FakeApi()
    shared: FakeApi = request.getfixturevalue("shared_api")[0]
    shared.forget()
    return shared


@pytest.fixture
def served(fake: FakeApi, request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL at which the fake API and the dashboard answer."""
    if OWN_SERVER in request.fixturenames:
        with _served(fake) as url:
            yield url
    else:
        yield request.getfixturevalue("shared_api")[1]


OpenPage = Callable[..., Watched]
Contexts = dict[tuple[str, str, str | None], BrowserContext]


@pytest.fixture(scope="module")
def contexts(browser: Browser) -> Iterator[Contexts]:
    """Signed-in browsers by server, colour scheme and script; they keep what they loaded from one test to the next."""
    opened: Contexts = {}
    yield opened
    for context in opened.values():
        context.close()


@pytest.fixture
def open_page(browser: Browser, contexts: Contexts, served: str) -> Iterator[OpenPage]:
    """Opens a path in a signed-in tab of its own, in the colour scheme given."""
    pages: list[Page] = []

    def open_it(
        path: str,
        *,
        scheme: str = "light",
        init_script: str | None = None,
        ready: str | None = None,
        width: int = 1600,
    ) -> Watched:
        key = (served, scheme, init_script)
        if key not in contexts:
            contexts[key] = context = browser.new_context(color_scheme=scheme)  # type: ignore[arg-type]
            context.add_cookies([{"name": SESSION_COOKIE, "value": TOKEN, "url": served}])
            context.set_default_timeout(60_000)
            if init_script is not None:
                context.add_init_script(init_script)
        page = contexts[key].new_page()
        page.set_viewport_size({"width": width, "height": 1000})
        pages.append(page)
        watched = Watched(page, served)
        page.goto(served + path)
        page.wait_for_selector(ready or "#control-progress [data-state], .run-link")
        return watched

    yield open_it
    for page in pages:
        with suppress(Error):  # the test may have stopped its server
            page.evaluate("localStorage.clear()")
        page.close()
