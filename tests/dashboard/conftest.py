"""A fake API with the dashboard attached, in memory and on a port, and pages of it in a browser."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import BrowserContext, Error, Page, expect

from isentrope_dashboard.app import attach
from tests.browsing import Watched, chromium_with_profile
from tests.dashboard.fake_api import SESSION_COOKIE, TOKEN, FakeApi, serving

expect.set_options(timeout=30_000)  # on a busy machine a page takes its time


OWN_SERVER = "own_server"
"""A test that uses this fixture may stop its server."""


@contextmanager
def _served(fake: FakeApi) -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    attach(fake.app)
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


@pytest.fixture(scope="session")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What Chromium keeps from one file of tests to the next: the pages' scripts, compiled."""
    return tmp_path_factory.mktemp("chromium")


@pytest.fixture(scope="module")
def window(profile: Path) -> Iterator[BrowserContext]:
    """One Chromium for all tests of a file. Its event loop goes with it: while it runs, no other may."""
    with chromium_with_profile(profile) as context:
        context.set_default_timeout(60_000)
        yield context


@pytest.fixture
def open_page(window: BrowserContext, served: str) -> Iterator[OpenPage]:
    """Opens a path in a signed-in tab of its own, in the colour scheme given."""
    pages: list[Page] = []
    window.add_cookies([{"name": SESSION_COOKIE, "value": TOKEN, "url": served}])

    def open_it(
        path: str,
        *,
        scheme: Literal["light", "dark"] = "light",
        init_script: str | None = None,
        ready: str | None = None,
        width: int = 1600,
    ) -> Watched:
        page = window.new_page()
        page.set_viewport_size({"width": width, "height": 1000})
        page.emulate_media(color_scheme=scheme)
        if init_script is not None:
            page.add_init_script(init_script)
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
