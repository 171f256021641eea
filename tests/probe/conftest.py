"""One real server for the tests of the client and the command line; shapes in signatures are
checked."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.probe.shapes import check_shapes
from tests.system.running_server import RunningServer

check_shapes()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with RunningServer(tmp_path_factory.mktemp("server") / "home") as running:
        yield running
