"""The gRPC port shows renewed certificates from the next connection on, and keeps its own when the new ones are broken."""

from __future__ import annotations

import os
import shutil
import socket
import ssl
from pathlib import Path

import pytest

from isentrope_server.ports import Certificates
from tests.server.certificates import SignedPair, ThrowAwayAuthority
from tests.server.conftest import MakeServer
from tests.server.in_thread import ServerInThread


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> ThrowAwayAuthority:
    return ThrowAwayAuthority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def shown(tmp_path: Path, authority: ThrowAwayAuthority) -> Certificates:
    """The certificate of the port, in a folder where a renewal may replace it."""
    certificates = Certificates(certificate=tmp_path / "shown.pem", key=tmp_path / "shown.key", client_ca=None)
    put(authority.sign("before"), certificates)
    return certificates


def put(pair: SignedPair, certificates: Certificates) -> None:
    """As a renewal does it: complete files take the place of the old ones."""
    for new, old in ((pair.certificate, certificates.certificate), (pair.key, certificates.key)):
        beside = old.with_suffix(".new")
        shutil.copy(new, beside)
        os.replace(beside, old)


def name_shown_by(server: ServerInThread, authority: ThrowAwayAuthority) -> str:
    """The common name of the certificate that a new connection is shown."""
    trusted = ssl.create_default_context(cafile=str(authority.certificate))
    trusted.set_alpn_protocols(["h2"])
    with (
        socket.create_connection(("127.0.0.1", int(server.grpc_target.rpartition(":")[2])), timeout=10) as plain,
        trusted.wrap_socket(plain, server_hostname="127.0.0.1") as encrypted,
    ):
        return common_name(encrypted)


def common_name(connection: ssl.SSLSocket) -> str:
    certificate = connection.getpeercert()
    assert certificate is not None
    subject = certificate["subject"]
    return {key: value for ((key, value),) in subject}["commonName"]  # type: ignore[misc, str-unpack]


@pytest.fixture
def server(make_server: MakeServer, shown: Certificates) -> ServerInThread:
    return make_server(tls_cert=shown.certificate, tls_key=shown.key)


def test_next_connection_sees_renewed_certificate(
    server: ServerInThread, shown: Certificates, authority: ThrowAwayAuthority
) -> None:
    assert name_shown_by(server, authority) == "before"
    put(authority.sign("after"), shown)
    assert name_shown_by(server, authority) == "after"


def test_broken_certificate_changes_nothing(
    server: ServerInThread,
    shown: Certificates,
    authority: ThrowAwayAuthority,
    caplog: pytest.LogCaptureFixture,
) -> None:
    put(SignedPair(authority.sign("one").certificate, authority.sign("other").key), shown)
    assert [name_shown_by(server, authority) for _ in range(3)] == ["before"] * 3
    (refused,) = [record for record in caplog.records if record.name == "isentrope_server.ports"]
    assert "shown.key" in refused.getMessage()
    put(authority.sign("repaired"), shown)
    assert name_shown_by(server, authority) == "repaired"


def test_clients_of_removed_authority_are_refused(
    make_server: MakeServer, shown: Certificates, authority: ThrowAwayAuthority, tmp_path: Path
) -> None:
    clients = tmp_path / "clients.pem"
    shutil.copy(authority.certificate, clients)
    server = make_server(tls_cert=shown.certificate, tls_key=shown.key, tls_client_ca=clients)
    known = ssl.create_default_context(cafile=str(authority.certificate))
    known.set_alpn_protocols(["h2"])
    pair = authority.sign("client")
    known.load_cert_chain(pair.certificate, pair.key)
    assert is_let_in(server, known)
    shutil.copy(ThrowAwayAuthority(tmp_path / "other", "Another CA").certificate, clients)
    assert not is_let_in(server, known)


def is_let_in(server: ServerInThread, client: ssl.SSLContext) -> bool:
    """Whether the port answers after the handshake; with TLS 1.3 a refusal arrives with the first read."""
    address = ("127.0.0.1", int(server.grpc_target.rpartition(":")[2]))
    with socket.create_connection(address, timeout=10) as plain:
        try:
            with client.wrap_socket(plain, server_hostname="127.0.0.1") as encrypted:
                return encrypted.recv(1) != b""
        except ssl.SSLError:
            return False
