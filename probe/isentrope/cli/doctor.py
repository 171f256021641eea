"""The checks of `isentrope doctor`: each reports what it found and, when that is a problem, what to do."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import os
import platform
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from urllib.parse import urlsplit

import grpc
import httpx

from isentrope.client.client import Client
from isentrope.client.connection import ApiError
from isentrope.client.credentials import Credentials, advice_on
from isentrope.errors import ConfigurationError
from isentrope.transport.connection import open_channel
from isentrope.transport.files import ProcessLock, write_atomically
from isentrope.transport.segments import list_segments
from isentrope.transport.spool_folder import find_spool_folders
from isentrope_wire import environment
from isentrope_wire.errors import install_command
from isentrope_wire.numbers import printable
from isentrope_wire.v1 import telemetry_pb2 as pb
from isentrope_wire.v1.telemetry_pb2_grpc import TelemetryStub

_NEEDED = ("isentrope", "click", "grpcio", "httpx", "protobuf")
_EXTRAS = ("torch", "transformers", "trl", "fastapi", "sqlalchemy", "dash")
_CONNECT_SECONDS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line of the diagnosis."""

    check: str
    ok: bool
    found: str
    advice: str = ""
    """What to do; empty where there is no problem."""


def examine() -> list[Finding]:
    """Make every check; none of them raises."""
    checks: tuple[Callable[[], Finding], ...] = (
        _versions,
        _kernels,
        _home,
        _spools,
        _server,
        _token,
        _ingest,
    )
    return [check() for check in checks]


def _versions() -> Finding:
    packages = {name: _version(name) for name in (*_NEEDED, *_EXTRAS)}
    found = ", ".join(f"{name} {number}" for name, number in packages.items() if number)
    missing = [name for name in _NEEDED if packages[name] is None]
    return Finding(
        check="versions",
        ok=not missing,
        found=f"Python {platform.python_version()}, {found}",
        advice=f"Install the missing packages: {install_command()} (there is no {', no '.join(missing)})."
        if missing
        else "",
    )


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _kernels() -> Finding:
    """Which kernels score tokens here: without them, plain torch takes several times as long."""
    if importlib.util.find_spec("torch") is None:
        return Finding(check="kernels", ok=True, found="torch is not installed, so no tokens are scored here")
    # Imported only where torch is installed: it takes seconds, and a server does not need it.
    dispatch = importlib.import_module("isentrope.kernels.dispatch")
    try:
        choices = dispatch.choices()
    except ConfigurationError as error:
        return Finding(
            check="kernels",
            ok=False,
            found=str(error),
            advice="Unset ISENTROPE_KERNELS, or install what these kernels need.",
        )
    kernels = [
        f"{choice.backend} on {choice.device}"
        + (f" (not the faster kernels: {choice.why_not})" if choice.why_not else "")
        for choice in choices
    ]
    return Finding(check="kernels", ok=True, found=", ".join(kernels))


def _home() -> Finding:
    home = environment.home()
    probe_file = home / f".doctor.{os.getpid()}"
    try:
        home.mkdir(parents=True, exist_ok=True)
        write_atomically(probe_file, b"written by isentrope doctor")
        lock = ProcessLock(probe_file)
        lock.acquire()
        lock.release()
        probe_file.unlink()
    except OSError as error:
        return Finding(
            check="home",
            ok=False,
            found=f"{home} can't be written to and locked ({error.strerror})",
            advice="Point ISENTROPE_HOME at a folder on a local disk that you own.",
        )
    return Finding(check="home", ok=True, found=f"{home} can be written to")


def _spools() -> Finding:
    root = environment.home() / "spool"
    try:
        left = [folder for folder in find_spool_folders(root) if list_segments(folder.path)]
    except OSError as error:
        return Finding(
            check="spools",
            ok=False,
            found=f"{error.filename or root} can't be read ({error.strerror})",
            advice="Make the home yours (chown, chmod u+rwX), or point ISENTROPE_HOME at a folder that you own.",
        )
    found = (
        f"{len(left)} with undelivered reports; `isentrope sync` delivers those of a training that has ended"
        if left
        else "all reports are delivered"
    )
    return Finding(check="spools", ok=True, found=found)


def _server() -> Finding:
    url = environment.url()
    try:
        trust_env = not environment.is_on_this_machine(url)
        verify = Credentials.from_environment().ssl_context() if url.startswith("https://") else True
        response = httpx.get(f"{url}/healthz", timeout=_CONNECT_SECONDS, trust_env=trust_env, verify=verify)
    except ConfigurationError as error:
        return Finding(check="server", ok=False, found=f"{url} was not checked", advice=str(error))
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        return Finding(
            check="server",
            ok=False,
            found=f"{url} does not answer ({error})",
            advice=advice_on(str(error)) or "Start one with `isentrope up`, or point ISENTROPE_URL at yours.",
        )
    if not response.is_success:
        return Finding(
            check="server",
            ok=False,
            found=f"{url}/healthz answers {response.status_code}, an Isentrope server 200",
            advice="Check whether another program listens there, and read the server's log.",
        )
    return Finding(check="server", ok=True, found=f"{url} answers")


