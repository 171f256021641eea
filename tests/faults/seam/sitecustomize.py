"""Python imports this at the start of every process below `make faults ARGS="--planted"`: it plants
the bug named there."""

from __future__ import annotations

import os

if name := os.environ.get("PLANTED_BUG"):
    from tests.faults.planted import BUGS

    next(bug for bug in BUGS if bug.name == name).plant_when_imported()
