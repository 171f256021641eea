"""What the dashboard serves, seen without a browser."""

from __future__ import annotations

import base64
import hashlib
import inspect
import json
import re
from typing import Any

import dash
import dash.backends._fastapi
import dash_ag_grid
import httpx
import pytest
from fastapi import FastAPI
from starlette.requests import HTTPConnection

from isentrope.client.connection import ApiError
from isentrope_dashboard import app as dashboard
from isentrope_dashboard.live import credentials_of
from tests.dashboard.conftest import Site

OUTSIDE = re.compile(r"""(?:src|href)\s*=\s*["'](?:https?:)?//""")


PRIVATE = [
    (dash.Dash, "_initialize_context", "a request that no page makes is answered with 500"),
    (dash.Dash, "_inputs_to_vals", "a request that no page makes is answered with 500"),
    (dash.Dash, "_prepare_callback", "a request that no page makes is answered with 500"),
    (dash.Dash, "_setup_server", "a link into a page has no scripts before the first request"),
    (dash.backends._fastapi, "set_current_request", "no page is served"),
    (dash.backends._fastapi, "reset_current_request", "no page is served"),
    (dash_ag_grid, "_js_dist", "each page loads the megabyte of AG Grid"),
]
"""What the product uses of Dash without a promise, and what breaks without it: a reason for the
upper bounds in pyproject.toml."""


@pytest.mark.parametrize(("owner", "name", "breaks"), PRIVATE)
def test_private_part_of_dash_is_there(owner: Any, name: str, breaks: str) -> None:
    assert hasattr(owner, name), f"without {name} {breaks}"


def test_no_other_private_part_of_dash_is_used() -> None:
    sources = "\n".join(
        path.read_text(encoding="utf-8") for path in dashboard.ASSETS.parent.rglob("*.py")
    )
    used = set(re.findall(r"\b(?:super\(\)|dash_app|dag|dmc|dcc)\.(_[a-z]\w*)", sources))
    for names in re.findall(r"from (?:dash|plotly)[\w.]*\._[\w.]+ import (.+)", sources):
        used.update(names.split(", "))
    assert used == {name for _, name, _ in PRIVATE}


@pytest.fixture
def http(site: Site) -> httpx.Client:
    return site.server.http


def attached(monkeypatch: pytest.MonkeyPatch) -> dash.Dash:
    """The Dash application that `attach` makes."""
    made: list[dash.Dash] = []

    def keep(*arguments: Any, **named: Any) -> dash.Dash:
        made.append(pages(*arguments, **named))
        return made[-1]

    pages = dashboard._Pages
    monkeypatch.setattr(dashboard, "_Pages", keep)
    dashboard.attach(FastAPI())
    return made[0]


@pytest.mark.parametrize("path", ["/", "/runs/some-run", "/runs/a%2Fb%20c", "/compare"])
def test_a_page_has_an_address(http: httpx.Client, path: str) -> None:
    answer = http.get(path, headers={"Accept": "text/html"})
    assert answer.status_code == 200
    assert '<html lang="en">' in answer.text


def test_an_address_without_a_page_is_not_found_and_a_browser_is_shown_so(
    http: httpx.Client,
) -> None:
    shown = http.get("/nonsense", headers={"Accept": "text/html,*/*;q=0.8"})
    assert (shown.status_code, "<title>Isentrope</title>" in shown.text) == (404, True)
    answer = http.get("/nonsense", headers={"Accept": "application/json"})
    assert (answer.status_code, answer.headers["content-type"]) == (404, "application/json")


def test_a_tab_may_be_written_as_a_path(http: httpx.Client) -> None:
    answer = http.get(
        "/runs/a%2Fb/tokens?step=3", headers={"Accept": "text/html"}, follow_redirects=False
    )
    assert answer.headers["location"] == "/runs/a%2Fb?tab=tokens&step=3"
    assert http.get("/runs/a/nonsense", headers={"Accept": "text/html"}).status_code == 404


def test_the_grid_s_script_is_not_among_those_of_every_page(http: httpx.Client) -> None:
    page = http.get("/runs/some-run").text
    assert [
        script for script in re.findall(r'<script src="([^"]+)', page) if "ag_grid" in script
    ] == []
    script = http.get(re.findall(r'name="grid-script" content="([^"]+)', page)[0])
    assert (script.status_code, "max-age=31536000" in script.headers["cache-control"]) == (
        200,
        True,
    )


