"""`/docs`: behind the same token as the API, from this server's own files, and what it sends is
accepted."""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import urljoin

import pytest
from playwright.sync_api import Page, expect

from tests.browsing import Watched, chromium
from tests.server.in_thread import ServerInThread

ADDRESSES = ("/docs", "/docs/start.js", "/docs/swagger-ui-bundle.js", "/docs/swagger-ui.css")


def test_every_asset_is_the_server_s_own(server: ServerInThread) -> None:
    page = server.http.get("/docs")
    assert page.headers["content-type"].startswith("text/html")
    assets = re.findall(r'(?:src|href)="([^"]+)"', page.text)
    # Relative: a proxy may have a path in front.
    asked = {
        urljoin("/docs", address) for address in assets if not address.startswith(("data:", "/"))
    }
    assert asked == {*ADDRESSES[1:], "/openapi.json", "/"}
    for address in ADDRESSES[1:]:
        answer = server.http.get(address)
        assert answer.headers["content-type"].startswith(("text/javascript", "text/css"))
    assert "<script>" not in page.text, "the content security policy forbids it"


def test_files_of_no_reference_are_not_found(server: ServerInThread) -> None:
    for name in ("index.html", "__init__.py", "..%2fapp.py"):
        assert server.http.get(f"/docs/{name}").status_code == 404


@pytest.fixture
def reference(server: ServerInThread) -> Iterator[Watched]:
    """The page in a browser that has logged in."""
    with chromium() as browser:
        context = browser.new_context(viewport={"width": 1300, "height": 1400})
        context.new_page().goto(f"{server.url}/?token={server.owner_token}")
        watched = Watched(context.new_page(), server.url)
        watched.page.goto(f"{server.url}/docs")
        yield watched


def tried(page: Page, operation: str, body: str | None = None) -> str:
    """The status that an operation answers when it is tried in the page."""
    block = page.locator(f".opblock[id$='-{operation}']")
    block.locator(".opblock-summary-control").click()
    block.get_by_role("button", name="Try it out").click()
    if body is not None:
        block.locator("textarea.body-param__text").fill(body)
    block.get_by_role("button", name="Execute").click()
    return (
        block.locator(".live-responses-table .response .response-col_status")
        .inner_text()
        .split()[0]
    )


@pytest.mark.slow
@pytest.mark.browser
def test_the_page_shows_and_tries_the_api(server: ServerInThread, reference: Watched) -> None:
    page = reference.page
    expect(page.get_by_role("heading", name="Isentrope")).to_be_visible()
    expect(page.locator(".info .description")).to_contain_text("Authorization: Bearer TOKEN")
    described = server.http.get("/openapi.json").json()["paths"].values()
    expect(page.locator(".opblock")).to_have_count(sum(len(operations) for operations in described))
    # With the session's cookie, and for a change with the origin that the gate asks for.
    assert tried(page, "list_runs_api_v1_runs_get") == "200"
    assert (
        tried(page, "create_token_api_v1_access_tokens_post", '{"scope": "read", "name": "tried"}')
        == "201"
    )
    assert reference.problems == []
    # A token goes before the cookie, and no browser keeps it.
    page.get_by_role("button", name="Authorize").first.click()
    page.locator(".auth-container input").fill(server.token("ingest"))
    page.locator(".auth-btn-wrapper").get_by_role("button", name="Apply credentials").click()
    page.locator(".modal-ux .close-modal").click()
    page.locator(".opblock[id$='-list_runs_api_v1_runs_get']").get_by_role(
        "button", name="Execute"
    ).click()
    expect(
        page.locator(".live-responses-table .response .response-col_status").first
    ).to_contain_text("403")
    assert page.evaluate("Object.keys(localStorage).length") == 0
