"""The whole way with real processes: trainer, shipper, server. Nothing lost, nothing doubled, the trainer never waits."""

from __future__ import annotations

import os
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from isentrope.cli.frame import main
from isentrope.client.client import Client
from isentrope.transport.spool_folder import ShipperState
from isentrope_server.store.reports.blocks import unpack_arrays
from tests.system.running_server import RunningServer
from tests.system.trainer import Trainer, wait_until

HELD_UP_SECONDS = 5.0
"""Far above what a put and a close cost, however crowded the machine: one that waits for the server waits until the test
has brought it back, which it does only later."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    """A server of the test's own, to be killed and frozen."""
    with RunningServer(tmp_path / "server") as running:
        yield running


@pytest.fixture(scope="module")
def steady_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server for the tests that leave it in peace."""
    with RunningServer(tmp_path_factory.mktemp("steady") / "server") as running:
        yield running


def trainer(
    server: RunningServer, run_id: str, *, steps: int = 100, step_seconds: float = 0.02, **more: str
) -> Trainer:
    environment = server.environment | {"ISENTROPE_DRAIN_SECONDS": "60"} | more
    return Trainer(trainer_home(server, run_id), environment, run_id, steps=steps, step_seconds=step_seconds)


def trainer_home(server: RunningServer, run_id: str) -> Path:
    return server.home.parent / f"trainer-{run_id}"


def stored_steps(server: RunningServer, run_id: str) -> list[int]:
    """The step of every stored report, repeats included, straight from the database: what is packed, and what is not."""
    of_run = "JOIN runs ON runs.key = run_key WHERE runs.id = ?"
    with closing(_database(server)) as database:
        # One state of the database: what is packed between two looks would be seen twice.
        database.execute("BEGIN")
        rows = database.execute(f"SELECT records.step FROM records {of_run} AND kind = 'step_report'", (run_id,))
        steps = [step for (step,) in rows]
        for first, count, packed in database.execute(
            f"SELECT first_step, reports, packed_steps FROM blocks {of_run}", (run_id,)
        ):
            steps += range(first, first + count) if packed is None else unpack_arrays(packed)["numbers"].tolist()
    return sorted(steps)


def stored_gaps(server: RunningServer) -> list[tuple[Any, ...]]:
    with closing(_database(server)) as database:
        return database.execute("SELECT first_seq, last_seq, reason FROM gaps").fetchall()


def _database(server: RunningServer) -> sqlite3.Connection:
    return sqlite3.connect(f"file:{server.home / 'isentrope.db'}?mode=ro", uri=True, isolation_level=None)


def assert_never_waited(measured: dict[str, Any]) -> None:
    for what in ("longest_put_seconds", "longest_boundary_seconds", "close_seconds"):
        assert measured[what] < HELD_UP_SECONDS, what
    assert measured["dropped"] == 0


def test_every_report_is_stored_once_and_the_training_process_neither_waits_nor_opens_a_socket(
    steady_server: RunningServer,
) -> None:
    with trainer(steady_server, "calm") as a_trainer:
        a_trainer.run_to(10)
        wait_until(lambda: a_trainer.status().state is ShipperState.DELIVERING)
        measured = a_trainer.finish()
        assert (measured["imported"], measured["sockets"]) == ([], [])
        a_trainer.wait_until_delivered()
        assert_never_waited(measured)
        assert stored_steps(steady_server, "calm") == list(range(100))
        with Client(steady_server.url, steady_server.token) as client:
            run = client.run("calm")
            assert (run.status, run.step) == ("finished", 99)
            assert client.metrics("calm", "entropy/mean")["entropy/mean"] == [float(step) for step in range(100)]
        assert not (trainer_home(steady_server, "calm") / "spool" / "calm").exists(), "a delivered spool leaves nothing"


@pytest.mark.slow
def test_a_server_killed_in_mid_run_loses_and_doubles_nothing_and_nobody_waits(server: RunningServer) -> None:
    with trainer(server, "killed", steps=400, step_seconds=0.01) as a_trainer:
        for step in (40, 120, 200):
            a_trainer.run_to(step)
            wait_until(lambda: a_trainer.status().acked_through > 1)
            server.kill()
            a_trainer.run_to(step + 40)
            server.start()
        measured = a_trainer.finish()
        a_trainer.wait_until_delivered()
        print(f"\n3 kill -9: {measured}, stored {len(stored_steps(server, 'killed'))} of 400")
        assert_never_waited(measured)
        assert stored_steps(server, "killed") == list(range(400))
        assert stored_gaps(server) == []


@pytest.mark.slow
def test_a_frozen_server_keeps_nobody_waiting(server: RunningServer) -> None:
    with trainer(server, "frozen", steps=300, step_seconds=0.02) as a_trainer:
        a_trainer.run_to(30)
        wait_until(lambda: a_trainer.status().acked_through > 1)
        server.freeze()
        try:
            measured = a_trainer.finish()
            acked_while_frozen = a_trainer.status().acked_through
        finally:
            server.thaw()
        a_trainer.wait_until_delivered()
        print(f"\nfrozen server: {measured}, {acked_while_frozen} of 302 records acknowledged at the trainer's end")
        assert acked_while_frozen < 290, "the server was not frozen: this shows nothing"
        assert_never_waited(measured)
        assert stored_steps(server, "frozen") == list(range(300))


@pytest.mark.slow
def test_a_server_that_is_not_there_yet_gets_the_whole_run(server: RunningServer) -> None:
    server.kill()
    with trainer(server, "early") as a_trainer:
        assert_never_waited(a_trainer.finish())
        server.start()
        a_trainer.wait_until_delivered()
        assert stored_steps(server, "early") == list(range(100))


@pytest.mark.slow
def test_a_killed_trainers_reports_are_delivered_without_it(steady_server: RunningServer) -> None:
    with trainer(steady_server, "murdered", steps=10_000, step_seconds=0.02) as a_trainer:
        a_trainer.run_to(100)
        os.kill(a_trainer.process.pid, signal.SIGKILL)
        a_trainer.process.wait()
        a_trainer.wait_until_delivered()
        steps = stored_steps(steady_server, "murdered")
        assert steps == list(range(len(steps)))
        # What was put within the writer's last round, a twentieth of a second, may be gone; nothing older.
        assert len(steps) >= 95
        print(f"\nkilled trainer: stored {len(steps)} of at least 101 steps")


@pytest.mark.slow
def test_a_killed_shipper_comes_back(steady_server: RunningServer) -> None:
    with trainer(steady_server, "unshipped", steps=200, step_seconds=0.02) as a_trainer:
        a_trainer.run_to(20)
        wait_until(lambda: a_trainer.status().acked_through > 1)
        first = a_trainer.status().pid
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: a_trainer.status().pid != first)
        measured = a_trainer.finish()
        a_trainer.wait_until_delivered()
        assert_never_waited(measured)
        assert stored_steps(steady_server, "unshipped") == list(range(200))


@pytest.mark.slow
def test_a_shipper_killed_just_before_the_end_of_training_is_replaced(steady_server: RunningServer) -> None:
    with trainer(steady_server, "last-moment", steps=20, step_seconds=0.1) as a_trainer:
        wait_until(lambda: a_trainer.status().acked_through > 1)
        # The pause before a restart, a second, is longer than what is left of the training.
        a_trainer.run_to(15)
        os.kill(a_trainer.status().pid, signal.SIGKILL)
        measured = a_trainer.finish()
        a_trainer.wait_until_delivered()
        assert_never_waited(measured)
        assert stored_steps(steady_server, "last-moment") == list(range(20))


@pytest.mark.slow
def test_a_wrong_token_holds_the_data_until_the_token_is_right(steady_server: RunningServer) -> None:
    home = trainer_home(steady_server, "refused")
    home.mkdir()
    (home / "owner-token").write_text("wrong")
    with trainer(steady_server, "refused", ISENTROPE_TOKEN="") as a_trainer:
        assert_never_waited(a_trainer.finish())
        wait_until(lambda: a_trainer.status().state is ShipperState.HOLDING)
        assert stored_steps(steady_server, "refused") == []
        assert "UNAUTHENTICATED" in a_trainer.status().error
        (home / "owner-token").write_text(steady_server.token)
        a_trainer.wait_until_delivered()
        assert stored_steps(steady_server, "refused") == list(range(100))


@pytest.mark.slow
def test_sync_takes_over_from_a_shipper_whose_token_is_wrong(steady_server: RunningServer) -> None:
    with trainer(steady_server, "mistaken", ISENTROPE_TOKEN="wrong") as a_trainer:
        a_trainer.finish()
        wait_until(lambda: a_trainer.status().state is ShipperState.HOLDING)
        result = CliRunner().invoke(main, ["sync", str(a_trainer.home)], env=steady_server.environment)
        assert (result.exit_code, result.stdout.split()[0]) == (0, "delivered")
        assert stored_steps(steady_server, "mistaken") == list(range(100))
