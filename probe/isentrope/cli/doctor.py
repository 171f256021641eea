"""The checks of `isentrope doctor`: each reports what it found and, when that is a problem, what to
do."""

from __future__ import annotations

import os
import platform
import time
from dataclasses import dataclass
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version

import grpc

from isentrope.client.client import Client
from isentrope.client.connection import ApiError
from isentrope.client.credentials import advice_on
from isentrope.transport.connection import is_answer_of_server, open_channel
from isentrope.transport.segments import list_segments
from isentrope.transport.spool_folder import ShipperState, ShipperStatus, find_spool_folders
from isentrope_wire import environment
from isentrope_wire.answers import REFUSED, Restored
from isentrope_wire.errors import ConfigurationError
from isentrope_wire.numbers import printable
from isentrope_wire.v1 import telemetry_pb2 as pb
from isentrope_wire.v1.telemetry_pb2_grpc import TelemetryStub

_CONNECT_SECONDS = 10.0
_RUNS_LOOKED_AT = 20
_GAPS_LOOKED_AT = 50
_RECENT_SECONDS = 86_400.0
_TOKEN_ADVICE = (
    "Set ISENTROPE_TOKEN to a token of this server; `isentrope token create --scope control` there"
    " creates one."
)
_ANSWERS = frozenset(
    {
        grpc.StatusCode.OK,
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.PERMISSION_DENIED,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line of the diagnosis."""

    check: str
    ok: bool
    found: str
    advice: str = ""
    """What to do, where `found` does not say it; empty where there is no problem."""

    def __str__(self) -> str:
        advice = ""
        if self.advice:
            advice = f" {self.advice}"
        if advice and not self.found.endswith("."):
            advice = f".{advice}"
        return printable(
            f"{'ok' if self.ok else 'problem':<8} {self.check:<8} {self.found}{advice}"
        )


def examine() -> list[Finding]:
    """Make every check; none of them raises."""
    return [_version(), *_server_and_token(), _ingest(), _spool()]


def _version() -> Finding:
    try:
        torch = f"torch {version('torch')}"
    except PackageNotFoundError:
        torch = "no torch"
    found = f"isentrope {version('isentrope')}, Python {platform.python_version()}, {torch}"
    return Finding(check="version", ok=True, found=found)


def _server_and_token() -> list[Finding]:
    """The server, and where it answers the token."""
    source = environment.token_source()
    restored, refused = "", list[Finding]()
    try:
        with Client(timeout_seconds=_CONNECT_SECONDS) as client:
            me = client.me()
            restored, refused = _restored(me.restored), _refused(client)
        token = Finding(
            check="token", ok=True, found=f"the token from {source} has the scope {me.scope}"
        )
    except ConfigurationError as error:
        return [Finding(check="server", ok=False, found=f"not asked: {error}")]
    except ApiError as error:
        # By its code: a proxy refuses with the same status.
        if error.code == "forbidden":
            found = (
                f"the token from {source} may only report; `isentrope runs` and `control` need"
                " another scope"
            )
            token = Finding(check="token", ok=True, found=found)
        elif error.code == "unauthenticated":
            found = "no token is set"
            if environment.token():
                found = f"the server does not accept the token from {source}"
            token = Finding(check="token", ok=False, found=found, advice=_TOKEN_ADVICE)
        else:
            return [Finding(check="server", ok=False, found=str(error))]
    return [
        Finding(check="server", ok=True, found=f"{client.url} answers{restored}"),
        token,
        *refused,
    ]


def _restored(restored: Restored | None) -> str:
    if restored is None:
        return ""
    if restored.newest_report_at is None:
        until = "an empty one"
    else:
        until = f"one of {_moment(restored.newest_report_at)}"
    return (
        f"; its database was restored on {_moment(restored.at)} from a backup, {until}: tokens that"
        " were revoked after it are active again, and `isentrope sync` delivers once more what"
        " homes have kept"
    )


def _refused(client: Client) -> list[Finding]:
    """A problem for each of the newest runs with reports that the server could not use."""
    found = []
    for run in client.runs(limit=_RUNS_LOOKED_AT):
        gaps = [
            gap
            for gap in client.gaps(run.id, limit=_GAPS_LOOKED_AT)
            if gap.reason.startswith(REFUSED)
        ]
        if gaps and (run.last_report_at or run.created_at) > time.time() - _RECENT_SECONDS:
            what = f"run {run.id}: {len(gaps)} of its records could not be used. {gaps[0].reason}"
            found.append(
                Finding(check="records", ok=False, found=what, advice="Its tab Config lists them.")
            )
    return found


def _moment(at: float) -> str:
    return f"{datetime.fromtimestamp(at):%Y-%m-%d %H:%M}"


def _ingest() -> Finding:
    target = environment.grpc_target()
    # Watching a run that does not exist changes nothing.
    request = pb.WatchRequest(run_id="none", incarnation="none")
    try:
        with open_channel(target) as channel:
            next(iter(TelemetryStub(channel).Watch(request, timeout=_CONNECT_SECONDS)), None)
    except ConfigurationError as error:
        return Finding(check="ingest", ok=False, found=f"not asked: {error}")
    except grpc.RpcError as error:
        # Errors of a call are RpcError and Call at once; the type stubs can't say so.
        if isinstance(error, grpc.Call) and not (
            error.code() in _ANSWERS and is_answer_of_server(error)
        ):
            # gRPC's own words before it say the same at length.
            reason = (error.details() or error.code().name).rpartition("last error: ")[2]
            advice = advice_on(reason) or (
                "Start one with `isentrope up`, or set ISENTROPE_GRPC to its host:port, behind"
                " https:// if it has TLS."
            )
            found = f"no Isentrope server answers at {target} ({reason})"
            return Finding(check="ingest", ok=False, found=found, advice=advice)
    return Finding(check="ingest", ok=True, found=f"{target} answers")


def _spool() -> Finding:
    root = environment.home() / "spool"
    advice = (
        "Make it yours (chown, chmod u+rwX), or point ISENTROPE_HOME at a folder on a local disk"
        " that you own."
    )
    try:
        root.mkdir(parents=True, exist_ok=True)
        left = [folder for folder in find_spool_folders(root) if list_segments(folder.path)]
        meant = {folder.grpc_target() for folder in left}
    except OSError as error:
        found = f"{error.filename or root} can't be used ({error.strerror})"
        return Finding(check="spool", ok=False, found=found, advice=advice)
    if not os.access(root, os.W_OK):
        return Finding(check="spool", ok=False, found=f"{root} can't be written to", advice=advice)
    found = f"{root}: all reports are delivered"
    if left:
        found = (
            f"{root}: {len(left)} with undelivered reports; "
            "`isentrope sync` delivers those of trainings that ended"
        )
        others = sorted(meant - {environment.grpc_target()})
        if others:
            found += (
                f", to {', '.join(others)}; `isentrope sync --grpc HOST:PORT` to another server"
            )
    refused = [
        status
        for folder in left
        if (status := ShipperStatus.read(folder.status)) is not None
        and status.state is ShipperState.HOLDING
    ]
    if refused:
        found += f"; the server refuses {len(refused)} of them ({refused[0].summary})"
        advice = (
            "Give a running training a valid token in the file that its ISENTROPE_TOKEN_FILE names;"
            " of one that has ended, deliver with ISENTROPE_TOKEN=... isentrope sync."
        )
        return Finding(check="spool", ok=False, found=found, advice=advice)
    return Finding(check="spool", ok=True, found=found)
