"""The short tier of the fault matrix: what may be done to a server that others use as well, done to one server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.catalogue import FAULTS, Fault
from tests.system.running_server import RunningServer

pytestmark = pytest.mark.slow

SHORT_TIER = [fault for fault in FAULTS if fault.in_short_tier and fault.shares_server and fault.possible]


@pytest.fixture(scope="module")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with RunningServer(tmp_path_factory.mktemp("shared") / "server") as server:
        yield server


@pytest.mark.parametrize("fault", SHORT_TIER, ids=lambda fault: fault.name)
def test_accepted_is_stored_once_or_gap(fault: Fault, tmp_path: Path, shared_server: RunningServer) -> None:
    verdict = fault.run(tmp_path / "stage", short=True, server=shared_server)
    assert verdict.offered > 0
    assert verdict.stored + verdict.in_gaps + verdict.unwritten > 0


def test_server_logged_no_traceback(shared_server: RunningServer) -> None:
    """After shippers were killed and connections reset under its open streams."""
    assert "Traceback" not in shared_server.log
