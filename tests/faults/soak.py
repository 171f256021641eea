"""A long run of everything at once: memory and descriptors stay as they are, and nothing is
lost."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from statistics import median

from tests.faults.catalogue import DoFault
from tests.faults.control_faults import ended, push_successfully
from tests.faults.operating_faults import connected, mebibytes
from tests.faults.oracle import Verdict
from tests.faults.stage import Stage

ROUND_SECONDS = 20.0
STEADY = 2
"""Runs that report from the beginning to the end; others come and go."""
SILENT = 50
READS = (
    "",
    "/metrics/series?name=entropy/mean",
    "/alerts",
    "/tokens",
    "/control/history",
    "/export?format=jsonl",
)
MORE_MEBIBYTES = 12.0
"""Over an hour 1 MiB from the second third to the last. A statement for each run made it 20 more
from third to third."""


def soak_of(minutes: float) -> DoFault:
    """The soak as a fault."""

    def soak(stage: Stage) -> Verdict:
        """Runs report, come and go, are read and controlled, connections stay silent: memory and
        descriptors are flat."""
        steady = [
            stage.running_trainer(f"steady-{number}", step_seconds=0.1) for number in range(STEADY)
        ]
        pids = {"server": stage.server.pid}
        for trainer in steady:
            assert trainer.shipper_pid is not None
            pids |= {
                trainer.plan.run_id: trainer.process.pid,
                f"{trainer.plan.run_id}'s shipper": trainer.shipper_pid,
            }
        verdict = Verdict()
        seen: dict[str, list[tuple[float, int]]] = {name: [] for name in pids}
        started = time.monotonic()
        while (seconds := time.monotonic() - started) < 60 * minutes:
            verdict += _round(stage, len(seen["server"]))
            for name, pid in pids.items():
                seen[name].append((mebibytes(pid), len(os.listdir(f"/proc/{pid}/fd"))))
            now = ", ".join(
                f"{name} {figures[-1][0]:.0f} MiB {figures[-1][1]} files"
                for name, figures in seen.items()
            )
            print(f"soak, {seconds / 60:.0f} min: {now}", flush=True)
            time.sleep(max(0.0, started + seconds + ROUND_SECONDS - time.monotonic()))
        for trainer in steady:
            verdict += stage.judge(trainer)
        for name, figures in seen.items():
            _require_flat(verdict, name, figures)
        verdict.hold()
        return verdict

    return soak


def _round(stage: Stage, number: int) -> Verdict:
    """A run from start to end, and what people and machines do beside it."""
    passing = stage.start_trainer(stage.plan(f"passing-{number}", steps=100, step_seconds=0.05))
    with contextlib.ExitStack() as silent:
        for _ in range(SILENT):
            silent.enter_context(connected(stage))
        for path in ("/runs", *(f"/runs/steady-0{path}" for path in READS)):
            assert stage.api.get(path).is_success, path
        ended(
            stage.api,
            "steady-0",
            push_successfully(stage.api, "steady-0", method="clip_v", mu_low=1 + number % 9),
        )
        passing.finish()
    verdict = stage.judge(passing, finish=False)
    stage.trainers.remove(passing)
    Path(passing.plan.ledger).unlink()
    return verdict


def _require_flat(verdict: Verdict, name: str, figures: list[tuple[float, int]]) -> None:
    """The last third beside the second one: what the first one fills stays full."""
    third = len(figures) // 3
    for kind, most, unit in ((0, MORE_MEBIBYTES, "MiB"), (1, 8, "files")):
        before, after = (
            median(f[kind] for f in part)
            for part in (figures[third : 2 * third], figures[2 * third :])
        )
        verdict.require(
            after - before <= most, f"{name} grew from {before:.0f} to {after:.0f} {unit}"
        )
