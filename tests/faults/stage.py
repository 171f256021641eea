"""A server and training processes in a folder of their own, for one fault to be done to them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self, TypeVar

import httpx

from isentrope.transport.files import is_held_by_another_process
from isentrope.transport.segments import list_segments
from isentrope.transport.spool_folder import ShipperStatus, SpoolFolder, find_spool_folders
from tests.faults.ledger import Ledger
from tests.faults.oracle import Allowance, Oracle, OracleError, Verdict
from tests.faults.reporting_process import Plan
from tests.system.running_server import RunningServer, patience, wait_for

REPOSITORY = Path(__file__).parents[2]
VISIBLE_SECONDS = 10.0
"""How soon after a fault a person sees a fresh report."""
DELIVERED_SECONDS = 90.0
ENDLESS = 100_000
"""Steps: far more than any fault lasts."""

_T = TypeVar("_T")


class Trainer:
    """One reporting process, its ledger outside its home, and its spool."""

    def __init__(
        self,
        plan: Plan,
        home: Path,
        environment: Mapping[str, str],
        expected_exit: int = 0,
    ) -> None:
        """
        Args:
            expected_exit: what `finish` takes for a good end.
        """
        self.plan = plan
        self.home = home
        self._expected_exit = expected_exit
        self._errors = home.with_suffix(".errors")
        command = [sys.executable, "-m", "tests.faults.reporting_process", plan.to_argument()]
        with self._errors.open("ab") as errors:
            self.process = subprocess.Popen(
                command,
                cwd=REPOSITORY,
                env={**environment, "ISENTROPE_HOME": str(home)},
                stdin=subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
            )

    @property
    def ledger(self) -> Ledger:
        return Ledger.read(Path(self.plan.ledger)) or Ledger(
            run_id=self.plan.run_id, incarnation=self.plan.incarnation, rank=self.plan.rank
        )

    @property
    def folder(self) -> SpoolFolder | None:
        """The spool; None: not made yet, or delivered and gone."""
        wanted = (self.plan.incarnation, self.plan.rank)
        for folder in find_spool_folders(self.home):
            with contextlib.suppress(OSError):
                run = folder.run()
                if (run.incarnation, run.rank) == wanted:
                    return folder
        return None

    @property
    def shipper_pid(self) -> int | None:
        """The running shipper's process id, as it reports it."""
        folder = self.folder
        status = None if folder is None else ShipperStatus.read(folder.status)
        if folder is None or status is None or not is_held_by_another_process(folder.shipper_lock):
            return None
        return status.pid

    def wait_until_accepted(self, step: int, seconds: float = 60.0) -> None:
        wait_for(
            lambda: (self.ledger.accepted_steps or [-1])[-1] >= step,
            seconds,
            f"step {step} was accepted",
        )

    def wait_until_acknowledged(self, seconds: float = 30.0) -> None:
        """Until the server has taken something: a fault before that would prove less."""

        def acknowledged() -> bool:
            folder = self.folder
            status = None if folder is None else ShipperStatus.read(folder.status)
            return status is not None and status.acked_through > FIRST_ACKNOWLEDGED

        wait_for(acknowledged, seconds, "the server acknowledged the first reports")

    def stop(self) -> None:
        """Let the process end by itself after the step it is at."""
        Path(self.plan.stop_file).touch()

    def finish(self, seconds: float = 120.0) -> None:
        """
        Raises:
            AssertionError: it did not end as it should.
        """
        code = self.process.wait(timeout=seconds * patience())
        assert code == self._expected_exit, (
            f"the training process ended with {code}: {self._errors.read_text()[-2000:]}"
        )

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait()

    @property
    def delivered(self) -> bool:
        """Whether nothing is left of the spool but what was damaged, and no process works on it."""
        folder = self.folder
        if folder is None:
            return not self._anything_left()
        return not list_segments(folder.path) and not is_held_by_another_process(
            folder.shipper_lock
        )

    def _anything_left(self) -> bool:
        # A walk passes over folders that are removed meanwhile.
        return any(
            "trainer.lock" in files and list_segments(Path(folder))
            for folder, _, files in os.walk(self.home)
        )


FIRST_ACKNOWLEDGED = 3


