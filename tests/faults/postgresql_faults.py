"""Servers that share a PostgreSQL: one of them is killed, or the database goes down as in a
crash."""

from __future__ import annotations

import random
import signal
import time

import httpx

from tests.faults.control_faults import ended, push_successfully
from tests.faults.network import TcpProxy
from tests.faults.oracle import Verdict
from tests.faults.stage import VISIBLE_SECONDS, Stage
from tests.server.postgresql import PostgreSQL
from tests.system.proxy import Proxy
from tests.system.running_server import RunningServer, wait_for

LOCK_SECONDS = 10.0
"""After which PostgreSQL ends the session of a server that does not answer."""


def replica_killed(stage: Stage) -> Verdict:
    """kill -9 of the replica that holds the stream, again and again: the other one takes over,
    controls included."""
    _share_a_postgresql(stage)
    second = _another_server(stage)
    proxy = stage.enter(TcpProxy(stage.server.grpc_target))
    trainer = stage.running_trainer("replicated", grpc_target=proxy.address, step_seconds=0.01)
    apis = {id(stage.server): stage.api, id(second): stage.api_of(second)}
    holding, other = stage.server, second
    for number in range(1 if stage.short else 5):
        time.sleep(random.uniform(0.2, 1.0))
        proxy.target = other.grpc_target
        holding.kill()
        stage.expect_a_fresh_report(trainer, api=apis[id(other)])
        holding.start()
        holding, other = other, holding
        # Pushed at the replica that has just come back; the stream is at the other one.
        api = apis[id(other)]
        ended(
            api,
            "replicated",
            push_successfully(api, "replicated", method="clip_v", mu_low=1 + number),
        )
    return stage.judge(trainer)


def replica_frozen(stage: Stage) -> Verdict:
    """SIGSTOP of one replica: a lock it holds ends with its session, after ten seconds, and the
    other one goes on."""
    _share_a_postgresql(stage)
    second = _another_server(stage)
    trainer = stage.running_trainer("unmoved", grpc_target=second.grpc_target, step_seconds=0.01)
    api = stage.api_of(second)
    stage.server.freeze()
    try:
        stage.expect_a_fresh_report(trainer, api=api, seconds=LOCK_SECONDS + VISIBLE_SECONDS)
    finally:
        stage.server.thaw()
    return stage.judge(trainer)


def replica_killed_behind_haproxy(stage: Stage) -> Verdict:
    """kill -9 of either replica in turns, behind a real HAProxy with the configuration of
    docker/."""
    return _killed_behind(stage, "haproxy")


def replica_killed_behind_nginx(stage: Stage) -> Verdict:
    """The same behind nginx."""
    return _killed_behind(stage, "nginx")


def _killed_behind(stage: Stage, program: str) -> Verdict:
    _share_a_postgresql(stage)
    second = _another_server(stage)
    proxy = stage.enter(Proxy(stage.folder, {"first": stage.server, "second": second}, program))
    trainer = stage.running_trainer("proxied", grpc_target=proxy.grpc_target, step_seconds=0.01)
    api = stage.enter(
        httpx.Client(base_url=f"{proxy.url}/api/v1", headers=stage.api.headers, timeout=10)
    )
    for number in range(1 if stage.short else 6):
        killed = (stage.server, second)[number % 2]
        time.sleep(random.uniform(0.2, 1.0))
        killed.kill()
        stage.expect_a_fresh_report(trainer, api=api)
        ended(api, "proxied", push_successfully(api, "proxied", method="clip_v", mu_low=1 + number))
        killed.start()
    return stage.judge(trainer)


def postgresql_stopped_immediately(stage: Stage) -> Verdict:
    """`pg_ctl stop -m immediate` at random moments: what was acknowledged is there when it is
    back."""
    database = _share_a_postgresql(stage)
    trainer = stage.running_trainer("crashed", step_seconds=0.01)
    for _ in range(2 if stage.short else 10):
        time.sleep(random.uniform(0.2, 1.5))
        database.stop(signal.SIGQUIT)
        time.sleep(random.uniform(0.0, 2.0))
        database.start()
        wait_for(lambda: stage.oracle.has_report("crashed", 1), 30.0, "the server answered again")
        push_successfully(stage.api, "crashed", method="clip_v", mu_low=1)
    stage.expect_a_fresh_report(trainer)
    return stage.judge(trainer)


def _share_a_postgresql(stage: Stage) -> PostgreSQL:
    """Move the stage's server to a PostgreSQL that keeps what it has committed."""
    database = stage.enter(PostgreSQL("fsync=on", "full_page_writes=on", "synchronous_commit=on"))
    url = stage.enter(database.empty_database())
    stage.server.kill()
    stage.server.more_environment = {"ISENTROPE_DATABASE_URL": url}
    stage.server.start()
    return database


def _another_server(stage: Stage) -> RunningServer:
    """A second one on the stage's database, with a home of its own."""
    (stage.folder / "second").mkdir()
    second = RunningServer(stage.folder / "second" / "home", token=stage.server.token)
    second.more_environment = dict(stage.server.more_environment)
    return stage.enter(second)
