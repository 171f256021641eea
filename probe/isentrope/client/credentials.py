"""What every connection needs: the token as a header; which servers are trusted over TLS
(`ISENTROPE_CA`), and what is shown to a proxy that asks (`ISENTROPE_CLIENT_CERT`,
`ISENTROPE_CLIENT_KEY`)."""

from __future__ import annotations

import re
import ssl
from pathlib import Path

from isentrope_wire import environment
from isentrope_wire.errors import ConfigurationError

_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]+")


def bearer_of(token: str | None) -> str | None:
    """What the header `authorization` holds, None without a token; ConfigurationError: it has
    characters that no token has."""
    if token and not _TOKEN.fullmatch(token):
        raise ConfigurationError(
            "A token consists of letters, digits and the signs . _ ~ + / = - alone, and this one"
            f" has others. Check {environment.token_source()}."
        )
    if token:
        return f"Bearer {token}"
    return None


def pem() -> tuple[bytes | None, bytes | None, bytes | None]:
    """The CA, this client's key and its certificate, as gRPC takes them; None: the system's CAs, no
    certificate.
    ConfigurationError: a file that can't be read, or a key without a certificate."""
    certificate, key = environment.client_certificate(), environment.client_key()
    if key is not None and certificate is None:
        raise ConfigurationError(
            "ISENTROPE_CLIENT_KEY is of use with its certificate alone: set ISENTROPE_CLIENT_CERT."
        )
    return (
        _read("ISENTROPE_CA", environment.certificate_authority()),
        _read("ISENTROPE_CLIENT_KEY", key or certificate),
        _read("ISENTROPE_CLIENT_CERT", certificate),
    )


def ssl_context() -> ssl.SSLContext:
    """TLS settings for HTTP. ConfigurationError: as `pem`, or a file that is no certificate."""
    pem()
    ca, certificate = environment.certificate_authority(), environment.client_certificate()
    try:
        context = ssl.create_default_context(cafile=ca)
    except ssl.SSLError as error:
        raise ConfigurationError(
            f"ISENTROPE_CA must be a PEM file of certificates, and {ca} is none."
        ) from error
    try:
        if certificate is not None:
            context.load_cert_chain(certificate, environment.client_key(), password="")
    except ssl.SSLError as error:
        raise ConfigurationError(
            "ISENTROPE_CLIENT_CERT and ISENTROPE_CLIENT_KEY must be PEM files of a certificate and"
            f" its own key without a password; {certificate} and"
            f" {environment.client_key() or certificate} are not."
        ) from error
    return context


_ADVICE = (
    (
        ("HOSTNAME_MISMATCH", "IP_ADDRESS_MISMATCH", "DOESN'T_MATCH", "IS_NOT_VALID_FOR"),
        (
            "The server's certificate is for another name: use that name in ISENTROPE_URL and"
            " ISENTROPE_GRPC, or make one that has this address among its subject alternative"
            " names."
        ),
    ),
    (
        ("CERTIFICATE_VERIFY_FAILED", "UNKNOWN_CA"),
        (
            "This machine doesn't trust who signed the server's certificate: point ISENTROPE_CA at"
            " the PEM file of that CA."
        ),
    ),
    (
        ("CERTIFICATE_REQUIRED",),
        (
            "The server wants to see a certificate of its clients: set ISENTROPE_CLIENT_CERT and"
            " ISENTROPE_CLIENT_KEY."
        ),
    ),
    (
        ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE"),
        (
            "The server speaks no TLS there: write http:// in ISENTROPE_URL and ISENTROPE_GRPC, or"
            " start it with --tls-cert."
        ),
    ),
    (
        ("RECEIVED_HTTP2_HEADER_WITH_STATUS", "HTTP_PROXY"),
        (
            "A proxy or another program answered, not the server: check ISENTROPE_GRPC, "
            "and name the server's host in NO_PROXY if a proxy is on the way."
        ),
    ),
)
"""What the libraries say of a failure, and what to do about it."""


def advice_on(failure: str) -> str:
    """What to do about a connection that failed; empty where nothing is known of the cause."""
    said = failure.upper().replace(" ", "_")
    return next((advice for signs, advice in _ADVICE if any(sign in said for sign in signs)), "")


def _read(variable: str, file: Path | None) -> bytes | None:
    try:
        if file is None:
            return None
        return file.read_bytes()
    except OSError as error:
        raise ConfigurationError(
            f"{variable} names {file}, which can't be read ({error.strerror})."
        ) from error
