"""A real, offline run of W&B beside a trainer that logs to it: both keep all their rows."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from isentrope.trackers import WandbRun
from isentrope_wire.reports import StepReport
from tests.probe.tiny_loop import TinyLoop, probe_and_transport, run_steps
from tests.probe.trackers.tracked import finish
from tests.system.running_server import wait_for

pytestmark = pytest.mark.slow

BLOCK_BYTES, HEADER_BYTES, FILE_HEADER_BYTES = 32768, 7, 7


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Any]:
    import wandb

    settings = wandb.Settings(silent=True, x_disable_stats=True, console="off")
    running = wandb.init(project="test", dir=tmp_path, mode="offline", settings=settings)
    yield running
    running.finish()


def records(run: Any) -> list[Any]:
    """What the finished run has on disk: framed in blocks, as LevelDB frames its log."""
    from wandb.proto import wandb_internal_pb2

    (path,) = Path(run.dir).parent.glob("run-*.wandb")
    content, position, parts, found = path.read_bytes(), FILE_HEADER_BYTES, b"", []
    while position < len(content):
        left = BLOCK_BYTES - position % BLOCK_BYTES
        if left < HEADER_BYTES:
            position += left
            continue
        if len(content) < position + HEADER_BYTES:
            break
        _, length, kind = struct.unpack_from("<IHB", content, position)
        position += HEADER_BYTES + length
        # Another process is still writing the last one.
        if len(content) < position:
            break
        parts += content[position - length : position]
        if kind in (1, 4):
            found.append(vars(wandb_internal_pb2)["Record"].FromString(parts))
            parts = b""
    return found


def rows(run: Any) -> list[dict[str, Any]]:
    run.finish()
    # The file is completed by another process.
    wait_for(lambda: bool(found := records(run)) and found[-1].WhichOneof("record_type") == "exit")
    return [
        {
            item.key or "/".join(item.nested_key): json.loads(item.value_json)
            for item in record.history.item
        }
        for record in records(run)
        if record.WhichOneof("record_type") == "history"
    ]


def column(rows: list[dict[str, Any]], name: str) -> list[Any]:
    return [row[name] for row in rows if name in row]


def report(step: int) -> StepReport:
    return StepReport(step=step, recorded_at=0.0, scalars={"entropy/mean": float(step)})


def test_a_probe_mirrors_into_the_active_run_against_an_axis_of_its_own(run: Any) -> None:
    probe, _ = probe_and_transport(trackers="wandb")
    probe.log({"loss": float("nan"), "kl": float("inf")})
    run_steps(TinyLoop(), probe, 3, first=100)
    finish(probe)
    history = rows(run)
    assert column(history, "isentrope/step") == [100, 101, 102]
    assert len(column(history, "isentrope/entropy/mean")) == 3
    assert all(value > 0 for value in column(history, "isentrope/entropy/mean"))
    (loss,) = column(history, "isentrope/loss")
    assert math.isnan(float(loss))
    (kl,) = column(history, "isentrope/kl")
    assert float(kl) == math.inf
    metrics = {
        record.metric.name or record.metric.glob_name: record.metric.step_metric
        for record in records(run)
        if record.WhichOneof("record_type") == "metric"
    }
    assert metrics["isentrope/*"] == "isentrope/step"


@pytest.mark.parametrize("first", [0, 1, None])
@pytest.mark.parametrize(("logging_steps", "burst"), [(1, 1), (10, 3)])
def test_a_trainer_s_own_rows_and_those_of_the_mirror_are_all_there(
    run: Any, first: int | None, logging_steps: int, burst: int
) -> None:
    """It numbers from 0 or 1 or lets W&B count, logs each step or seldom, twice; reports come at
    once or together."""
    mirror, waiting = WandbRun(run), []
    for step in range(1, 41):
        number = None if first is None else step - 1 + first
        if step % logging_steps == 0:
            run.log({"loss": step}, step=number)
        waiting.append(report(step))
        while step % burst == 0 and waiting:
            mirror.write(waiting.pop(0))
        if step % logging_steps == 0:
            run.log({"eval": step}, step=number)
    for late in waiting:
        mirror.write(late)
    mirror.close()
    history = rows(run)
    logged = list(range(logging_steps, 41, logging_steps))
    assert column(history, "loss") == column(history, "eval") == logged
    assert column(history, "isentrope/entropy/mean") == list(range(1, 41))
    assert column(history, "isentrope/step") == list(range(1, 41))


def test_a_run_whose_steps_are_far_beyond_the_trainers_gets_every_report(run: Any) -> None:
    mirror = WandbRun(run)
    run.log({"loss": 1.0}, step=1_000_000)
    for step in range(40):
        mirror.write(report(step))
    assert not mirror._held
    run.log({"loss": 2.0}, step=2_000_000)
    mirror.close()
    history = rows(run)
    assert column(history, "loss") == [1.0, 2.0]
    assert column(history, "isentrope/entropy/mean") == list(range(40))


def test_a_step_that_comes_again_after_a_resume_is_not_ignored(run: Any) -> None:
    mirror = WandbRun(run)
    for step in (5, 6, 7, 6, 7, 8):
        mirror.write(report(step))
    mirror.close()
    assert column(rows(run), "isentrope/step") == [5, 6, 7, 6, 7, 8]


def test_a_disabled_run_is_written_to_without_failure() -> None:
    import wandb

    with wandb.init(mode="disabled") as disabled:
        mirror = WandbRun(disabled)
        for step in range(5):
            mirror.write(report(step))
        mirror.close()
