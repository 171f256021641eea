"""Two real servers on one real PostgreSQL, a training process behind a proxy: a killed replica loses nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest

from isentrope.client.client import Client
from isentrope_server.store.reports.blocks import unpack_arrays
from tests.server.postgresql import PostgreSQL
from tests.system.running_server import RunningServer
from tests.system.switching_proxy import SwitchingProxy
from tests.system.trainer import Trainer, wait_until

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def postgresql_url() -> Iterator[str]:
    with PostgreSQL() as running, running.empty_database() as url:
        yield url


@pytest.fixture(scope="module")
def replicas(
    tmp_path_factory: pytest.TempPathFactory, postgresql_url: str
) -> Iterator[tuple[RunningServer, RunningServer]]:
    """Two servers with homes of their own on one database. The last test kills the first of them."""
    homes = tmp_path_factory.mktemp("replicas")
    with ExitStack() as stack:
        servers = []
        for name in ("first", "second"):
            (homes / name).mkdir()
            server = RunningServer(homes / name / "home")
            server.more_environment = {"ISENTROPE_DATABASE_URL": postgresql_url}
            servers.append(stack.enter_context(server))
        yield servers[0], servers[1]


def has_steps(client: Client, run_id: str) -> bool:
    return any(run.id == run_id and run.step is not None for run in client.runs())


def stored_steps(url: str, run_id: str) -> list[int]:
    """The step of every stored report, repeats included, straight from the database: what is packed, and what is not."""
    of_run = "JOIN runs ON runs.key = run_key WHERE runs.id = %s"
    with psycopg.connect(url) as database:
        # One state of the database: what is packed between two looks would be seen twice.
        database.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        rows = database.execute(f"SELECT records.step FROM records {of_run} AND kind = 'step_report'", (run_id,))
        steps = [step for (step,) in rows]
        for first, count, packed in database.execute(
            f"SELECT first_step, reports, packed_steps FROM blocks {of_run}", (run_id,)
        ):
            steps += range(first, first + count) if packed is None else unpack_arrays(packed)["numbers"].tolist()
    return sorted(steps)


def test_a_frozen_replica_does_not_hold_up_the_reports(
    replicas: tuple[RunningServer, RunningServer], tmp_path: Path
) -> None:
    first, second = replicas
    with (
        Client(second.url, second.token) as client,
        Trainer(tmp_path / "trainer", second.environment, "unmoved", steps=10_000, step_seconds=0.1) as trainer,
    ):
        trainer.run_to(5)
        wait_until(lambda: has_steps(client, "unmoved"), 30)
        first.freeze()
        try:
            frozen_at = client.run("unmoved").step or 0
            started = time.monotonic()
            wait_until(lambda: (client.run("unmoved").step or 0) > frozen_at + 5, 30)
            assert time.monotonic() - started < 15, "a lock the frozen server holds ends with its session, after 10 s"
        finally:
            first.thaw()
        trainer.process.kill()
        trainer.process.wait()
        trainer.wait_until_delivered()


def test_a_killed_replica_loses_nothing_and_control_goes_on(
    replicas: tuple[RunningServer, RunningServer], postgresql_url: str, tmp_path: Path
) -> None:
    first, second = replicas
    with (
        SwitchingProxy(first.grpc_target) as proxy,
        Client(second.url, second.token) as client,
        Trainer(
            tmp_path / "trainer",
            second.environment | {"ISENTROPE_GRPC": proxy.address, "ISENTROPE_DRAIN_SECONDS": "10"},
            "replicated",
            steps=160,
            step_seconds=0.1,
        ) as trainer,
    ):
        # The probe streams to the first replica, people look at the second.
        trainer.run_to(1)
        wait_until(lambda: has_steps(client, "replicated"), 30)
        item = client.set_control("replicated", method="clip_v", mu_low=1, mu_high=1, reason="before", wait=True)
        assert item.state == "APPLIED"

        proxy.target = second.grpc_target
        first.kill()
        killed_at = trainer.last_step
        trainer.run_to(killed_at + 10)
        newest = client.run("replicated").step or 0
        wait_until(lambda: (client.run("replicated").step or 0) > newest, 30)
        item = client.set_control("replicated", method="clip_v", mu_low=2, mu_high=2, reason="after", wait=True)
        assert (item.version, item.state) == (2, "APPLIED")

        measured = trainer.finish()
        trainer.wait_until_delivered()
        assert measured["dropped"] == 0
        assert stored_steps(postgresql_url, "replicated") == list(range(160))
        wait_until(lambda: client.run("replicated").status == "finished")
