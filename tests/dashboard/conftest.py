"""A real server with the dashboard, runs made of the recorded one, and its pages in a real
browser."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, TypeVar
from urllib.parse import parse_qsl

import httpx
import pytest
from playwright.sync_api import BrowserContext, Page, expect

import isentrope
from isentrope.client.connection import AsyncClient
from isentrope_dashboard.live import Part, Values
from isentrope_dashboard.theme import Scheme
from isentrope_dashboard.view import View
from isentrope_wire.reports import ControlOutcome, OutcomeState, RunFinished, StepReport
from tests.browsing import Watched, chromium_with_profile
from tests.countdown import countdown_run
from tests.server.in_thread import ServerInThread
from tests.server.rank import Rank

expect.set_options(timeout=30_000)  # on a busy machine a page takes its time

OpenPage = Callable[..., Page]
T = TypeVar("T")


def apart(reading: Coroutine[Any, Any, T]) -> T:
    """Await `reading` in another thread, as the browser's event loop may run in this one."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, reading).result()


class Site:
    """A server with the dashboard. Every test brings runs of its own."""

    def __init__(self, server: ServerInThread) -> None:
        self.server = server
        self.url = server.url
        self.client = isentrope.Client(server.url, token=server.owner_token)
        self._ranks: dict[str, Rank] = {}

    def run(
        self,
        steps: int = 60,
        *,
        name: str = "recorded",
        project: str = "countdown",
        finished: RunFinished | None = None,
        tags: tuple[str, ...] = (),
        config: Mapping[str, object] | None = None,
        change: Callable[[StepReport], StepReport] = lambda report: report,
    ) -> str:
        """A run with the first steps of the recorded one, which loses half of its entropy in 41
        steps. Returns its id.

        Args:
            finished: how it ended; None: it is still running.
            change: makes each report another one.
        """
        recorded = countdown_run().run
        rank = Rank(
            self.server, name=name, project=project, tags=tags, config=config or recorded.config,
            capabilities=recorded.capabilities,
        )  # fmt: skip
        self._ranks[rank.run_id] = rank
        self.more(rank.run_id, steps, change=change)
        if finished is not None:
            rank.send(finished)
        return rank.run_id

    def more(
        self,
        run_id: str,
        steps: int,
        change: Callable[[StepReport], StepReport] = lambda report: report,
    ) -> None:
        """Send the next steps of a run; at most 80 in all, as the recorded run was then pushed a
        control."""
        rank = self._ranks[run_id]
        sent = rank.seq
        reports = countdown_run().reports[sent : sent + steps]
        assert len(reports) == steps, "the recorded run has no more steps"
        for report in reports:
            rank.send(change(replace(report, recorded_at=time.time(), outcomes=())))

    def apply(self, run_id: str, version: int, state: str = "APPLIED") -> None:
        """Send the next step, with this version of the control applied, or as `state` says."""
        rank = self._ranks[run_id]
        report = countdown_run().reports[rank.seq]
        outcome = ControlOutcome(
            version=version, state=OutcomeState(state), at=time.time(), step=report.step
        )
        active = version if state == "APPLIED" else report.control_version
        rank.send(
            replace(report, recorded_at=time.time(), control_version=active, outcomes=(outcome,))
        )

    def rank(self, run_id: str) -> Rank:
        """To send what `more` does not."""
        return self._ranks[run_id]

    def values(
        self, part: Part, address: str, *, token: str | None = None, scheme: Scheme = "light"
    ) -> Values:
        """What a part of the page at this address shows."""
        path, _, search = address.partition("?")
        if part.read is None:
            return {}
        read_part = part.read

        async def read() -> Values:
            headers = {"Authorization": f"Bearer {token or self.server.owner_token}"}
            async with httpx.AsyncClient(
                base_url=f"{self.url}/api/v1/", headers=headers, timeout=20, trust_env=False
            ) as http:
                return await read_part(
                    AsyncClient(http),
                    View.read({"path": path, "query": parse_qsl(search), "theme": scheme}),
                )

        return apart(read())


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with ServerInThread(tmp_path_factory.mktemp("site") / "home", dashboard=True) as server:
        yield Site(server)


@pytest.fixture(scope="module")
def window(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrowserContext]:
    """One Chromium for the tests of a file. While it is open its event loop runs in this thread,
    and no other may."""
    with chromium_with_profile(tmp_path_factory.mktemp("chromium")) as context:
        yield context


@pytest.fixture
def open_page(site: Site, window: BrowserContext) -> Iterator[OpenPage]:
    """Opens an address as its owner, or with another token: `open_page("/runs/…?tab=tokens",
    scheme="dark")`.

    At the end of the test nothing may have gone wrong in any of its pages.
    """
    opened: list[Watched] = []
    pages: list[Page] = []

    def open_address(
        address: str,
        *,
        scheme: Scheme = "light",
        width: int = 1440,
        height: int = 900,
        token: str | None = None,
        may_fail: bool = False,
    ) -> Page:
        if token is not None:
            window.clear_cookies()
        page = window.new_page()
        page.set_viewport_size({"width": width, "height": height})
        page.emulate_media(color_scheme=scheme)
        # Sets the cookie; again where the server just ended the connection that the test before
        # left open.
        page.request.get(
            f"{site.url}/?token={token or site.server.owner_token}", max_redirects=0, max_retries=3
        )
        watched = Watched(page, site.url)
        if not may_fail:
            opened.append(watched)
        pages.append(page)
        page.goto(site.url + address)
        expect(page.locator("main.page:not(.waiting)")).to_be_visible()
        return page

    yield open_address
    problems = [problem for watched in opened for problem in watched.problems]
    for page in pages:
        page.close()
    window.clear_cookies()
    assert problems == []
