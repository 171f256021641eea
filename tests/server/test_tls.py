"""Both ports over TLS, with an own CA, and never in the clear beyond this machine."""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner, Result

from isentrope.cli import frame
from isentrope_server.errors import StartupError
from isentrope_server.home import running_server_url
from isentrope_server.ports import check_transport_security
from isentrope_server.settings import Settings
from tests.server.certificates import ThrowAwayAuthority
from tests.server.test_process import grpc_port, up
from tests.system.spool_of_a_run import leave_spool


@dataclass(frozen=True, slots=True)
class Encrypted:
    """A running server with TLS on both ports."""

    url: str
    grpc_target: str
    token: str
    home: Path
    authority: ThrowAwayAuthority


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> ThrowAwayAuthority:
    return ThrowAwayAuthority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def other_authority(tmp_path_factory: pytest.TempPathFactory) -> ThrowAwayAuthority:
    """A CA that signed nothing of the server's."""
    return ThrowAwayAuthority(tmp_path_factory.mktemp("other_authority"), "Somebody else")


@pytest.fixture(scope="module")
def encrypted(
    tmp_path_factory: pytest.TempPathFactory, authority: ThrowAwayAuthority
) -> Iterator[Encrypted]:
    home, pair = tmp_path_factory.mktemp("tls") / "home", authority.sign("server")
    files = {"ISENTROPE_TLS_CERT": str(pair.certificate), "ISENTROPE_TLS_KEY": str(pair.key)}
    with up(home, **files) as (process, url, token):
        yield Encrypted(url, f"127.0.0.1:{grpc_port(process)}", token, home, authority)


def client(server: Encrypted, tmp_path: Path, *arguments: str, **more: str) -> Result:
    """`isentrope ...` on another machine: a home of its own, with these variables."""
    environment = {
        "ISENTROPE_HOME": str(tmp_path / "client"),
        "ISENTROPE_URL": server.url,
        "ISENTROPE_GRPC": server.grpc_target,
        "ISENTROPE_TOKEN": server.token,
    }
    return CliRunner().invoke(frame.main, arguments, env=environment | more)


def test_the_printed_address_is_https_and_its_cookie_travels_over_tls_alone(
    encrypted: Encrypted,
) -> None:
    assert encrypted.url.startswith("https://127.0.0.1:")
    trusted = ssl.create_default_context(cafile=str(encrypted.authority.certificate))
    answer = httpx.get(f"{encrypted.url}/?token={encrypted.token}", verify=trusted, trust_env=False)
    assert answer.status_code == 303
    assert "; Secure" in answer.headers["set-cookie"]
    assert answer.headers["set-cookie"].startswith("__Host-")
    with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
        httpx.get(f"{encrypted.url}/healthz", trust_env=False)


def test_over_tls_a_cookie_counts_that_only_tls_can_set_and_the_pages_bring_it_to_the_port_beside(
    encrypted: Encrypted,
) -> None:
    trusted = ssl.create_default_context(cafile=str(encrypted.authority.certificate))
    with httpx.Client(verify=trusted, trust_env=False) as browser:
        login = browser.get(f"{encrypted.url}/?token={encrypted.token}")
        cookie = login.headers["set-cookie"].partition(";")[0]
        browser.cookies.clear()
        answers = [
            browser.get(f"{url}/api/v1/runs", headers={"Cookie": sent}).status_code
            for url in (encrypted.url, running_server_url(encrypted.home))
            for sent in (cookie, cookie.removeprefix("__Host-"))
        ]
    assert answers == [200, 401, 200, 200]


def test_a_spool_goes_up_and_a_run_is_read_over_tls_with_the_own_ca(
    encrypted: Encrypted, tmp_path: Path
) -> None:
    leave_spool(
        tmp_path / "spools", "over-tls", steps=3, grpc_target=f"https://{encrypted.grpc_target}"
    )
    ca = {"ISENTROPE_CA": str(encrypted.authority.certificate)}
    synced = client(encrypted, tmp_path, "sync", str(tmp_path / "spools"), **ca)
    assert (synced.exit_code, synced.stderr) == (0, "")
    listed = client(encrypted, tmp_path, "runs", "--json", **ca)
    assert [run["id"] for run in json.loads(listed.stdout)] == ["over-tls"]
    assert client(encrypted, tmp_path, "doctor", **ca).exit_code == 0


def test_without_its_ca_the_spool_stays_and_the_sentence_names_the_variable(
    encrypted: Encrypted, other_authority: ThrowAwayAuthority, tmp_path: Path
) -> None:
    leave_spool(tmp_path / "spools", "not-sent", steps=3, grpc_target=encrypted.grpc_target)
    wrong = {"ISENTROPE_CA": str(other_authority.certificate)}
    synced = client(
        encrypted, tmp_path, "sync", str(tmp_path / "spools"), "--give-up-after", "0.5", **wrong
    )
    assert synced.exit_code == 1
    assert "ISENTROPE_CA" in synced.stderr
    listed = client(encrypted, tmp_path, "runs", **wrong)
    assert listed.exit_code == 1
    assert "ISENTROPE_CA" in listed.stderr


def test_the_doctor_explains_a_wrong_or_missing_ca_on_both_ports(
    encrypted: Encrypted, other_authority: ThrowAwayAuthority, tmp_path: Path
) -> None:
    for file, word in (
        (other_authority.certificate, "ISENTROPE_CA"),
        (tmp_path / "nothing.pem", "nothing.pem"),
    ):
        found = json.loads(
            client(encrypted, tmp_path, "doctor", "--json", ISENTROPE_CA=str(file)).stdout
        )
        for finding in (one for one in found if one["check"] in ("server", "ingest")):
            assert finding["ok"] is False
            assert word in f"{finding['found']} {finding['advice']}", finding


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "192.0.2.1"])
def test_without_tls_only_the_option_listens_beyond_this_machine(host: str) -> None:
    with pytest.raises(StartupError, match="--insecure-i-know"):
        check_transport_security(Settings(host=host))
    check_transport_security(Settings(host=host, insecure_i_know=True))


def test_on_this_machine_or_with_tls_it_needs_no_option(authority: ThrowAwayAuthority) -> None:
    for host in ("127.0.0.1", "127.8.8.8", "::1", "localhost"):
        check_transport_security(Settings(host=host))
    pair = authority.sign("everywhere")
    check_transport_security(Settings(host="0.0.0.0", tls_cert=pair.certificate, tls_key=pair.key))


def test_certificates_that_cannot_be_used_are_one_sentence(
    tmp_path: Path, authority: ThrowAwayAuthority
) -> None:
    one, other = authority.sign("one"), authority.sign("other")
    text = tmp_path / "text.pem"
    text.write_text("no certificate")
    for files, words in (
        ({"tls_cert": one.certificate}, "--tls-cert .*--tls-key"),
        ({"tls_key": one.key}, "--tls-cert .*--tls-key"),
        ({"tls_cert": tmp_path / "none", "tls_key": one.key}, "can't be read"),
        ({"tls_cert": one.certificate, "tls_key": other.key}, "can't be used together"),
        ({"tls_cert": text, "tls_key": one.key}, "can't be used together"),
    ):
        with pytest.raises(StartupError, match=words):
            check_transport_security(Settings.model_validate(files))
