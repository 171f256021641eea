"""Faults that may be done to a server that others use as well, briefly, all done to one server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults import (
    control_faults,
    disk_faults,
    network_faults,
    operating_faults,
    process_faults,
    spool_damage,
    wire_faults,
)
from tests.faults.catalogue import Fault, short_tier
from tests.system.running_server import RunningServer

pytestmark = pytest.mark.slow
FAULTS = short_tier(
    process_faults,
    network_faults,
    disk_faults,
    spool_damage,
    wire_faults,
    control_faults,
    operating_faults,
    shares_server=True,
)


@pytest.fixture(scope="module")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with RunningServer(tmp_path_factory.mktemp("shared") / "server") as server:
        yield server


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_accepted_is_stored_once_or_gap(
    fault: Fault, tmp_path: Path, shared_server: RunningServer
) -> None:
    fault.run(tmp_path / "stage", short=True, server=shared_server)


def test_server_logged_no_traceback(shared_server: RunningServer) -> None:
    """After shippers were killed and connections reset under its open streams."""
    assert "Traceback" not in shared_server.log
