"""One tracker's side of the delivery benchmark: a process that logs steps of 60 scalars on command.

    python tests/benchmarks/tracker_step.py NAME FOLDER

Each tracker is called as its own documentation shows; ours as our README does: `probe.log`, then
`probe.step`. Reads commands from its input: `paced N` logs N steps, ten a second, and prints the
caller's seconds of each as a JSON list; `burst N` as fast as it can; `end` finishes, and prints how
long that took. Only the tracker named is imported, so that this runs in any environment that has
it."""

from __future__ import annotations

import gc
import importlib
import json
import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

SCALARS = 60
INTERVAL_SECONDS = 0.1
NAMES = [f"group{i % 6}/metric{i}" for i in range(SCALARS)]

Step = Callable[[int, dict[str, float]], None]
Finish = Callable[[], None]


def isentrope(folder: Path) -> tuple[Step, Finish]:
    os.environ["ISENTROPE_HOME"] = str(folder)
    library: Any = importlib.import_module("isentrope")
    probe = library.Probe(
        name="benchmark", project="benchmark", run_id=os.environ.get("BENCHMARK_RUN")
    )

    def step(number: int, scalars: dict[str, float]) -> None:
        probe.log(scalars)
        probe.step(number)

    return step, probe.finish


def trackio(folder: Path) -> tuple[Step, Finish]:
    os.environ["TRACKIO_DIR"] = str(folder)
    tracker: Any = importlib.import_module("trackio")
    tracker.init(project="benchmark", name="run", embed=False)
    return lambda number, scalars: tracker.log(scalars, step=number), tracker.finish


def wandb(folder: Path) -> tuple[Step, Finish]:
    tracker: Any = importlib.import_module("wandb")
    run = tracker.init(
        project="benchmark", mode="offline", dir=str(folder), settings=tracker.Settings(silent=True)
    )
    return lambda number, scalars: run.log(scalars, step=number), run.finish


def mlflow(folder: Path) -> tuple[Step, Finish]:
    """Into a local folder."""
    os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
    tracker: Any = importlib.import_module("mlflow")
    tracker.set_tracking_uri((folder / "runs").as_uri())
    tracker.set_experiment("benchmark")
    tracker.start_run()
    return lambda number, scalars: tracker.log_metrics(scalars, step=number), tracker.end_run


def tensorboard(folder: Path) -> tuple[Step, Finish]:
    writer: Any = importlib.import_module("torch.utils.tensorboard").SummaryWriter(str(folder))

    def step(number: int, scalars: dict[str, float]) -> None:
        for name, scalar in scalars.items():
            writer.add_scalar(name, scalar, number)

    return step, writer.close


TRACKERS: dict[str, Callable[[Path], tuple[Step, Finish]]] = {
    "isentrope": isentrope,
    "trackio": trackio,
    "wandb": wandb,
    "mlflow": mlflow,
    "tensorboard": tensorboard,
}


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    # What a tracker prints must not be taken for an answer.
    os.dup2(2, 1)
    step, finish = TRACKERS[sys.argv[1]](Path(sys.argv[2]))
    answers.write("ready\n")
    answers.flush()
    number = 0
    for line in sys.stdin:
        words = line.split()
        if words[0] == "end":
            started = time.perf_counter()
            finish()
            answers.write(json.dumps([time.perf_counter() - started]) + "\n")
            answers.flush()
            return
        seconds = _hand_over(
            step, number, int(words[1]), INTERVAL_SECONDS if words[0] == "paced" else 0.0
        )
        number += int(words[1])
        answers.write(json.dumps(seconds) + "\n")
        answers.flush()


def _hand_over(step: Step, first: int, count: int, interval_seconds: float) -> list[float]:
    gc.collect()
    seconds = []
    for number in range(first, first + count):
        if interval_seconds:
            time.sleep(interval_seconds)
        # Made when the step has been computed, as a loop makes them.
        scalars = {name: random.random() for name in NAMES}
        started = time.perf_counter()
        step(number, scalars)
        seconds.append(time.perf_counter() - started)
    return seconds


if __name__ == "__main__":
    main()
