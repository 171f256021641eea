"""Renewed certificates count from the next connection on, on both ports, and broken ones change nothing."""

from __future__ import annotations

import os
import shutil
import socket
import ssl
from pathlib import Path

import pytest

from isentrope_server.errors import StartupError
from isentrope_server.ports import Certificates
from isentrope_server.security.certificate_renewal import RenewedContext
from tests.server.certificates import SignedPair, ThrowAwayAuthority
from tests.server.test_process import grpc_port, up


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> ThrowAwayAuthority:
    return ThrowAwayAuthority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def shown(tmp_path: Path, authority: ThrowAwayAuthority) -> Certificates:
    """What the ports show, in a folder where a renewal may put something else."""
    certificates = Certificates(certificate=tmp_path / "shown.pem", key=tmp_path / "shown.key", client_ca=None)
    put(authority.sign("before"), certificates)
    return certificates


def put(pair: SignedPair, certificates: Certificates) -> None:
    """As a renewal does it: complete files take the place of the old ones."""
    for new, old in ((pair.certificate, certificates.certificate), (pair.key, certificates.key)):
        beside = old.with_suffix(".new")
        shutil.copy(new, beside)
        os.replace(beside, old)


def name_shown_at(port: int, authority: ThrowAwayAuthority) -> str:
    """The common name of the certificate that a new connection is shown."""
    trusted = ssl.create_default_context(cafile=str(authority.certificate))
    trusted.set_alpn_protocols(["h2"])
    with (
        socket.create_connection(("127.0.0.1", port), timeout=10) as plain,
        trusted.wrap_socket(plain, server_hostname="127.0.0.1") as encrypted,
    ):
        return common_name(encrypted)


def common_name(connection: ssl.SSLSocket | ssl.SSLObject) -> str:
    certificate = connection.getpeercert()
    assert certificate is not None
    subject = certificate["subject"]
    return {key: value for ((key, value),) in subject}["commonName"]  # type: ignore[misc, str-unpack]


def handshake(server_side: ssl.SSLContext, client_side: ssl.SSLContext) -> str:
    """Two ends in memory; the name the client is shown."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_side.wrap_bio(to_client, to_server, server_hostname="127.0.0.1")
    server = server_side.wrap_bio(to_server, to_client, server_side=True)
    open_ends = [client, server]
    for _ in range(10):
        for end in list(open_ends):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
            open_ends.remove(end)
    assert not open_ends
    return common_name(client)


@pytest.mark.slow
def test_both_ports_show_the_renewed_certificate_and_keep_it_when_a_broken_one_follows(
    tmp_path: Path, shown: Certificates, authority: ThrowAwayAuthority
) -> None:
    files = {"ISENTROPE_TLS_CERT": str(shown.certificate), "ISENTROPE_TLS_KEY": str(shown.key)}
    with up(tmp_path / "home", **files) as (process, url, _):
        ports = [int(url.rpartition(":")[2]), grpc_port(process)]
        assert [name_shown_at(port, authority) for port in ports] == ["before", "before"]
        put(authority.sign("after"), shown)
        assert [name_shown_at(port, authority) for port in ports] == ["after", "after"]
        put(SignedPair(authority.sign("one").certificate, authority.sign("other").key), shown)
        for _ in range(3):
            assert [name_shown_at(port, authority) for port in ports] == ["after", "after"]
        process.terminate()
        said = process.communicate(timeout=30)[1]
        refusals = [line for line in said.splitlines() if "goes on with the old certificate" in line]
        assert sorted(line.partition("The ")[2].split()[0] for line in refusals) == ["HTTP", "gRPC"]
        assert all("can't be used together" in line for line in refusals)


def test_a_file_that_is_repaired_counts_and_one_that_breaks_again_is_told_again(
    shown: Certificates, authority: ThrowAwayAuthority, caplog: pytest.LogCaptureFixture
) -> None:
    context = RenewedContext.of(shown)
    trusted = ssl.create_default_context(cafile=str(authority.certificate))
    assert handshake(context, trusted) == "before"
    for name in ("second", "third"):
        caplog.clear()
        shown.key.unlink()
        handshake(context, trusted)
        os.utime(shown.certificate, ns=(1, 1))
        assert [handshake(context, trusted) for _ in range(2)] == ["before" if name == "second" else "second"] * 2
        (refusal,) = caplog.messages
        assert "shown.key of --tls-key can't be read" in refusal
        put(authority.sign(name), shown)
        assert handshake(context, trusted) == name


def test_clients_of_a_ca_that_was_taken_away_are_refused_from_then_on(
    tmp_path: Path, shown: Certificates, authority: ThrowAwayAuthority
) -> None:
    other = ThrowAwayAuthority(tmp_path / "other", "Another CA")
    clients = tmp_path / "clients.pem"
    shutil.copy(authority.certificate, clients)
    context = RenewedContext.of(Certificates(certificate=shown.certificate, key=shown.key, client_ca=clients))
    known = ssl.create_default_context(cafile=str(authority.certificate))
    pair = authority.sign("client")
    known.load_cert_chain(pair.certificate, pair.key)
    assert handshake(context, known) == "before"
    shutil.copy(other.certificate, clients)
    with pytest.raises(ssl.SSLError, match="CERTIFICATE_VERIFY_FAILED"):
        handshake(context, known)


def test_a_port_does_not_open_with_files_that_cannot_be_used(shown: Certificates) -> None:
    shown.certificate.write_text("no certificate")
    with pytest.raises(StartupError, match=r"shown\.pem"):
        RenewedContext.of(shown)
