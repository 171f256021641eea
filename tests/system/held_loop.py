"""A training process with a real probe that observes what its updates do, so that its entropy can be held.

Run as `python -m tests.system.held_loop STEPS SECONDS_PER_STEP`; prints the run's id.
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
    with isentrope.Probe("held", planned_steps=steps) as probe:
        print(probe.run_id, flush=True)
        for step in range(steps):
            run_steps(loop, probe, 1, first=step)
            time.sleep(seconds_per_step)


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
