"""A run for the benchmark of the pages, trained at a pace, with everything a probe reports.

    python -m tests.benchmarks.page_run RUN STEPS_PER_SECOND STEPS

Prints each step and the time, in seconds since the Unix epoch, at which `probe.step` returned.
"""

from __future__ import annotations

import random
import sys
import time

import torch

import isentrope
from tests.probe.tiny_loop import TinyLoop, run_steps


def main(run: str, pace: float, steps: int) -> None:
    torch.set_num_threads(1)
    loop = TinyLoop()
    began = time.monotonic()
    with isentrope.Probe(name="page", project="benchmark", run_id=run) as probe:
        for step in range(1, steps + 1):
            time.sleep(max(0.0, began + step / pace - time.monotonic()))
            probe.log({"reward/mean": random.random()})
            run_steps(loop, probe, 1, first=step)
            print(step, time.time(), flush=True)


main(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]))
