"""Delivery over a link that is slow: a call waits as long as its message takes, and messages become smaller."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from isentrope.transport import connection
from isentrope.transport.segments import SegmentWriter, encode_frame
from isentrope.transport.shipper import ShipperSettings, ship
from isentrope.transport.spool_folder import ShipperState, SpoolFolder
from isentrope_wire.codec import encode_payload
from isentrope_wire.reports import Payload, StepReport
from tests.probe.transport.fake_telemetry import FakeTelemetry, free_port
from tests.system.spool_of_a_run import leave_spool, run_started

QUICK = ShipperSettings(poll_seconds=0.01, drain_seconds=5.0, longest_pause_seconds=0.05)


@pytest.fixture
def server() -> Iterator[FakeTelemetry]:
    fake = FakeTelemetry(free_port())
    fake.start()
    yield fake
    fake.stop()


@pytest.mark.slow
def test_a_batch_that_does_not_arrive_in_time_is_sent_in_smaller_ones_that_grow_again(
    server: FakeTelemetry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "CALL_SECONDS", 0.3)
    monkeypatch.setattr(connection, "SLOWEST_BYTES_PER_SECOND", 1e9)
    folder = leave_spool(tmp_path, "slow", steps=119, grpc_target=server.target)
    server.seconds_per_record = 0.006
    status = ship(folder, QUICK, find_token=lambda: None)
    assert status is not None
    assert (status.state, status.acked_through) == (ShipperState.DRAINED, 120)
    sizes = [len(batch) for batch in server.pushes]
    assert sum(sizes) == 120
    assert max(sizes) < 50
    assert any(later > earlier for earlier, later in itertools.pairwise(sizes))


def test_a_call_is_given_the_time_its_message_takes_over_a_slow_link(server: FakeTelemetry, tmp_path: Path) -> None:
    folder = SpoolFolder.create(tmp_path, run_started("large"), server.target)
    large = StepReport(step=0, recorded_at=1.0, labels={"text": "x" * 400_000})
    messages: list[Payload] = [run_started("large"), large]
    writer = SegmentWriter(folder.path, 1)
    writer.append(encode_frame(seq, encode_payload(message)) for seq, message in enumerate(messages, start=1))
    writer.close()
    ship(folder, QUICK, find_token=lambda: None)
    assert server.payloads == messages
    (seconds,) = server.deadlines
    assert 22.0 < seconds < 26.0
