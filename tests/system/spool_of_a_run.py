"""Spools as a training process leaves them, for tests that need a run on a server."""

from __future__ import annotations

import math
from pathlib import Path

from isentrope.transport.segments import SegmentWriter, encode_frame
from isentrope.transport.spool_folder import SpoolFolder
from isentrope_wire.codec import encode_payload
from isentrope_wire.reports import Payload, RunStarted, ScoreHistogram, StepReport

CAPABILITIES = ("method:none", "method:clip_b", "method:clip_v", "hold")


def run_started(run_id: str) -> RunStarted:
    return RunStarted(
        run_id=run_id,
        incarnation="first",
        rank=0,
        world_size=1,
        name="countdown",
        project="demo",
        started_at=1_700_000_000.0,
        probe_version="0.1.0",
        config={"learning_rate": 1e-4},
        capabilities=CAPABILITIES,
        planned_steps=150,
    )


def report(step: int) -> StepReport:
    """entropy/mean = 1/(step+1); reward/mean only at even steps; probe/seconds NaN at step 3."""
    scalars = {"entropy/mean": 1.0 / (step + 1), "probe/seconds": math.nan if step == 3 else 0.01}
    if step % 2 == 0:
        scalars["reward/mean"] = step / 100
    histogram = ScoreHistogram(
        name="score/discriminator", low=-1.0, high=1.0, counts=(step, 1, 2, 3), not_finite=0
    )
    return StepReport(
        step=step,
        recorded_at=1_700_000_000.0 + step,
        scalars=scalars,
        histograms=(histogram,),
        labels={"control/dead": "beta is 0: no penalty."} if step == 4 else {},
    )


def leave_spool(home: Path, run_id: str, *, steps: int, grpc_target: str) -> SpoolFolder:
    """The spool of a run whose training process is gone: RunStarted and `steps` reports, not
    finished."""
    run = run_started(run_id)
    folder = SpoolFolder.create(home, run, grpc_target)
    messages: list[Payload] = [run, *(report(step) for step in range(steps))]
    writer = SegmentWriter(folder.path, 1)
    writer.append(
        encode_frame(seq, encode_payload(message)) for seq, message in enumerate(messages, start=1)
    )
    writer.close()
    return folder