def _token() -> Finding:
    advice = (
        "Set ISENTROPE_TOKEN to a token of this server; `isentrope token create --scope control` there creates one."
    )
    token = environment.token()
    if token is None:
        return Finding(check="token", ok=False, found="no token is set", advice=advice)
    source = "ISENTROPE_TOKEN" if os.environ.get("ISENTROPE_TOKEN") else str(environment.owner_token_file())
    try:
        with Client(timeout_seconds=_CONNECT_SECONDS) as client:
            client.runs(q="doctor")
    except ConfigurationError as error:
        return Finding(check="token", ok=False, found=f"the text from {source} is no token: {error}", advice=advice)
    except ApiError as error:
        if error.status == httpx.codes.FORBIDDEN:
            return _reporting_token(token, source)
        if error.status == httpx.codes.UNAUTHORIZED:
            found = f"the server does not accept the token from {source}"
            return Finding(check="token", ok=False, found=found, advice=advice)
        reason = "" if error.status is None else f": {error}"
        return Finding(
            check="token", ok=False, found=f"not checked{reason}", advice="Solve the server's problem first."
        )
    return Finding(check="token", ok=True, found=f"the server accepts the token from {source}")


def _reporting_token(token: str, source: str) -> Finding:
    """Check whether a token that may not read may report."""
    # Watching a run that does not exist changes nothing, and permissions are checked first.
    request = pb.WatchRequest(run_id="none", incarnation="none")
    metadata = (("authorization", f"Bearer {token}"),)
    try:
        with open_channel(environment.grpc_target()) as channel:
            next(iter(TelemetryStub(channel).Watch(request, timeout=_CONNECT_SECONDS, metadata=metadata)), None)
    except ConfigurationError:
        code = grpc.StatusCode.UNAVAILABLE
    except grpc.RpcError as error:
        # Errors of a call are RpcError and Call at once; the type stubs can't say so.
        code = error.code() if isinstance(error, grpc.Call) else grpc.StatusCode.UNKNOWN
    else:
        code = grpc.StatusCode.OK
    if code in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED):
        return Finding(
            check="token",
            ok=False,
            found=f"the token from {source} may neither read nor report",
            advice="Check whether ISENTROPE_URL and ISENTROPE_GRPC name the same server.",
        )
    if code in (grpc.StatusCode.OK, grpc.StatusCode.NOT_FOUND):
        return Finding(
            check="token",
            ok=True,
            found=f"the token from {source} may only report; `isentrope runs` and `control` need another scope",
        )
    return Finding(
        check="token",
        ok=False,
        found=f"the token from {source} may not read; whether it may report was not checked",
        advice="Solve the ingest's problem first.",
    )


def _ingest() -> Finding:
    target = environment.grpc_target()
    try:
        if environment.is_encrypted(target):
            _check_tls(environment.host_and_port(target))
        with open_channel(target) as channel:
            grpc.channel_ready_future(channel).result(timeout=_CONNECT_SECONDS)
    except ConfigurationError as error:
        return Finding(check="ingest", ok=False, found=f"{target} was not checked", advice=str(error))
    except ssl.SSLError as error:
        return Finding(
            check="ingest",
            ok=False,
            found=f"the TLS handshake with {target} failed ({error})",
            advice=advice_on(str(error)) or "Check the server's certificate and ISENTROPE_CA.",
        )
    except (grpc.FutureTimeoutError, OSError):
        return Finding(
            check="ingest",
            ok=False,
            found=f"no gRPC server answers at {target}",
            advice="Start one with `isentrope up`, or set ISENTROPE_GRPC to its host:port"
            + ("." if environment.is_encrypted(target) else ", behind https:// if it has TLS."),
        )
    return Finding(check="ingest", ok=True, found=f"{target} answers")


def _check_tls(address: str) -> None:
    """Make a TLS handshake without gRPC, whose errors do not name the reason.

    Raises:
        SSLError: with the reason.
        OSError: nothing listens there.
    """
    at = urlsplit(f"//{address}")
    context = Credentials.from_environment().ssl_context()
    context.set_alpn_protocols(["h2"])
    with (
        socket.create_connection((at.hostname or "", at.port or 443), timeout=_CONNECT_SECONDS) as plain,
        context.wrap_socket(plain, server_hostname=at.hostname) as encrypted,
    ):
        # A gRPC server sends first. One that requires a client certificate closes the connection instead.
        encrypted.settimeout(_CONNECT_SECONDS)
        with contextlib.suppress(ConnectionError):
            if encrypted.recv(1):
                return
    raise ssl.SSLError("closed after the handshake: certificate required")


def as_lines(findings: list[Finding]) -> list[str]:
    """The findings for a terminal."""
    return [
        printable(
            f"{'ok' if finding.ok else 'problem':<8} {finding.check:<9} {finding.found}"
            + (f"{'' if finding.found.endswith('.') else '.'} {finding.advice}" if finding.advice else "")
        )
        for finding in findings
    ]


def as_json(findings: list[Finding]) -> str:
    """The findings for a program."""
    return json.dumps(
        [{"check": f.check, "ok": f.ok, "found": f.found, "advice": f.advice} for f in findings], indent=2
    )
