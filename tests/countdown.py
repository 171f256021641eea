"""A run of the reference trainer, 200 steps on countdown, that tests and benchmarks report again.

It loses half of its entropy in 41 steps; a hold becomes active at step 81.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from isentrope_trainer.recording import Recording, read_recording


@cache
def countdown_run() -> Recording:
    return read_recording(Path(__file__).with_name("countdown_run.tar.xz"))
