"""What the dashboard serves, seen without a browser."""

from __future__ import annotations

import base64
import hashlib
import inspect
import json
import re
from typing import Any

import dash
import httpx
import pytest
from starlette.testclient import TestClient

from isentrope_dashboard import app as dashboard
from isentrope_dashboard import ids
from isentrope_dashboard.access import Credentials
from tests.dashboard.fake_api import SESSION_COOKIE, TOKEN, FakeApi

OUTSIDE = re.compile(r"""(?:src|href)\s*=\s*["'](?:https?:)?//""")


@pytest.fixture
def client(fake: FakeApi) -> TestClient:
    """The dashboard without a port."""
    dashboard.attach(fake.app)
    return TestClient(fake.app)


def attached(monkeypatch: pytest.MonkeyPatch, fake: FakeApi) -> dash.Dash:
    """The Dash application that `attach` makes."""
    made: list[dash.Dash] = []

    def keep(*arguments: Any, **named: Any) -> dash.Dash:
        made.append(dash.Dash(*arguments, **named))
        return made[-1]

    monkeypatch.setattr(dashboard, "Dash", keep)
    dashboard.attach(fake.app)
    return made[0]


@pytest.mark.parametrize("path", ["/", "/runs", "/runs/some-run", "/compare"])
def test_a_deep_link_may_be_the_first_request(client: TestClient, path: str) -> None:
    answer = client.get(path)
    assert answer.status_code == 200
    assert "<title>Isentrope</title>" in answer.text
    assert '<html lang="en">' in answer.text


@pytest.mark.parametrize("path", ["/docs", "/redoc", "/nonsense"])
def test_an_address_without_a_page_is_not_found_and_a_browser_is_shown_so(client: TestClient, path: str) -> None:
    shown = client.get(path, headers={"Accept": "text/html,*/*;q=0.8"})
    assert (shown.status_code, "<title>Isentrope</title>" in shown.text) == (404, True)
    answer = client.get(path)
    assert (answer.status_code, answer.headers["content-type"]) == (404, "application/json")


def test_nothing_in_the_page_comes_from_outside(client: TestClient) -> None:
    page = client.get("/").text
    assert not OUTSIDE.search(page)
    scripts = re.findall(r'<script src="([^"]+)"', page)
    assert len(scripts) > 5
    assert all(script.startswith("/") and not script.startswith("//") for script in scripts)
    styles = re.findall(r'<link rel="stylesheet" href="([^"]+)"', page)
    assert all(style.startswith("/") for style in styles)


def test_no_asset_of_ours_names_an_outside_address() -> None:
    for asset in dashboard.ASSETS.rglob("*"):
        if asset.suffix in (".css", ".js", ".svg"):
            text = asset.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
            assert not re.search(r"https?://|//cdn|@import", text), asset.name


def test_the_layout_names_no_outside_address(client: TestClient) -> None:
    client.get("/")
    layout = client.get("/_dash-layout").text
    assert not re.search(r"https?://", layout)


def test_every_inline_script_has_a_hash_that_the_server_knows(client: TestClient, fake: FakeApi) -> None:
    page = client.get("/").text
    inline = [
        body
        for attributes, body in re.findall(r"<script([^>]*)>(.*?)</script>", page, re.DOTALL)
        if body.strip() and "application/json" not in attributes
    ]
    assert inline
    for body in inline:
        digest = base64.b64encode(hashlib.sha256(body.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in fake.app.state.script_hashes
    assert not re.search(r"\son\w+\s*=", page), "inline event handlers need 'unsafe-inline'"


def test_every_callback_is_asynchronous(monkeypatch: pytest.MonkeyPatch, fake: FakeApi) -> None:
    callbacks = attached(monkeypatch, fake).callback_map
    on_the_server = [spec["callback"] for spec in callbacks.values() if "callback" in spec]
    assert len(on_the_server) >= 5
    assert all(inspect.iscoroutinefunction(callback) for callback in on_the_server)


def test_two_applications_in_one_process_do_not_share_callbacks(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = attached(monkeypatch, FakeApi()), attached(monkeypatch, FakeApi())
    assert set(first.callback_map) == set(second.callback_map)


def call(
    url: str,
    output: dict[str, Any],
    inputs: list[dict[str, Any]],
    token: str | None = TOKEN,
    state: list[dict[str, Any]] | None = None,
) -> httpx.Response:
    """Answer a callback as the browser would ask for it."""
    body = {
        "output": output["output"],
        "outputs": output["outputs"],
        "inputs": inputs,
        "state": state or [],
        "changedPropIds": [],
    }
    cookies = {} if token is None else {SESSION_COOKIE: token}
    return httpx.post(f"{url}/_dash-update-component", json=body, cookies=cookies, timeout=20)


PAGE_OUTPUT = {
    "output": f"..{ids.PAGE}.children...{ids.PAGE_READY}.data...{ids.TITLE}.data..",
    "outputs": [
        {"id": ids.PAGE, "property": "children"},
        {"id": ids.PAGE_READY, "property": "data"},
        {"id": ids.TITLE, "property": "data"},
    ],
}


def show(url: str, path: str, token: str | None = TOKEN) -> dict[str, Any]:
    path, _, search = path.partition("?")
    inputs, state = (
        [{"id": ids.URL, "property": name, "value": v}] for name, v in (("pathname", path), ("search", search))
    )
    answer = call(url, PAGE_OUTPUT, inputs, token, state)
    assert answer.status_code == 200
    shown: dict[str, Any] = answer.json()["response"]
    return shown


def test_a_run_page_is_filled_when_it_is_sent(served: str, fake: FakeApi) -> None:
    fake.add_run(steps=30)
    shown = show(served, "/runs/run-000001")
    text = json.dumps(shown[ids.PAGE], ensure_ascii=False)
    assert shown[ids.PAGE_READY]["data"] == "run-000001"
    assert shown[ids.TITLE]["data"] == "countdown · Isentrope"
    assert "vs 29-step mean" in text
    assert '"Clip_V"' in text
    assert "KL-Cov" not in text


def test_the_list_shows_each_run(served: str, fake: FakeApi) -> None:
    fake.add_run("a/b c", "odd id", steps=1)
    assert '"href": "/runs/a%2Fb%20c"' in json.dumps(show(served, "/")[ids.PAGE])


def test_page_without_token_names_the_reason(served: str, fake: FakeApi) -> None:
    fake.add_run()
    shown = show(served, "/runs/run-000001", token=None)
    assert "Not signed in" in json.dumps(shown[ids.PAGE])
    assert shown[ids.PAGE_READY]["data"] is None


def test_credentials_are_forwarded_and_never_printed() -> None:
    credentials = Credentials(session_cookies={SESSION_COOKIE: "s3cret"}, authorization="Bearer other")
    assert credentials.headers() == {"Cookie": f"{SESSION_COOKIE}=s3cret", "Authorization": "Bearer other"}
    assert "s3cret" not in repr(credentials)
    assert "other" not in repr(credentials)
