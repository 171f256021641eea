"""A training process with a real probe that observes what its updates do, so that its entropy can
be held.

Run as `python -m tests.system.observed_loop STEPS SECONDS_PER_STEP`; prints the run's id, and at
the end how long the longest step took, pauses apart.
"""

from __future__ import annotations

import sys
import time

import torch

import isentrope
from tests.probe.tiny_loop import TinyLoop, run_steps


def main(steps: int, seconds_per_step: float) -> None:
    torch.set_num_threads(1)
    loop = TinyLoop()
    longest_step = 0.0
    with isentrope.Probe("observed", planned_steps=steps) as probe:
        print(probe.run_id, flush=True)
        for step in range(steps):
            started = time.perf_counter()
            run_steps(loop, probe, 1, first=step)
            longest_step = max(longest_step, time.perf_counter() - started)
            time.sleep(seconds_per_step)
    print(longest_step, flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
