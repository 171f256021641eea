"""Pages and API below a path of a proxy, without the proxy: every address that a server gives has
the path, and requests are answered with and without it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from pydantic import ValidationError

from isentrope.cli import frame
from isentrope.client.client import Client
from isentrope_server.settings import Settings
from isentrope_wire import environment
from tests.server.conftest import MakeServer
from tests.server.in_thread import ServerInThread
from tests.server.rank import Rank

ROOT = "/user/jo%40x/proxy/7070"


@pytest.fixture(scope="module")
def below(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerInThread]:
    home = tmp_path_factory.mktemp("below") / "home"
    with ServerInThread(home, dashboard=True, root_path=f"{ROOT}/") as server:
        yield server


@pytest.mark.parametrize("given", ["", "/", "/a", "a/", "//a//b/", "/user/jo%40x/proxy/7070/"])
def test_a_root_path_has_slashes_in_front_alone(given: str) -> None:
    expected = "".join(f"/{part}" for part in given.split("/") if part)
    assert Settings(root_path=given).root_path == expected


@pytest.mark.parametrize(
    "given", ["/a?b", "/a b", "/a/../b", "/é", 'a"b', "/runs", "/api/x", "/_dash-x"]
)
def test_a_root_path_that_is_none_is_refused(given: str) -> None:
    with pytest.raises(ValidationError, match="root_path"):
        Settings(root_path=given)


@pytest.mark.parametrize("root_path", ["", ROOT, "/user/jo@x/proxy/7070"])
def test_the_path_may_be_taken_off_or_not(below: ServerInThread, root_path: str) -> None:
    run = Rank(below).run_id
    assert below.http.get(f"{root_path}/api/v1/runs").json()["items"][0]["id"] == run
    assert below.http.get(f"{root_path}/healthz").status_code == 200
    assert below.http.get(f"{root_path}/api/v1/nothing").status_code == 404
    assert below.http.get(f"{root_path}/runs/a%2Fb").status_code == 200
    tab = below.http.get(f"{root_path}/runs/x/tokens?step=3", follow_redirects=False)
    assert tab.headers["location"] == f"{ROOT}/runs/x?tab=tokens&step=3"


def test_another_path_is_not_taken_off(below: ServerInThread) -> None:
    assert below.http.get("/user/jo%40xy/api/v1/runs").status_code == 404
    assert below.http.get(f"{ROOT}x/api/v1/runs").status_code == 404


@pytest.mark.parametrize("secure", [False, True])
def test_a_session_is_kept_below_the_path(below: ServerInThread, secure: bool) -> None:
    proxied = {"X-Forwarded-Proto": "https"} if secure else {}
    with below.client() as browser:
        answer = browser.get(
            f"{ROOT}/?token={below.owner_token}&tab=x", headers=proxied, follow_redirects=False
        )
    assert answer.headers["location"] == f"{ROOT}/?tab=x"
    name, *attributes = answer.headers["set-cookie"].split("; ")
    assert f"Path={ROOT}" in attributes
    assert (name.startswith("__Secure-"), "Secure" in attributes) == (secure, secure)
    cookie = {"Cookie": name, **proxied}
    with below.client() as browser:
        assert browser.get(f"{ROOT}/api/v1/me", headers=cookie).json()["is_session"] is True
        origin = below.url.replace("http", "https" if secure else "http")
        ended = browser.post(f"{ROOT}/logout", headers={**cookie, "Origin": origin})
    assert f"Path={ROOT}" in ended.headers["set-cookie"]


def test_every_address_of_a_page_has_the_path(below: ServerInThread) -> None:
    page = below.http.get(f"{ROOT}/", headers={"Accept": "text/html"}).text
    addresses = [part.partition('"')[0] for part in page.replace('src="', 'href="').split('href="')]
    assert len(addresses) > 10
    assert [one for one in addresses[1:] if not one.startswith(f"{ROOT}/")] == []
    for address in addresses[1:]:
        assert below.http.get(address).status_code == 200


def test_links_for_elsewhere_have_the_path() -> None:
    chosen = Settings(root_path="/isentrope", http_port=7070)
    assert chosen.pages_url == "http://127.0.0.1:7070/isentrope"
    assert (chosen.local_url, chosen.local_grpc) == (chosen.pages_url, "127.0.0.1:7071")
    for url, expected in (
        ("https://hub.example", "https://hub.example/isentrope"),
        ("https://hub.example/", "https://hub.example/isentrope"),
        ("https://hub.example/isentrope/", "https://hub.example/isentrope"),
        ("https://hub.example/other", "https://hub.example/other"),
    ):
        assert chosen.model_copy(update={"public_url": url}).pages_url == expected


def test_the_public_address_names_an_allowed_host(make_server: MakeServer, tmp_path: Path) -> None:
    server = make_server(tmp_path / "named", public_url="https://Hub.example:8443/isentrope")
    for host, status in (("hub.example", 200), ("hub.example:9", 200), ("other.example", 400)):
        assert server.http.get("/api/v1/runs", headers={"Host": host}).status_code == status


def test_clients_find_the_path(below: ServerInThread, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"{below.url}{ROOT}"
    with Client(f" {url}/ ", below.owner_token) as client:
        assert client.me().is_owner
    known = {"ISENTROPE_URL": f"{url}/ ", "ISENTROPE_TOKEN": below.owner_token}
    assert CliRunner().invoke(frame.main, ["runs"], env=known).exit_code == 0
    for name in ("ISENTROPE_URL", "ISENTROPE_GRPC"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ISENTROPE_HOME", str(below.home))
    assert environment.url() == url
    assert CliRunner().invoke(frame.main, ["token", "list"]).exit_code == 0
