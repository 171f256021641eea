"""Which servers are trusted over TLS, and what to prove oneself with: `ISENTROPE_CA`, `_CLIENT_CERT`, `_CLIENT_KEY`."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from isentrope.errors import ConfigurationError
from isentrope_wire import environment

WRONG_CA = (
    "This machine doesn't trust who signed the server's certificate: point ISENTROPE_CA at the PEM file of that CA."
)
CERTIFICATE_WANTED = (
    "The server wants to see a certificate of its clients: set ISENTROPE_CLIENT_CERT and ISENTROPE_CLIENT_KEY."
)
WRONG_NAME = (
    "The server's certificate is for another name: use that name in ISENTROPE_URL and ISENTROPE_GRPC, or make one that "
    "has this address among its subject alternative names."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """What both kinds of connection need, as PEM files; None: the system's CAs, no certificate of one's own."""

    ca: Path | None
    certificate: Path | None
    key: Path | None

    @classmethod
    def from_environment(cls) -> Self:
        """
        Raises:
            ConfigurationError: a file that can't be read, or a key without a certificate.
        """
        ca, certificate, key = (
            environment.certificate_authority(),
            environment.client_certificate(),
            environment.client_key(),
        )
        if key is not None and certificate is None:
            raise ConfigurationError(
                "ISENTROPE_CLIENT_KEY is of use with its certificate alone: set ISENTROPE_CLIENT_CERT."
            )
        return cls(ca=ca, certificate=certificate, key=key or certificate)

    def pem(self) -> tuple[bytes | None, bytes | None, bytes | None]:
        """CA, key and certificate as gRPC takes them.

        Raises:
            ConfigurationError: a file can't be read.
        """
        return (
            _read("ISENTROPE_CA", self.ca),
            _read("ISENTROPE_CLIENT_KEY", self.key),
            _read("ISENTROPE_CLIENT_CERT", self.certificate),
        )

    def ssl_context(self) -> ssl.SSLContext:
        """What HTTP connections take.

        Raises:
            ConfigurationError: a file can't be read, or holds something else.
        """
        self.pem()
        try:
            context = ssl.create_default_context(cafile=None if self.ca is None else str(self.ca))
        except ssl.SSLError as error:
            raise ConfigurationError(
                f"ISENTROPE_CA must be a PEM file of certificates, but {self.ca} is not one."
            ) from error
        if self.certificate is not None:
            try:
                context.load_cert_chain(self.certificate, self.key, password="")
            except ssl.SSLError as error:
                raise ConfigurationError(
                    f"ISENTROPE_CLIENT_CERT and ISENTROPE_CLIENT_KEY must be PEM files of a certificate and its own key "
                    f"without a password; {self.certificate} and {self.key} are not."
                ) from error
        return context


def advice_on(failure: str) -> str:
    """What to do about a connection that failed, by what the TLS library says of it; empty where TLS isn't the cause."""
    said = failure.upper().replace(" ", "_")
    if (
        "HOSTNAME_MISMATCH" in said
        or "IP_ADDRESS_MISMATCH" in said
        or "DOESN'T_MATCH" in said
        or "IS_NOT_VALID_FOR" in said
    ):
        return WRONG_NAME
    if "CERTIFICATE_VERIFY_FAILED" in said or "UNKNOWN_CA" in said:
        return WRONG_CA
    if "CERTIFICATE_REQUIRED" in said:
        return CERTIFICATE_WANTED
    if "WRONG_VERSION_NUMBER" in said or "RECORD_LAYER_FAILURE" in said:
        return "The server speaks no TLS there: write http:// in ISENTROPE_URL and ISENTROPE_GRPC, or start it with --tls-cert."
    return ""


def _read(variable: str, file: Path | None) -> bytes | None:
    if file is None:
        return None
    try:
        return file.read_bytes()
    except OSError as error:
        raise ConfigurationError(f"{variable} names {file}, which can't be read ({error.strerror}).") from error
