"""What people and their machines do around a run: copies, rotated tokens, double starts, readers
that stop, other versions."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx

from isentrope.transport.spool_folder import ShipperState, ShipperStatus
from tests.faults.network import TcpProxy
from tests.faults.oracle import Verdict
from tests.faults.stage import ENDLESS, REPOSITORY, Stage, Trainer
from tests.system.running_server import wait_for

SHARED = (
    "probe/isentrope_wire/reports.py",
    "server/isentrope_server/store/migrations/versions",
)
"""Where the numbers of protocol and tables stand. Versions between which neither changed must work
together, in both directions."""
PACKAGES = ("probe", "server", "dashboard", "trainer")
BOTH_LIVE_SECONDS = 60.0
UNREAD = 10
UNREAD_MEBIBYTES = 200
SILENT = 2_100
SILENT_SECONDS = 30.0


def torn_copy_synced(stage: Stage) -> Verdict:
    """A living spool is copied in the middle of a record and the copy delivered: the original
    follows, without a gap."""
    proxy = stage.enter(TcpProxy(stage.server.grpc_target))
    trainer = stage.running_trainer("copied", grpc_target=proxy.address)
    proxy.black_hole = True
    trainer.wait_until_accepted(trainer.ledger.accepted_steps[-1] + 100)
    copy = stage.folder / "copy"
    shutil.copytree(
        stage.folder / "home-copied" / "spool", copy, ignore=shutil.ignore_patterns(".*", "reserve")
    )
    last = max(copy.rglob("*.seg"))
    last.write_bytes(last.read_bytes()[:-20])
    command = [
        sys.executable,
        "-m",
        "isentrope",
        "sync",
        str(copy),
        "--grpc",
        stage.server.grpc_target,
    ]
    synced = subprocess.run(
        command, env=stage.server.environment, capture_output=True, text=True, check=False
    )
    proxy.black_hole = False
    stage.expect_a_fresh_report(trainer)
    verdict = stage.judge(trainer)
    verdict.require(
        (synced.returncode, "--final" in synced.stderr) == (1, True), f"sync said: {synced.stderr}"
    )
    verdict.hold()
    return verdict


def token_rotated(stage: Stage) -> Verdict:
    """The token of a living run is revoked; once its file has another one, what waited is
    delivered."""
    file = stage.folder / "token"
    old, new = (stage.api.post("/access-tokens", json={"scope": "ingest"}).json() for _ in range(2))
    file.write_text(old["token"])
    trainer = stage.running_trainer("rotated", environment={"ISENTROPE_TOKEN_FILE": str(file)})
    assert stage.api.delete(f"/access-tokens/{old['id']}").is_success
    wait_for(lambda: _state(trainer) is ShipperState.HOLDING, 20.0, "the shipper holds")
    file.write_text(new["token"])
    stage.expect_a_fresh_report(trainer)
    return stage.judge(trainer)


def token_revoked(stage: Stage) -> Verdict:
    """The token of a living run is revoked for good: an alert and the doctor say so, and once it
    has ended, `sync` with another one brings all at once."""
    old, new = (stage.api.post("/access-tokens", json={"scope": "ingest"}).json() for _ in range(2))
    trainer = stage.running_trainer("revoked", environment={"ISENTROPE_TOKEN": old["token"]})
    assert stage.api.delete(f"/access-tokens/{old['id']}").is_success
    wait_for(lambda: _state(trainer) is ShipperState.HOLDING, 20.0, "the shipper holds")

    def alerted() -> bool:
        alerts = stage.api.get("/runs/revoked/alerts").json()["items"]
        return any("was revoked" in alert["message"] for alert in alerts)

    wait_for(alerted, 20.0, "an alert names the revoked token")
    environment = stage.server.environment | {
        "ISENTROPE_HOME": str(stage.folder / "home-revoked"),
        "ISENTROPE_TOKEN": new["token"],
    }

    def said_by(*command: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "isentrope", *command],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        return done.stdout + done.stderr

    doctor = said_by("doctor")
    trainer.stop()
    trainer.finish()
    synced = said_by("sync")
    verdict = stage.judge(trainer, finish=False)
    verdict.require("UNAUTHENTICATED" in doctor, f"the doctor said: {doctor}")
    verdict.require("stored" in synced, f"sync said: {synced}")
    verdict.hold()
    return verdict


def two_trainers(stage: Stage) -> Verdict:
    """A queue starts a run twice: all reports of both are stored, and an alert names both."""
    first = stage.running_trainer("double")
    again = stage.plan("double", incarnation="second", steps=ENDLESS)
    second = stage.start_trainer(again, home=stage.folder / "home-again")

    def warned() -> bool:
        alerts = stage.api.get("/runs/double/alerts").json()["items"]
        return any(
            alert["kind"] == "two_trainers"
            and all(name in alert["message"] for name in ("first (", "second ("))
            for alert in alerts
        )

    wait_for(warned, BOTH_LIVE_SECONDS, "an alert names both")
    return stage.judge(first, second)


def unread_exports(stage: Stage) -> Verdict:
    """Ten readers begin an export and read nothing: the server's memory stays small, and reports
    are stored."""
    wide = stage.start_trainer(
        stage.plan("wide", steps=60, step_seconds=0.0, scalars=4_000, histograms=0, tokens=0)
    )
    wide.finish()
    trainer = stage.running_trainer("beside")
    stage.expect_delivery(wide)
    before = mebibytes(stage.server.pid)
    request = (
        "GET /api/v1/runs/wide/export?format=jsonl HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization:"
        f" Bearer {stage.server.token}\r\n\r\n"
    )
    for connection in [stage.enter(connected(stage)) for _ in range(UNREAD)]:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.sendall(request.encode())
    most = 0.0
    for _ in range(10 if stage.short else 60):
        time.sleep(0.5)
        most = max(most, mebibytes(stage.server.pid) - before)
    stage.expect_a_fresh_report(trainer)
    verdict = stage.judge(trainer)
    verdict.require(most < UNREAD_MEBIBYTES, f"the server took {most:.0f} MiB more")
    verdict.hold()
    return verdict


def silent_connections(stage: Stage) -> Verdict:
    """More connections than the server takes, on which nothing is sent: it is alive meanwhile, and
    serves again soon."""
    trainer = stage.running_trainer("spoken-to")
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with contextlib.ExitStack() as silent:
        for _ in range(SILENT):
            silent.enter_context(connected(stage))
        alive = httpx.get(f"{stage.server.url}/healthz", timeout=10.0)
        stage.expect_a_fresh_report(trainer, seconds=SILENT_SECONDS)
    verdict = stage.judge(trainer)
    verdict.require(alive.is_success, "the server was not alive")
    verdict.hold()
    return verdict


def oldest_version() -> str:
    """The commit since which protocol and tables have their numbers; empty: no clone with a
    history."""
    changed = "^(PROTOCOL_VERSION|revision) = "
    command = ["git", "log", "-1", "--format=%H", f"-G{changed}", "--", *SHARED]
    return subprocess.run(
        command, cwd=REPOSITORY, capture_output=True, text=True, check=False
    ).stdout.strip()


def version_skew(stage: Stage) -> Verdict:
    """A trainer of the oldest version with these messages reports to this server, one of this to
    the oldest's server, which is upgraded."""
    earlier = stage.enter(_oldest_version(stage.folder / "before"))
    older = stage.running_trainer("of-before", environment=earlier)
    stage.expect_a_fresh_report(older)
    verdict = stage.judge(older)
    stage.server.kill()
    shutil.rmtree(stage.server.home)
    stage.server.more_environment = earlier
    stage.server.start()
    newer = stage.running_trainer("of-this")
    stage.expect_a_fresh_report(newer)
    stage.server.kill()
    stage.server.more_environment = {}
    stage.server.start()
    stage.expect_a_fresh_report(newer)
    verdict += stage.judge(newer)
    return verdict


@contextlib.contextmanager
def _oldest_version(folder: Path) -> Iterator[dict[str, str]]:
    """The environment in which processes run it."""
    subprocess.run(
        ["git", "worktree", "add", "--detach", str(folder), oldest_version()],
        cwd=REPOSITORY,
        check=True,
        capture_output=True,
    )
    try:
        yield {"PYTHONPATH": os.pathsep.join(str(folder / package) for package in PACKAGES)}
    finally:
        subprocess.run(
            ["git", "worktree", "remove", "--force", str(folder)], cwd=REPOSITORY, check=False
        )


def _state(trainer: Trainer) -> ShipperState | None:
    folder = trainer.folder
    status = None if folder is None else ShipperStatus.read(folder.status)
    return None if status is None else status.state


def connected(stage: Stage) -> socket.socket:
    return socket.create_connection(("127.0.0.1", stage.server.http_port), timeout=10)


def mebibytes(pid: int) -> float:
    """Memory of a process's own; without the database's file, which is mapped."""
    _, resident, of_files, *_ = Path(f"/proc/{pid}/statm").read_text().split()
    return (int(resident) - int(of_files)) * resource.getpagesize() / 2**20
