"""Killed, frozen and resumed processes, briefly, each with a server of its own. `make faults` does them all at length."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults import process_faults
from tests.faults.catalogue import Fault, short_tier

QUICK = "server_killed_at_random"
"""The one that is done with every change; the others belong to the full suite."""
FAULTS = [
    pytest.param(fault, id=fault.name, marks=[] if fault.name == QUICK else [pytest.mark.slow])
    for fault in short_tier(process_faults)
]


@pytest.mark.parametrize("fault", FAULTS)
def test_accepted_is_stored_once_or_gap(fault: Fault, tmp_path: Path) -> None:
    fault.run(tmp_path / "stage", short=True)