class Stage:
    """The folder, the server, the trainers of one fault; ends them all at its end."""

    def __init__(self, folder: Path, *, short: bool, server: RunningServer | None = None) -> None:
        """
        Args:
            short: fewer repetitions and shorter waits.
            server: one that other tests use as well; None: one of the stage's own.
        """
        self.folder = folder
        self.short = short
        self._stack = ExitStack()
        self.trainers: list[Trainer] = []
        self._owns_server = server is None
        self.server = server or RunningServer(folder / "server")
        self._api: httpx.Client | None = None
        self._late: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for trainer in self.trainers:
            trainer.kill()
            self._end_shipper(trainer)
        self._stack.close()

    def enter(self, context: contextlib.AbstractContextManager[_T]) -> _T:
        """Keep something open until the end of the fault."""
        return self._stack.enter_context(context)

    def start_server(self) -> None:
        """Start the server, unless it is shared."""
        if self._owns_server:
            self.enter(self.server)

    @property
    def api(self) -> httpx.Client:
        if self._api is None:
            self._api = self.api_of(self.server)
        return self._api

    def api_of(self, server: RunningServer) -> httpx.Client:
        """A client of a server's REST API, open until the end of the fault."""
        headers = {"Authorization": f"Bearer {server.token}"}
        return self.enter(
            httpx.Client(base_url=f"{server.url}/api/v1", headers=headers, timeout=10)
        )

    @property
    def oracle(self) -> Oracle:
        return Oracle(self.server.database_url, self.api)

    def plan(self, run_id: str, **more: Any) -> Plan:
        name = f"{run_id}-{more.get('incarnation', 'first')}-{more.get('rank', 0)}"
        ledger = str(self.folder / f"{name}.ledger")
        # Segments of a few records: nearly every acknowledgement deletes one, and a wrong one is
        # not made good.
        more.setdefault("limits", {"segment_bytes": 4_000})
        return Plan(
            run_id=run_id, ledger=ledger, stop_file=str(self.folder / f"{run_id}.stop"), **more
        )

    def start_trainer(
        self,
        plan: Plan,
        *,
        home: Path | None = None,
        expected_exit: int = 0,
        environment: Mapping[str, str] | None = None,
    ) -> Trainer:
        """Start one reporting process against this stage's server.

        Args:
            home: its ISENTROPE_HOME; default: one of its run's own.
            expected_exit: as for `Trainer`.
            environment: variables besides.
        """
        home = home or self.folder / f"home-{plan.run_id}"
        # What is acknowledged too early must not be made good by what is kept.
        given = (
            self.server.environment
            | {"ISENTROPE_DRAIN_SECONDS": "60", "ISENTROPE_KEEP_DELIVERED": "0"}
            | dict(environment or {})
        )
        trainer = Trainer(plan, home, given, expected_exit)
        self.trainers.append(trainer)
        return trainer

    def running_trainer(
        self,
        run_id: str,
        *,
        grpc_target: str | None = None,
        home: Path | None = None,
        expected_exit: int = 0,
        environment: Mapping[str, str] | None = None,
        **plan: Any,
    ) -> Trainer:
        """Start a reporting process that goes on until it is stopped, and wait for the first
        acknowledgement.

        Args:
            run_id: Of its run.
            grpc_target: Where it sends its reports; default: this stage's server.
            home, expected_exit, environment: As for `start_trainer`.
            plan: Fields of its `Plan`.
        """
        given = dict(environment or {}) | (
            {} if grpc_target is None else {"ISENTROPE_GRPC": grpc_target}
        )
        trainer = self.start_trainer(
            self.plan(run_id, steps=ENDLESS, **plan),
            home=home,
            expected_exit=expected_exit,
            environment=given,
        )
        trainer.wait_until_acknowledged()
        return trainer

    def expect_a_fresh_report(
        self, trainer: Trainer, *, api: httpx.Client | None = None, seconds: float = VISIBLE_SECONDS
    ) -> None:
        """A report accepted from now on is readable soon; `judge` raises where it is not.

        Args:
            trainer: The one that goes on reporting.
            api: Of the server to read it from; default: the stage's own.
            seconds: How soon, on a quiet machine.
        """
        oracle = Oracle(self.server.database_url, api or self.api)
        started = time.monotonic()
        known = len(trainer.ledger.accepted_steps)
        try:
            wait_for(
                lambda: len(trainer.ledger.accepted_steps) > known,
                seconds,
                "the trainer reported another step",
            )
            step = trainer.ledger.accepted_steps[-1]
            left = seconds - (time.monotonic() - started) / patience()
            wait_for(
                lambda: oracle.has_report(trainer.plan.run_id, step),
                left,
                f"step {step} was readable",
            )
        except AssertionError as late:
            self._late.append(str(late))

    def judge(
        self, *trainers: Trainer, allowance: Allowance | None = None, finish: bool = True
    ) -> Verdict:
        """Let the trainers end, their spools drain, and ask the oracle.

        Raises:
            AssertionError: a promise was not kept.
        """
        trainers = trainers or tuple(self.trainers)
        for trainer in trainers:
            if finish:
                trainer.stop()
                trainer.finish()
        for trainer in trainers:
            self.expect_delivery(trainer)
        return self.verdict_on([trainer.ledger for trainer in trainers], allowance)

    def expect_delivery(self, trainer: Trainer) -> None:
        """All of the trainer's spool goes up. Where it does not, `verdict_on` raises."""
        try:
            wait_for(lambda: trainer.delivered, DELIVERED_SECONDS, "the spool was delivered")
        except AssertionError as late:
            self._late.append(str(late))

    def verdict_on(
        self,
        ledgers: Sequence[Ledger],
        allowance: Allowance | None = None,
        allowances: Mapping[str, Allowance] | None = None,
    ) -> Verdict:
        """The oracle's, with what came too late.

        Raises:
            OracleError: a promise was not kept.
        """
        try:
            verdict = self.oracle.judge(ledgers, allowance, allowances)
        except OracleError as broken:
            raise OracleError("\n  ".join([str(broken), *self._late])) from None
        verdict.broken += self._late
        verdict.hold()
        return verdict

    def _end_shipper(self, trainer: Trainer) -> None:
        pid = trainer.shipper_pid
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def stage(folder: Path, *, short: bool, server: RunningServer | None = None) -> Iterator[Stage]:
    """A stage with a server that runs."""
    folder.mkdir(parents=True, exist_ok=True)
    with Stage(folder, short=short, server=server) as a_stage:
        a_stage.start_server()
        yield a_stage
