"""Pages, REST and links below a path of nginx, which takes it off or leaves it on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner
from playwright.sync_api import BrowserContext, Page, expect

import isentrope
from isentrope.cli import frame
from isentrope.client import calls
from tests.browsing import Watched
from tests.dashboard.conftest import Site, apart
from tests.server.in_thread import ServerInThread
from tests.system.proxy import Proxy, has_proxy

ROOT = "/group/isentrope"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.browser,
    pytest.mark.skipif(not has_proxy("nginx"), reason="nginx is not installed"),
]


@dataclass(frozen=True)
class Behind:
    """A server and the address at which nginx shows it."""

    site: Site
    url: str

    @property
    def token(self) -> str:
        return self.site.server.owner_token


class Addresses:
    def __init__(self, server: ServerInThread) -> None:
        self.http_port = int(server.url.rpartition(":")[2])
        self.grpc_target = server.grpc_target


@pytest.fixture(scope="module", params=["takes it off", "leaves it on"])
def behind(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Behind]:
    folder: Path = tmp_path_factory.mktemp("below")
    end = "/" if request.param == "takes it off" else ""

    def below(configuration: str) -> str:
        there = "location / {\n            proxy_pass http://http_servers;"
        assert there in configuration
        here = f"location {ROOT}/ {{\n            proxy_pass http://http_servers{end};"
        return configuration.replace(there, here)

    with ServerInThread(folder / "home", dashboard=True, root_path=f"{ROOT}/") as server:
        there = {"first": Addresses(server), "second": Addresses(server)}
        with Proxy(folder, there, "nginx", below, ROOT) as proxy:
            yield Behind(Site(server), proxy.url)


@pytest.fixture
def page(behind: Behind, window: BrowserContext) -> Iterator[Page]:
    """A page in which nothing may go wrong, or be asked for elsewhere than below the path."""
    window.clear_cookies()
    page = window.new_page()
    watched = Watched(page, behind.url)
    yield page
    page.close()
    # The form is shown with the status 401; who goes on stops what is still on its way.
    harmless = ("401", "net::ERR_ABORTED")
    problems = [one for one in watched.problems if not any(sign in one for sign in harmless)]
    assert problems == []


def sessions_of(page: Page) -> list[Any]:
    return [one for one in page.context.cookies() if "session" in one["name"]]


def test_a_run_is_reached_through_the_form(behind: Behind, page: Page) -> None:
    run = behind.site.run(60)
    page.goto(f"{behind.url}/runs/{run}?tab=metrics")
    page.fill("input[name=token]", behind.token)
    page.click("button")
    expect(page.locator(".js-plotly-plot").first).to_be_visible()
    assert page.url == f"{behind.url}/runs/{run}?tab=metrics"
    (cookie,) = sessions_of(page)
    assert cookie["path"] == ROOT
    # What has no page of its own: the tab of another page, the list, a row, the way out.
    page.goto(f"{behind.url}/runs/{run}/tokens")
    assert page.url == f"{behind.url}/runs/{run}?tab=tokens"
    expect(page.locator("main.page:not(.waiting)")).to_be_visible()
    page.click("a.home")
    row = page.locator(f'a[href="{ROOT}/runs/{run}"]')
    expect(row).to_be_visible()
    row.click()
    expect(page.locator("#run-step")).to_have_text("60")
    behind.site.more(run, 1)
    expect(page.locator("#run-step")).to_have_text("61")
    page.keyboard.press("Control+k")
    palette = page.locator("dialog.palette")
    expect(palette.locator(f'a[href="{ROOT}/runs/{run}"]')).to_be_visible()
    page.keyboard.press("Escape")
    page.locator("#who summary").click()
    page.click("#sign-out")
    expect(page.locator("input[name=token]")).to_be_visible()
    assert page.url == f"{behind.url}/"
    assert sessions_of(page) == []


@pytest.mark.parametrize("path", ["", "/", "/start", "/access", "/compare", "/docs"])
def test_each_page_is_there(behind: Behind, page: Page, path: str) -> None:
    page.goto(f"{behind.url}/?token={behind.token}")
    page.goto(behind.url + path)
    if path == "/docs":
        expect(page.locator(".opblock").first).to_be_visible()
        return
    expect(page.locator("main.page:not(.waiting)")).to_be_visible()
    expect(page.locator("body")).to_have_attribute("data-connection", "good")
    if path == "/start":
        expect(page.locator("#start-environment")).to_contain_text(f'ISENTROPE_URL="{behind.url}"')


def test_a_link_to_one_run_opens_it(behind: Behind, page: Page) -> None:
    run = behind.site.run(5)
    link = behind.site.client.ask(calls.create_link(run))
    page.goto(f"{behind.url}/?token={link.token}&tab=metrics")
    expect(page.locator("#run-step")).to_have_text("5")
    assert page.url == f"{behind.url}/runs/{run}?tab=metrics"


def test_programs_use_the_address_with_its_path(behind: Behind) -> None:
    run = behind.site.run(5)
    with isentrope.Client(f"{behind.url}/", behind.token) as client:
        assert client.run(run).step == 5
    environment = {"ISENTROPE_URL": behind.url, "ISENTROPE_TOKEN": behind.token}
    listed = apart(_run_command(environment, "runs", "--query", run))
    assert run in listed
    headers = {"Authorization": f"Bearer {behind.token}"}
    with httpx.Client(base_url=behind.url, headers=headers, trust_env=False) as http:
        assert http.get("/openapi.json").json()["servers"] == [{"url": ROOT}]


async def _run_command(environment: dict[str, str], *arguments: str) -> str:
    return CliRunner().invoke(frame.main, arguments, env=environment).stdout
