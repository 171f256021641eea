"""A training process under faults: it reports each step, obeys its control, and keeps a ledger of
both.

    python -m tests.faults.reporting_process '{"run_id": ..., "ledger": ...}'

The argument is a `Plan`; ISENTROPE_* says where to report.

It ends as the plan says: by itself, by an exception, by a signal, or never.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from isentrope.control import ControlState
from isentrope.transport.spool import Mode, open_transport
from isentrope.transport.spool_writer import SpoolLimits  # type: ignore[attr-defined]  # version_skew runs earlier versions
from isentrope.transport.transport import Message, Transport
from isentrope_wire import environment, reports
from isentrope_wire.control import Control
from tests.faults.ledger import LedgerWriter

CAPABILITIES = ("method:none", "method:clip_b", "method:clip_v")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What one training process does."""

    run_id: str
    ledger: str
    incarnation: str = "first"
    rank: int = 0
    world_size: int = 1
    first_step: int = 0
    steps: int = 100
    step_seconds: float = 0.02
    scalars: int = 12
    histograms: int = 2
    tokens: int = 3
    salt: float = 0.0
    """Makes the values of this life's reports its own."""
    ending: str = "return"
    """return | exception | sys.exit | os._exit | SIGTERM | SIGINT | SIGKILL | forget (return
    without a close)"""
    stop_file: str = ""
    """Once this file exists the process takes no further step."""
    mode: Mode = "online"
    initial_version: int = 0
    """Of the control it starts under: what a checkpoint says was in force."""
    limits: dict[str, Any] = field(default_factory=dict)
    forks_at: int | None = None
    """The step at which a child is forked that goes on using what it inherited, as a DataLoader's
    worker may."""

    def to_argument(self) -> str:
        return json.dumps(asdict(self))


def report_of(
    plan: Plan, step: int, version: int, outcomes: tuple[reports.ControlOutcome, ...]
) -> reports.StepReport:
    """A report whose every number says which step of which rank of which life it belongs to."""
    base = step + plan.rank / 16 + plan.salt
    scalars = {"entropy/mean": base} | {
        f"filler/{i}": base * (i + 1) for i in range(plan.scalars - 1)
    }
    histograms = tuple(
        reports.ScoreHistogram(
            name=f"histogram/{i}",
            low=-1.0,
            high=1.0,
            counts=tuple((step + b) % 97 for b in range(64)),
        )
        for i in range(plan.histograms)
    )
    tokens = tuple(
        reports.DrivingToken(
            rank=plan.rank,
            sequence=0,
            position=i,
            token_id=step,
            text=f"token {i} of step {step}",
            logprob=-1.0,
            entropy=0.5,
            vocab_centered_score=0.25,
            advantage=1.0,
            contribution=0.125,
            kept=True,
        )
        for i in range(plan.tokens)
    )
    return reports.StepReport(
        step=step,
        recorded_at=time.time(),
        scalars=scalars,
        histograms=histograms,
        control_version=version,
        outcomes=outcomes,
        tokens=tokens,
    )


def run_of(plan: Plan) -> reports.RunStarted:
    """What the process sends first."""
    return reports.RunStarted(
        run_id=plan.run_id,
        incarnation=plan.incarnation,
        rank=plan.rank,
        world_size=plan.world_size,
        name=plan.run_id,
        project="faults",
        started_at=time.time(),
        probe_version="0.1.0",
        capabilities=CAPABILITIES,
    )


class ReportingLoop:
    """Puts one report per step, as the probe does, and writes down everything it does."""

    def __init__(self, plan: Plan, transport: Transport, ledger: LedgerWriter) -> None:
        self._plan = plan
        self._transport = transport
        self._ledger = ledger
        initial = reports.ControlSnapshot(
            version=plan.initial_version, control=Control(), author="run", requested_at=time.time()
        )
        self._control = ControlState(initial, CAPABILITIES)
        self._control.last_step = plan.first_step - 1
        self.last_step = plan.first_step - 1

    def run(self) -> None:
        stop_file = Path(self._plan.stop_file) if self._plan.stop_file else None
        for step in range(self._plan.first_step, self._plan.first_step + self._plan.steps):
            if stop_file is not None and stop_file.exists():
                return
            self._step(step)
            if step == self._plan.forks_at:
                self._fork(step)
            time.sleep(self._plan.step_seconds)

    def _step(self, step: int) -> None:
        for outcome in self._control.decide(self._transport.requested_control(), now=time.time()):
            self._ledger.decided(outcome)
        report = report_of(
            self._plan, step, self._control.active.version, self._control.outcomes_at(step)
        )
        self._control.reported(step, sent=self._put(report))
        self.last_step = step

    def finish(self, status: str = "finished") -> None:
        finished = reports.RunFinished(
            status=status,
            finished_at=time.time(),
            step=self.last_step,
            outcomes=self._control.pending_outcomes,
        )
        self._put(finished)
        start = time.perf_counter()
        self._transport.close()
        seconds = time.perf_counter() - start
        self._ledger.closed(seconds=seconds, **asdict(self._transport.statistics()))

    def _put(self, message: Message) -> bool:
        self._ledger.offer(message)
        start = time.perf_counter()
        accepted = self._transport.put(lambda: message)
        self._ledger.answered(accepted, time.perf_counter() - start)
        return accepted

    def _fork(self, step: int) -> None:
        """A child that puts a report nobody may ever see, closes what is its parent's, and stays
        for a while."""
        if os.fork() == 0:
            self._transport.put(lambda: report_of(self._plan, 10**6 + step, 0, ()))
            self._transport.close()
            time.sleep(1.0)
            os._exit(0)


def end(how: str, loop: ReportingLoop) -> None:
    """End this process; those that finish the run do so first."""
    match how:
        case "return":
            loop.finish()
        case "forget":
            return
        case "exception":
            raise RuntimeError("the training loop failed, as planned")
        case "sys.exit":
            sys.exit(0)
        case "os._exit":
            os._exit(0)
        case _:
            os.kill(os.getpid(), getattr(signal, how))
            time.sleep(5.0)


def main() -> None:
    # What was started in the background inherits that it does not hear Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    plan = Plan(**json.loads(sys.argv[1]))
    ledger = LedgerWriter(
        Path(plan.ledger), run_id=plan.run_id, incarnation=plan.incarnation, rank=plan.rank
    )
    transport = open_transport(
        run_of(plan),
        mode=plan.mode,
        home=environment.home(),
        grpc_target=environment.grpc_target(),
        limits=SpoolLimits(**plan.limits),
    )
    loop = ReportingLoop(plan, transport, ledger)
    loop.run()
    end(plan.ending, loop)


if __name__ == "__main__":
    main()
