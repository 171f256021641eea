"""Start, Access and signing in: the lines to copy, tokens that are shown once, and what each scope
sees."""

from __future__ import annotations

import pytest
from playwright.sync_api import BrowserContext, expect

from isentrope.client import calls
from isentrope_dashboard.pages.access import made_token, token_table
from isentrope_dashboard.pages.start import environment
from isentrope_wire.answers import AccessToken, CreatedToken, Me, TokenScope
from tests.dashboard.conftest import OpenPage, Site
from tests.dashboard.made_answers import words
from tests.dashboard.test_runs import HOSTILE
from tests.server.rank import Rank


@pytest.mark.parametrize(
    ("origin", "address"),
    [
        ("http://127.0.0.1:7070", "127.0.0.1:7071"),
        ("https://isentrope.example", "isentrope.example:7071"),
        ("http://[::1]:7070", "[::1]:7071"),
    ],
)
def test_a_training_process_gets_the_address_that_the_browser_uses(
    origin: str, address: str
) -> None:
    assert environment(origin, 7071, "t0").splitlines() == [
        f'export ISENTROPE_URL="{origin}"',
        f'export ISENTROPE_GRPC="{address}"',
        'export ISENTROPE_TOKEN="t0"',
    ]


def token(name: str, **known: object) -> AccessToken:
    values: dict[str, object] = {
        "id": name[:8],
        "name": name,
        "scope": TokenScope.READ,
        "created_at": 1.0,
        "revoked_at": None,
        "last_used_at": None,
    }
    return AccessToken(**{**values, **known})  # type: ignore[arg-type]


def test_active_tokens_come_first_and_names_stay_text() -> None:
    me = Me(token_id="me", name="owner", scope=TokenScope.ADMIN, is_owner=True, is_session=True)
    tokens = [
        token("old", revoked_at=5.0, created_at=9.0),
        *(token(name) for name in HOSTILE),
        token("me"),
    ]
    rows = token_table(tokens, me).children[2].children
    assert [words(row.children[0]) for row in rows] == [*HOSTILE, "me", "old"]
    assert [words(row.children[5]) for row in rows[-2:]] == ["you", "revoked"]


@pytest.mark.parametrize(
    ("scope", "signs_in"), [(TokenScope.CONTROL, True), (TokenScope.INGEST, False)]
)
def test_a_person_s_token_comes_with_an_address_that_signs_in(
    scope: TokenScope, signs_in: bool
) -> None:
    made = CreatedToken(
        id="1",
        name="anna",
        scope=scope,
        created_at=1.0,
        revoked_at=None,
        last_used_at=None,
        token="ise_a+b",
    )
    assert ("http://host/?token=ise_a%2Bb" in words(made_token(made, "http://host"))) == signs_in


@pytest.mark.slow
@pytest.mark.browser
def test_a_token_is_made_shown_once_signs_in_and_is_revoked(
    site: Site, open_page: OpenPage
) -> None:
    Rank(site.server, name="any")
    page = open_page("/access", scheme="dark")
    page.get_by_role("button", name="Make a token").click()
    expect(page.locator("#token-made")).to_contain_text("Give it a name")
    page.get_by_label("Name").fill("anna <b>")
    page.get_by_role("button", name="Make a token").click()
    link = page.locator(".made .code pre").nth(1)
    expect(link).to_contain_text(f"{site.url}/?token=ise_")
    address, secret = link.inner_text(), page.locator(".made .code pre").first.inner_text()
    assert address.endswith(secret)
    again = open_page("/access")
    expect(again.get_by_role("row", name="anna <b>")).to_be_visible()
    assert secret not in again.content()

    annas = open_page("/access", token=secret)
    expect(annas.locator("main")).to_contain_text("You are signed in as anna <b>")
    expect(annas.get_by_role("button", name="Make a token")).to_have_count(0)

    again = open_page("/access")
    again.get_by_role("button", name="Revoke the token anna <b>").click()
    dialog = again.get_by_role("dialog")
    expect(dialog).to_contain_text("anna <b>")
    dialog.get_by_role("button", name="Revoke").click()
    expect(again.get_by_role("row", name="anna <b>")).to_contain_text("revoked")
    assert site.server.client(secret).get("/api/v1/runs").status_code == 401


@pytest.mark.slow
@pytest.mark.browser
def test_start_makes_a_token_that_reports_and_shows_the_first_run(
    site: Site, open_page: OpenPage
) -> None:
    Rank(site.server, name="earlier")
    page = open_page("/start", width=390, height=844)
    lines = page.locator("#start-environment pre")
    expect(lines).to_contain_text(f'ISENTROPE_URL="{site.url}"')
    expect(lines).to_contain_text(f'ISENTROPE_GRPC="{site.server.grpc_target}"')
    page.get_by_role("button", name="Make a token").click()
    expect(lines).to_contain_text('ISENTROPE_TOKEN="ise_')
    secret = lines.inner_text().rpartition('TOKEN="')[2].rstrip('"')
    assert [
        item.scope
        for item in site.client.ask(calls.access_tokens()).items
        if item.name == "training"
    ] == [TokenScope.INGEST]
    assert site.server.client(secret).get("/api/v1/runs").status_code == 403
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    run = Rank(site.server, name="just begun").run_id
    expect(page.get_by_role("link", name="just begun reports")).to_have_attribute(
        "href", f"/runs/{run}"
    )
    page.goto(f"{site.url}/start?follow=yes")
    page.wait_for_url(f"{site.url}/runs/{run}")


@pytest.mark.browser
def test_signing_in_by_form_leads_to_the_page_that_was_asked_for(
    site: Site, window: BrowserContext
) -> None:
    address = f"{site.url}/runs/{Rank(site.server, name='linked').run_id}?tab=overview"
    window.clear_cookies()
    page = window.new_page()  # not `open_page`: the refusals are what this test is about
    page.goto(address)
    page.get_by_label("Access token").fill("wrong")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_be_visible()
    page.get_by_label("Access token").fill(site.server.owner_token)
    page.get_by_role("button", name="Sign in").click()
    expect(page.locator("main.page:not(.waiting)")).to_be_visible()
    assert page.url.startswith(address)
    page.close()


@pytest.mark.slow
@pytest.mark.browser
def test_a_link_shows_a_run_to_others_and_nothing_else(site: Site, open_page: OpenPage) -> None:
    run = site.run(60)
    page = open_page(f"/runs/{run}")
    page.locator(".who summary").click()
    with page.expect_response("**/link") as made:
        page.get_by_role("button", name="Copy a read-only link").click()
    link = made.value.json()["token"]
    page.close()  # it would be refused: the link replaces its session
    page = open_page(f"/runs/{run}", token=link)
    expect(page.locator(".health")).to_contain_text("Act")
    expect(page.locator("#control-push")).to_be_hidden()
    page.get_by_role("tab", name="Metrics").click()
    expect(page.locator(".metric-charts .main-svg").first).to_be_visible()
    page.locator(".who summary").click()
    expect(page.get_by_role("button", name="Copy a read-only link")).to_have_count(0)
    page.close()
    expect(open_page("/", token=link).get_by_role("alert")).to_contain_text(
        f"a link to the run {run}"
    )
