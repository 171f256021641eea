"""The environment variables both sides read, what their addresses mean, and the file that carries
the owner's token."""

from __future__ import annotations

import fcntl
import ipaddress
import json
import math
import os
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit

from isentrope_wire.errors import ConfigurationError

DEFAULT_URL = "http://127.0.0.1:7070"
DEFAULT_GRPC = "127.0.0.1:7071"
LOCK_NAME = "server.lock"
"""In a home: held by its server, whose addresses it has."""
_ENCRYPTED = "https://"
_CLEAR = "http://"
_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


def home() -> Path:
    """`ISENTROPE_HOME`: database, tokens, spools. Default `~/.isentrope`."""
    return Path(os.environ.get("ISENTROPE_HOME") or "~/.isentrope").expanduser()


def kernel_cache() -> Path:
    """`ISENTROPE_KERNEL_CACHE`: where compiled kernels are kept. Default: `kernels` in the home."""
    return Path(os.environ.get("ISENTROPE_KERNEL_CACHE") or home() / "kernels").expanduser()


def server_of(home: Path) -> dict[str, str] | None:
    """What the lock of the server that runs with this home says: `pid`, `url` and, without TLS,
    `grpc`; None where none runs."""
    try:
        lock = (home / LOCK_NAME).open("r+", encoding="utf-8")
    except OSError:
        return None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return read_lock(lock)
        return None


def read_lock(lock: IO[str]) -> dict[str, str]:
    """What a server wrote into its lock."""
    lock.seek(0)
    try:
        held = json.load(lock)
    except json.JSONDecodeError:
        return {}
    if isinstance(held, dict):
        return held
    return {}


def _read_home(what: str) -> str | None:
    """Where neither address is set: that of the server with the same home."""
    if _value_of("ISENTROPE_URL") or _value_of("ISENTROPE_GRPC"):
        return None
    return (server_of(home()) or {}).get(what)


def _value_of(variable: str) -> str:
    """What the variable holds, without blanks and line ends around it."""
    return os.environ.get(variable, "").strip()


def url() -> str:
    """`ISENTROPE_URL`: the server's REST API and pages; else that of the server with the same home,
    or the default one."""
    return (_value_of("ISENTROPE_URL") or _read_home("url") or DEFAULT_URL).rstrip("/")


def pages_of(target: str) -> str | None:
    """The address of the pages of the server whose ingest is at `target`; None where it is another
    than the one that is meant without settings, and `ISENTROPE_URL` is not set."""
    meant = _read_home("grpc") or DEFAULT_GRPC
    if _value_of("ISENTROPE_URL") or host_and_port(target) == meant:
        return url()
    return None


def keep_delivered_seconds() -> float:
    """`ISENTROPE_KEEP_DELIVERED`: how long a spool keeps what the server has acknowledged. Seconds,
    or a number followed by s, m, h or d; 0: not at all. Default: a day. ConfigurationError: it is
    something else."""
    text = os.environ.get("ISENTROPE_KEEP_DELIVERED", "").strip() or "1d"
    if text[-1] in _UNITS:
        number, unit = (text[:-1], text[-1])
    else:
        number, unit = (text, "s")
    try:
        seconds = float(number) * _UNITS[unit]
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise ConfigurationError(
            "ISENTROPE_KEEP_DELIVERED must be seconds, or a number followed by s, m, h or d, such"
            f" as 1d or 0, got {text!r}."
        )
    return seconds


def grpc_target() -> str:
    """`ISENTROPE_GRPC`: host:port of the server's ingest, behind `https://` where it is encrypted;
    else that of the server with the same home, or the default one."""
    target = _value_of("ISENTROPE_GRPC") or _read_home("grpc") or DEFAULT_GRPC
    if is_encrypted(target):
        return f"{_ENCRYPTED}{host_and_port(target)}"
    return host_and_port(target)


def is_encrypted(target: str) -> bool:
    """Whether the connection to an ingest uses TLS: by its address (`https://`, `http://`); where
    that has no scheme, if `ISENTROPE_URL` begins with https:// or `ISENTROPE_CA` is set."""
    if target.startswith((_ENCRYPTED, _CLEAR)):
        return target.startswith(_ENCRYPTED)
    return url().startswith(_ENCRYPTED) or certificate_authority() is not None