def test_nothing_in_the_page_comes_from_outside(http: httpx.Client) -> None:
    page = http.get("/").text
    assert not OUTSIDE.search(page)
    scripts = re.findall(r'<script src="([^"]+)"', page)
    assert len(scripts) > 5
    assert all(script.startswith("/") and not script.startswith("//") for script in scripts)
    assert not re.search(r"https?://", http.get("/_dash-layout").text)
    for asset in dashboard.ASSETS.rglob("*"):
        if asset.suffix in (".css", ".js", ".svg"):
            text = asset.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
            assert not re.search(r"https?://|//cdn|@import", text), asset.name


def test_every_inline_script_has_a_hash_that_the_policy_names(http: httpx.Client) -> None:
    answer = http.get("/")
    inline = [
        body
        for attributes, body in re.findall(r"<script([^>]*)>(.*?)</script>", answer.text, re.DOTALL)
        if body.strip() and "application/json" not in attributes
    ]
    assert inline
    policy = answer.headers["content-security-policy"]
    for body in inline:
        digest = base64.b64encode(hashlib.sha256(body.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy
    assert not re.search(r"\son\w+\s*=", answer.text), "inline event handlers need 'unsafe-inline'"
    assert "unsafe-eval" not in policy


def test_pages_try_no_websocket(http: httpx.Client) -> None:
    config = re.search(
        r'<script id="_dash-config" type="application/json">(.*?)</script>', http.get("/").text
    )
    assert config is not None
    assert "websocket" not in json.loads(config[1])


def test_plotly_is_loaded_once_and_compressed(http: httpx.Client) -> None:
    assert f'src="{dashboard.PLOTLY_PATH}"' in http.get("/").text
    served = http.get(dashboard.PLOTLY_PATH, headers={"Accept-Encoding": "gzip"})
    assert served.headers["content-encoding"] == "gzip"
    assert "immutable" in served.headers["cache-control"]
    assert "plotly.js (cartesian - minified)" in served.text[:100]


def test_every_callback_is_asynchronous(monkeypatch: pytest.MonkeyPatch) -> None:
    callbacks = attached(monkeypatch).callback_map
    on_the_server = [spec["callback"] for spec in callbacks.values() if "callback" in spec]
    assert len(on_the_server) >= 4
    assert all(inspect.iscoroutinefunction(callback) for callback in on_the_server)


def test_two_applications_in_one_process_do_not_share_callbacks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, second = attached(monkeypatch), attached(monkeypatch)
    assert set(first.callback_map) == set(second.callback_map)


def test_a_callback_that_failed_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(
        dashboard,
        "set_props",
        lambda _, props: said.append(props["sendNotifications"][0]["message"]),
    )
    for error in (
        ApiError("No such run.", status=404),
        ApiError("Sign in.", status=401),
        ValueError("unexpected"),
    ):
        dashboard.report_failure(error)
    assert [words.partition(":")[0] for words in said] == ["No such run.", "ValueError"]


def test_a_callback_that_fails_again_at_the_same_place_is_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(dashboard, "set_props", lambda *_: None)
    for text in ("1", "x", "y", "2", "z"):
        try:
            int(text)
        except ValueError as error:
            dashboard.report_failure(error)
    assert [record.exc_info is not None for record in caplog.records] == [True]


def test_only_credentials_are_forwarded() -> None:
    cookies = (
        b"theme=dark; isentrope_session_a=s3cret; isentrope_session_b=a b;"
        b" __Host-isentrope_session_c=z"
    )
    headers = [
        (b"cookie", cookies),
        (b"authorization", b"Bearer other"),
        (b"x-forwarded-for", b"1.2.3.4"),
    ]
    assert credentials_of(HTTPConnection({"type": "http", "headers": headers})) == {
        "Cookie": "isentrope_session_a=s3cret; __Host-isentrope_session_c=z",
        "Authorization": "Bearer other",
    }
    assert credentials_of(HTTPConnection({"type": "http", "headers": []})) == {}
