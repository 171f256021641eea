"""The PEM files a port proves itself with, and what OpenSSL and gRPC make of them."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

import grpc

from isentrope_server.errors import StartupError


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificates:
    """A certificate, its key, and the CA whose certificates clients must show; None: a token is enough."""

    certificate: Path
    key: Path
    client_ca: Path | None

    @property
    def files(self) -> tuple[Path, ...]:
        return (self.certificate, self.key, *([] if self.client_ca is None else [self.client_ca]))

    def context(self) -> ssl.SSLContext:
        """A server's context with the files as they are now.

        Raises:
            StartupError: they can't be used; the message says which and why.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._load_pair(context)
        if self.client_ca is not None:
            self._load_client_ca(context, self.client_ca)
        return context

    def grpc_configuration(self) -> grpc.ServerCertificateConfiguration:
        """The same for gRPC, which itself says nothing of files it can't use.

        Raises:
            StartupError: as `context`.
        """
        self.context()
        return grpc.ssl_server_certificate_configuration(
            [(_read("--tls-key", self.key), _read("--tls-cert", self.certificate))],
            root_certificates=None if self.client_ca is None else _read("--tls-client-ca", self.client_ca),
        )

    def _load_pair(self, context: ssl.SSLContext) -> None:
        for option, file in (("--tls-cert", self.certificate), ("--tls-key", self.key)):
            _read(option, file)
        try:
            # An empty password instead of a question on a terminal nobody may be looking at.
            context.load_cert_chain(self.certificate, self.key, password="")
        except (ssl.SSLError, OSError) as error:
            raise StartupError(
                f"The certificate {self.certificate} and the key {self.key} can't be used together: {_reason(error)}. "
                "Both must be PEM files, the key of this very certificate and without a password."
            ) from error

    @staticmethod
    def _load_client_ca(context: ssl.SSLContext, client_ca: Path) -> None:
        _read("--tls-client-ca", client_ca)
        try:
            context.load_verify_locations(client_ca)
        except (ssl.SSLError, OSError) as error:
            raise StartupError(
                f"The clients' CA {client_ca} can't be used: {_reason(error)}. It must be a PEM file of certificates."
            ) from error
        context.verify_mode = ssl.CERT_REQUIRED


def _read(option: str, file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise StartupError(f"The file {file} of {option} can't be read: {error.strerror}.") from error


def _reason(error: OSError) -> str:
    """`ssl.SSLError` is an OSError too; a file may also vanish between two looks."""
    reason = getattr(error, "reason", None) or error.strerror
    return (reason or "it is no PEM").replace("_", " ").lower()
