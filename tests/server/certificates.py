"""A throw-away certificate authority: what it signs is good for an hour and for 127.0.0.1."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class SignedPair:
    """A certificate and its key, as PEM files."""

    certificate: Path
    key: Path


class ThrowAwayAuthority:
    """Made with the openssl program, in a folder of its own."""

    def __init__(self, folder: Path, name: str = "Isentrope's tests") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self.certificate = folder / "ca.pem"
        self._key = folder / "ca.key"
        self._openssl(
            "req",
            "-x509",
            *_new_key(self._key),
            "-days",
            "1",
            "-out",
            str(self.certificate),
            "-subj",
            f"/CN={name}",
        )

    def sign(self, name: str, *, address: str = "IP:127.0.0.1,DNS:localhost") -> SignedPair:
        """A pair for a server at these addresses, or for a client."""
        pair = SignedPair(self._folder / f"{name}.pem", self._folder / f"{name}.key")
        request, extensions = self._folder / f"{name}.csr", self._folder / f"{name}.ext"
        extensions.write_text(f"subjectAltName={address}\n")
        self._openssl("req", *_new_key(pair.key), "-out", str(request), "-subj", f"/CN={name}")
        self._openssl(
            "x509",
            "-req",
            "-in",
            str(request),
            "-CA",
            str(self.certificate),
            "-CAkey",
            str(self._key),
            "-CAcreateserial",
            "-days",
            "1",
            "-out",
            str(pair.certificate),
            "-extfile",
            str(extensions),
        )
        return pair

    def _openssl(self, *arguments: str) -> None:
        subprocess.run(["openssl", *arguments], capture_output=True, check=True, timeout=30)


def _new_key(file: Path) -> tuple[str, ...]:
    return (
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-keyout",
        str(file),
    )
