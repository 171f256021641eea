"""How people come to a page: by a link of another site, through a proxy that is set up wrongly."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, Page, Request, expect

from isentrope.client import calls
from tests.dashboard.conftest import Site
from tests.dashboard.test_below_a_path import Addresses
from tests.system.proxy import Proxy, has_proxy

pytestmark = [pytest.mark.slow, pytest.mark.browser]
needs_nginx = pytest.mark.skipif(not has_proxy("nginx"), reason="nginx is not installed")


class _Mail(BaseHTTPRequestHandler):
    """Web mail with one link."""

    link = ""

    def do_GET(self) -> None:
        body = f"<a href='{self.link}'>the link</a>".encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""


@pytest.fixture
def page(window: BrowserContext) -> Iterator[Page]:
    window.clear_cookies()
    page = window.new_page()
    yield page
    page.close()
    window.clear_cookies()


@pytest.fixture
def mail(page: Page, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of another site: another host than that of the pages."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Mail) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()


def click_in(mail: str, page: Page, link: str) -> list[str]:
    """Follow a link of the mail: every document that was asked for."""
    _Mail.link = link
    page.goto(mail)
    asked: list[str] = []

    def note(request: Request) -> None:
        if request.is_navigation_request():
            asked.append(request.url)

    page.on("request", note)
    page.click("a")
    return asked


def test_an_alerts_link_opens_the_run(site: Site, page: Page, mail: str) -> None:
    here = site.url.replace("127.0.0.1", "localhost")
    run = site.run(5)
    link = f"{here}/runs/{run}?tab=metrics"
    asked = click_in(mail, page, link)
    expect(page.locator("input[name=token]")).to_be_visible()
    assert asked == [link, link]
    page.fill("input[name=token]", site.server.owner_token)
    page.click("button")
    expect(page.locator("#run-step")).to_have_text("5")
    asked = click_in(mail, page, link)
    expect(page.locator("#run-step")).to_have_text("5")
    assert (page.url, asked) == (link, [link, link])
    (session,) = [one for one in page.context.cookies() if "session" in one["name"]]
    assert session["sameSite"] == "Strict"
    page.reload()
    expect(page.locator("#run-step")).to_have_text("5")


def test_a_read_only_link_is_a_click_away(site: Site, page: Page, mail: str) -> None:
    here = site.url.replace("127.0.0.1", "localhost")
    run = site.run(5)
    token = site.client.ask(calls.create_link(run)).token
    click_in(mail, page, f"{here}/?token={token}")
    page.click("text=Open the run")
    expect(page.locator("#run-step")).to_have_text("5")
    assert page.url == f"{here}/runs/{run}"


@needs_nginx
def test_a_proxy_that_changes_the_host_is_named(site: Site, page: Page, tmp_path: Path) -> None:
    there = {"first": Addresses(site.server), "second": Addresses(site.server)}

    def without_host(configuration: str) -> str:
        # As without the line, where nginx is given the server's address and no name.
        return configuration.replace("Host $http_host;", "Host localhost;")

    with Proxy(tmp_path, there, "nginx", without_host) as proxy:
        page.goto(f"{proxy.url}/?token={site.server.owner_token}")
        expect(page.locator("#not-shown")).to_contain_text("let it pass on Host")
        assert proxy.url in page.locator("#not-shown").inner_text()


@needs_nginx
def test_a_path_that_is_not_set_is_named(site: Site, page: Page, tmp_path: Path) -> None:
    there = {"first": Addresses(site.server), "second": Addresses(site.server)}

    def below(configuration: str) -> str:
        return configuration.replace(
            "location / {\n            proxy_pass http://http_servers;",
            "location /below/ {\n            proxy_pass http://http_servers/;",
        )

    with Proxy(tmp_path, there, "nginx", below, "/below") as proxy:
        run = site.run(5)
        page.request.get(f"{proxy.url}/?token={site.server.owner_token}", max_redirects=0)
        page.goto(f"{proxy.url}/runs/{run}")
        expect(page.locator(".without-files")).to_be_visible()
        assert "--root-path" in page.locator(".without-files").inner_text()


def test_a_page_that_comes_says_nothing(site: Site, page: Page) -> None:
    page.goto(f"{site.url}/?token={site.server.owner_token}")
    expect(page.locator("main.page:not(.waiting)")).to_be_visible()
    expect(page.locator(".without-files")).to_be_hidden()
    expect(page.locator("#not-shown")).to_have_count(0)


def test_back_leaves_the_tabs_of_a_run(site: Site, page: Page) -> None:
    run = site.run(5)
    page.goto(f"{site.url}/?token={site.server.owner_token}")
    page.goto(f"{site.url}/runs/{run}")
    active = page.locator(".tabs [role=tab][data-active]")
    expect(active).to_have_text("Overview")
    for tab in ("Metrics", "Config"):
        page.get_by_role("tab", name=tab).click()
        expect(active).to_have_text(tab)
        page.wait_for_timeout(1500)  # a click while the tab is drawn is lost on a busy machine
    for tab in ("Metrics", "Overview"):
        page.go_back()
        expect(active).to_have_text(tab)
    page.wait_for_timeout(1000)  # time for a step that nobody made
    page.go_back()
    page.wait_for_url(f"{site.url}/")