def host_and_port(target: str) -> str:
    """An ingest's address without its scheme; with the default port where it names none, for which
    gRPC would take 443. So it does behind `https://`, as of an ingress."""
    address = target.removeprefix(_ENCRYPTED).removeprefix(_CLEAR).rstrip("/")
    if ":" in address or target.startswith(_ENCRYPTED):
        return address
    return f"{address}:{DEFAULT_GRPC.rpartition(':')[2]}"


def certificate_authority() -> Path | None:
    """`ISENTROPE_CA`: PEM file of the CA that signed the server's certificate; None: those the
    system trusts."""
    return _file("ISENTROPE_CA")


def client_certificate() -> Path | None:
    """`ISENTROPE_CLIENT_CERT`: PEM file of the certificate to show a server that asks for one."""
    return _file("ISENTROPE_CLIENT_CERT")


def client_key() -> Path | None:
    """`ISENTROPE_CLIENT_KEY`: PEM file of its private key; None: it is in the certificate's
    file."""
    return _file("ISENTROPE_CLIENT_KEY")


def _file(variable: str) -> Path | None:
    name = os.environ.get(variable)
    if name:
        return Path(name).expanduser()
    return None


def is_on_this_machine(address: str) -> bool:
    """Whether a URL or host:port is a loopback address. A proxy in between could not reach it, and
    would see the token."""
    try:
        host = urlsplit(address if "//" in address else f"//{address}").hostname or ""
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def owner_token_file() -> Path:
    """Where a server that shares this home keeps the owner's token (mode 0600), so that local
    clients find it."""
    return home() / "owner-token"


def token() -> str | None:
    """What the file `ISENTROPE_TOKEN_FILE` holds now; where that is not set `ISENTROPE_TOKEN`, else
    the owner's token of a server with the same home; None when there is none. A token in a file can
    be changed while a run reports. ConfigurationError: the file that is set has no token that can
    be read."""
    file = _file("ISENTROPE_TOKEN_FILE")
    if file is not None:
        found = _token_in(file)
        if found is None:
            raise ConfigurationError(
                f"ISENTROPE_TOKEN_FILE names {file}, in which no token can be read. Write one into "
                "it, or unset the variable."
            )
        return found
    # A secret that was made by `echo` ends in a line break.
    return _value_of("ISENTROPE_TOKEN") or _token_in(owner_token_file())


def token_source() -> str:
    """Where `token` takes it from, for a message."""
    file = _file("ISENTROPE_TOKEN_FILE")
    if file is not None:
        return str(file)
    if os.environ.get("ISENTROPE_TOKEN"):
        return "ISENTROPE_TOKEN"
    return str(owner_token_file())


def _token_in(file: Path | None) -> str | None:
    try:
        if file is None:
            return None
        return file.read_text(encoding="utf-8").strip() or None
    except (OSError, UnicodeDecodeError):
        return None


NETWORK_FILE_SYSTEMS = frozenset(
    {
        "nfs",
        "nfs4",
        "cifs",
        "smb3",
        "smbfs",
        "afs",
        "ceph",
        "glusterfs",
        "lustre",
        "gpfs",
        "beegfs",
        "ocfs2",
        "fuse.sshfs",
        "fuse.glusterfs",
        "fuse.s3fs",
        "fuse.gcsfuse",
        "fuse.rclone",
        "fuse.ceph",
        "fuse.juicefs",
    }
)
MOUNTS = Path("/proc/mounts")


def file_system_of(path: Path, mounts: Path = MOUNTS) -> str | None:
    """Type of the file system of a file, which need not exist; None where the system does not
    report it."""
    if not mounts.exists():
        return None
    place = path.resolve()
    kind: str | None = None
    longest = -1
    for line in mounts.read_text(encoding="utf-8", errors="replace").splitlines():
        _, mounted_on, this_kind, *_ = line.split(" ")
        # Blanks in a path are written as octal numbers.
        root = Path(mounted_on.encode().decode("unicode_escape"))
        # Of two mounts on one place the later one is seen.
        if place.is_relative_to(root) and len(root.parts) >= longest:
            kind, longest = this_kind, len(root.parts)
    return kind
