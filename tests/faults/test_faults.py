"""The short tier of the fault matrix, with a server of each fault's own. `make faults` does them all at length."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.catalogue import FAULTS, Fault

QUICK = "server_killed_at_random"
"""The one that is done with every change; the others belong to the full suite."""
SHORT_TIER = [
    pytest.param(fault, id=fault.name, marks=[] if fault.name == QUICK else [pytest.mark.slow])
    for fault in FAULTS
    if fault.in_short_tier and not fault.shares_server and fault.possible
]


@pytest.mark.parametrize("fault", SHORT_TIER)
def test_accepted_is_stored_once_or_gap(fault: Fault, tmp_path: Path) -> None:
    verdict = fault.run(tmp_path / "stage", short=True)
    assert verdict.offered > 0
    assert verdict.stored + verdict.in_gaps + verdict.unwritten > 0
