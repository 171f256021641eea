"""Both ports over TLS, with an own CA, with clients' certificates, and never in the clear beyond this machine."""

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
from tests.server.certificates import SignedPair, ThrowAwayAuthority
from tests.server.test_process import call, grpc_port, one_sentence, up
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


def serving(home: Path, authority: ThrowAwayAuthority, **more: str) -> Iterator[Encrypted]:
    pair = authority.sign("server")
    files = {"ISENTROPE_TLS_CERT": str(pair.certificate), "ISENTROPE_TLS_KEY": str(pair.key)}
    with up(home, **files, **more) as (process, url, token):
        yield Encrypted(url, f"127.0.0.1:{grpc_port(process)}", token, home, authority)


@pytest.fixture(scope="module")
def encrypted(tmp_path_factory: pytest.TempPathFactory, authority: ThrowAwayAuthority) -> Iterator[Encrypted]:
    yield from serving(tmp_path_factory.mktemp("tls") / "home", authority)


@pytest.fixture(scope="module")
def mutual(tmp_path_factory: pytest.TempPathFactory, authority: ThrowAwayAuthority) -> Iterator[Encrypted]:
    """It asks its clients for certificates of the same CA."""
    home = tmp_path_factory.mktemp("mtls") / "home"
    yield from serving(home, authority, ISENTROPE_TLS_CLIENT_CA=str(authority.certificate))


def client(server: Encrypted, tmp_path: Path, *arguments: str, **more: str) -> Result:
    """`isentrope ...` on another machine: a home of its own, with these variables."""
    environment = {
        "ISENTROPE_HOME": str(tmp_path / "client"),
        "ISENTROPE_URL": server.url,
        "ISENTROPE_GRPC": server.grpc_target,
        "ISENTROPE_TOKEN": server.token,
    }
    return CliRunner().invoke(frame.main, arguments, env=environment | more)


def findings(result: Result) -> dict[str, dict[str, object]]:
    return {finding["check"]: finding for finding in json.loads(result.stdout)}


def test_the_printed_address_is_https_and_its_cookie_travels_over_tls_alone(encrypted: Encrypted) -> None:
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


def test_a_spool_goes_up_and_a_run_is_read_over_tls_with_the_own_ca(encrypted: Encrypted, tmp_path: Path) -> None:
    leave_spool(tmp_path / "spools", "over-tls", steps=3, grpc_target=f"https://{encrypted.grpc_target}")
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
    synced = client(encrypted, tmp_path, "sync", str(tmp_path / "spools"), "--give-up-after", "0.5", **wrong)
    assert synced.exit_code == 1
    assert "ISENTROPE_CA" in synced.stderr
    listed = client(encrypted, tmp_path, "runs", **wrong)
    assert listed.exit_code == 1
    assert "ISENTROPE_CA" in listed.stderr


def test_the_doctor_explains_a_wrong_ca_on_both_ports(
    encrypted: Encrypted, other_authority: ThrowAwayAuthority, tmp_path: Path
) -> None:
    found = findings(client(encrypted, tmp_path, "doctor", "--json", ISENTROPE_CA=str(other_authority.certificate)))
    for check in ("server", "ingest"):
        assert found[check]["ok"] is False
        assert "ISENTROPE_CA" in str(found[check]["advice"]), check


def test_the_doctor_names_a_file_that_cannot_be_read(encrypted: Encrypted, tmp_path: Path) -> None:
    found = findings(client(encrypted, tmp_path, "doctor", "--json", ISENTROPE_CA=str(tmp_path / "nothing.pem")))
    for check in ("server", "ingest"):
        assert "nothing.pem" in str(found[check]["advice"])


def test_the_command_line_beside_the_server_makes_tokens_without_any_certificate(encrypted: Encrypted) -> None:
    created = call("token", "create", "--scope", "read", "--json", home=encrypted.home)
    assert created.exit_code == 0, created.stderr
    assert json.loads(created.stdout)["scope"] == "read"


