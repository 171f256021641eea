"""One tracker's side of the delivery benchmark: a process that hands over steps when it is told to.

    python tests/benchmarks/tracker_step.py NAME FOLDER

Reads commands from its input: `paced N` hands over N steps, ten a second, and prints the caller's seconds of each as a
JSON list; `burst N` as fast as it can; `end` finishes, and prints how long that took. A step is 60 scalars and 4
histograms of 64 bins. Only the tracker named is imported, so that this runs in any environment that has it.
"""

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

SCALARS, HISTOGRAMS, BINS = 60, 4, 64
INTERVAL_SECONDS = 0.1
NAMES = [f"group{i % 6}/metric{i}" for i in range(SCALARS)]
EDGES = [-1.0 + 2.0 * i / BINS for i in range(BINS + 1)]

Step = Callable[[int, dict[str, float], list[tuple[int, ...]]], None]
Finish = Callable[[], None]


def isentrope(folder: Path) -> tuple[Step, Finish]:
    """What the probe does with a finished step: the report is built on the writer's thread."""
    transports = importlib.import_module("isentrope.transport.open_transport")
    messages: Any = importlib.import_module("isentrope_wire.messages")
    environment: Any = importlib.import_module("isentrope_wire.environment")
    run = messages.RunStarted(
        run_id=os.environ["BENCHMARK_RUN"], incarnation="first", rank=0, world_size=1, name="benchmark",
        project="benchmark", started_at=time.time(), probe_version="0.1.0",
    )  # fmt: skip
    transport = transports.open_transport(
        run,
        mode=os.environ.get("ISENTROPE_MODE", "offline"),
        home=folder,
        grpc_target=environment.grpc_target(),
        token=os.environ.get("ISENTROPE_TOKEN"),
    )

    def step(number: int, scalars: dict[str, float], histograms: list[tuple[int, ...]]) -> None:
        recorded_at = time.time()

        def build() -> Any:
            return messages.StepReport(
                step=number,
                recorded_at=recorded_at,
                scalars=scalars | transport.statistics().scalars(),
                histograms=tuple(
                    messages.ScoreHistogram(name=f"histogram/{i}", low=-1.0, high=1.0, counts=counts)
                    for i, counts in enumerate(histograms)
                ),
            )

        transport.put(build)
        transport.desired_control()

    def finish() -> None:
        transport.put(lambda: messages.RunFinished(status="finished", finished_at=time.time()))
        transport.close()

    return step, finish


def trackio(folder: Path) -> tuple[Step, Finish]:
    os.environ["TRACKIO_DIR"] = str(folder)
    tracker: Any = importlib.import_module("trackio")
    tracker.init(project="benchmark", name="run", embed=False)

    def step(number: int, scalars: dict[str, float], histograms: list[tuple[int, ...]]) -> None:
        lists = {f"histogram/{i}": list(counts) for i, counts in enumerate(histograms)}
        tracker.log({**scalars, **lists}, step=number)

    return step, tracker.finish


def wandb(folder: Path) -> tuple[Step, Finish]:
    tracker: Any = importlib.import_module("wandb")
    run = tracker.init(project="benchmark", mode="offline", dir=str(folder), settings=tracker.Settings(silent=True))

    def step(number: int, scalars: dict[str, float], histograms: list[tuple[int, ...]]) -> None:
        found = {
            f"histogram/{i}": tracker.Histogram(np_histogram=(list(counts), EDGES))
            for i, counts in enumerate(histograms)
        }
        run.log({**scalars, **found}, step=number)

    return step, run.finish


def tensorboard(folder: Path) -> tuple[Step, Finish]:
    """Event by event, as torch's SummaryWriter writes them."""
    events: Any = importlib.import_module("tensorboard.compat.proto.event_pb2")
    summaries: Any = importlib.import_module("tensorboard.compat.proto.summary_pb2")
    writers: Any = importlib.import_module("tensorboard.summary.writer.event_file_writer")
    writer = writers.EventFileWriter(str(folder))

    def add(number: int, value: Any) -> None:
        event = events.Event(wall_time=time.time(), step=number, summary=summaries.Summary(value=[value]))
        writer.add_event(event)

    def step(number: int, scalars: dict[str, float], histograms: list[tuple[int, ...]]) -> None:
        for name, scalar in scalars.items():
            add(number, summaries.Summary.Value(tag=name, simple_value=scalar))
        for i, counts in enumerate(histograms):
            histogram = summaries.HistogramProto(
                min=-1.0, max=1.0, num=float(sum(counts)), bucket_limit=EDGES[1:], bucket=[float(c) for c in counts]
            )
            add(number, summaries.Summary.Value(tag=f"histogram/{i}", histo=histogram))

    return step, writer.close


TRACKERS: dict[str, Callable[[Path], tuple[Step, Finish]]] = {
    "isentrope": isentrope,
    "trackio": trackio,
    "wandb": wandb,
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
        seconds = _hand_over(step, number, int(words[1]), INTERVAL_SECONDS if words[0] == "paced" else 0.0)
        number += int(words[1])
        answers.write(json.dumps(seconds) + "\n")
        answers.flush()


def _hand_over(step: Step, first: int, count: int, interval_seconds: float) -> list[float]:
    gc.collect()
    seconds = []
    for number in range(first, first + count):
        scalars = {name: random.random() for name in NAMES}
        histograms = [tuple(random.randrange(1000) for _ in range(BINS)) for _ in range(HISTOGRAMS)]
        if interval_seconds:
            time.sleep(interval_seconds)
        started = time.perf_counter()
        step(number, scalars, histograms)
        seconds.append(time.perf_counter() - started)
    return seconds


if __name__ == "__main__":
    main()
