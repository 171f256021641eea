"""Killed, frozen and resumed processes, briefly, each with a server of its own. `make faults` does
them all at length."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults import process_faults
from tests.faults.catalogue import Fault, short_tier

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("fault", short_tier(process_faults), ids=lambda fault: fault.name)
def test_accepted_is_stored_once_or_gap(fault: Fault, tmp_path: Path) -> None:
    fault.run(tmp_path / "stage", short=True)