@pytest.mark.slow
def test_clients_without_a_certificate_are_refused_on_both_ports(mutual: Encrypted, tmp_path: Path) -> None:
    ca = {"ISENTROPE_CA": str(mutual.authority.certificate)}
    assert client(mutual, tmp_path, "runs", **ca).exit_code == 1
    found = findings(client(mutual, tmp_path, "doctor", "--json", **ca))
    assert (found["server"]["ok"], found["ingest"]["ok"]) == (False, False)
    assert "ISENTROPE_CLIENT_CERT" in str(found["ingest"]["advice"])


@pytest.mark.slow
def test_clients_with_a_certificate_of_the_ca_come_in(mutual: Encrypted, tmp_path: Path) -> None:
    leave_spool(tmp_path / "spools", "mutual", steps=2, grpc_target=mutual.grpc_target)
    pair = mutual.authority.sign("client")
    environment = proof(mutual, pair)
    synced = client(mutual, tmp_path, "sync", str(tmp_path / "spools"), **environment)
    assert (synced.exit_code, synced.stderr) == (0, "")
    assert client(mutual, tmp_path, "runs", **environment).exit_code == 0


@pytest.mark.slow
def test_a_certificate_of_another_ca_is_no_proof(
    mutual: Encrypted, other_authority: ThrowAwayAuthority, tmp_path: Path
) -> None:
    environment = proof(mutual, other_authority.sign("intruder"))
    assert client(mutual, tmp_path, "runs", **environment).exit_code == 1
    assert findings(client(mutual, tmp_path, "doctor", "--json", **environment))["ingest"]["ok"] is False


def proof(server: Encrypted, pair: SignedPair) -> dict[str, str]:
    return {
        "ISENTROPE_CA": str(server.authority.certificate),
        "ISENTROPE_CLIENT_CERT": str(pair.certificate),
        "ISENTROPE_CLIENT_KEY": str(pair.key),
    }


def test_a_server_that_would_send_tokens_in_the_clear_does_not_start(tmp_path: Path) -> None:
    ports = ("--http-port", "0", "--grpc-port", "0")
    refused = call("up", "--host", "0.0.0.0", *ports, home=tmp_path / "home")
    assert refused.exit_code == 2
    assert "--insecure-i-know" in one_sentence(refused)
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "192.0.2.1"])
def test_without_tls_only_the_option_listens_beyond_this_machine(host: str) -> None:
    with pytest.raises(StartupError, match="--insecure-i-know"):
        check_transport_security(Settings(host=host))
    check_transport_security(Settings(host=host, insecure_i_know=True))


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_on_this_machine_it_needs_no_tls(host: str) -> None:
    check_transport_security(Settings(host=host))


def test_with_tls_it_listens_everywhere(authority: ThrowAwayAuthority) -> None:
    pair = authority.sign("everywhere")
    check_transport_security(Settings(host="0.0.0.0", tls_cert=pair.certificate, tls_key=pair.key))


@pytest.mark.slow
def test_behind_an_encrypting_proxy_it_listens_everywhere(tmp_path: Path) -> None:
    with up(tmp_path, ISENTROPE_HOST="0.0.0.0", ISENTROPE_INSECURE_I_KNOW="1") as (_, url, _token):
        assert httpx.get(f"{url}/healthz", trust_env=False).status_code == 200


def test_certificates_that_cannot_be_used_are_one_sentence(tmp_path: Path, authority: ThrowAwayAuthority) -> None:
    one, other = authority.sign("one"), authority.sign("other")
    text = tmp_path / "text.pem"
    text.write_text("no certificate")
    for files, words in (
        ({"tls_cert": one.certificate}, "--tls-cert .*--tls-key"),
        ({"tls_key": one.key}, "--tls-cert .*--tls-key"),
        ({"tls_client_ca": authority.certificate}, "--tls-cert .*--tls-key"),
        ({"tls_cert": tmp_path / "none", "tls_key": one.key}, "can't be read"),
        ({"tls_cert": one.certificate, "tls_key": other.key}, "can't be used together"),
        ({"tls_cert": text, "tls_key": one.key}, "can't be used together"),
        ({"tls_cert": one.certificate, "tls_key": one.key, "tls_client_ca": text}, "clients' CA"),
    ):
        with pytest.raises(StartupError, match=words):
            check_transport_security(Settings.model_validate(files))
