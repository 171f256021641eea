"""A fake of the server, for each test of the transport."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.probe.transport.fake_telemetry import FakeTelemetry
from tests.system.running_server import free_port


@pytest.fixture
def server() -> Iterator[FakeTelemetry]:
    fake = FakeTelemetry(free_port())
    fake.start()
    yield fake
    fake.stop()
