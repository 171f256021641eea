"""The end of a training process that has more to write than time: what it accepted is there, or a
gap says why not."""

from __future__ import annotations

import errno
import subprocess
import sys
import textwrap
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

import isentrope
from isentrope.transport.segments import SegmentWriter
from isentrope.transport.shipper import ship
from isentrope.transport.spool import (
    SHARED_WAIT_SECONDS,
    ShipperSupervisor,
    SpoolTransport,
    open_transport,
)
from isentrope.transport.spool_folder import ShipperState, SpoolEnd, find_spool_folders
from isentrope.transport.spool_reader import SpoolReader
from isentrope.transport.spool_writer import OUT_OF_TIME
from isentrope.transport.transport import MakeMessage, Message, ReadyMessage
from isentrope_wire.codec import decode_payload, encode_payload
from isentrope_wire.reports import Gap, RunFinished, StepReport
from tests.probe.tiny_loop import TinyLoop, run_steps
from tests.probe.transport.fake_telemetry import QUICK, RUN, FakeTelemetry, on_disk

FINISHED = RunFinished(status="finished", finished_at=2.0, step=99)


def slowly(step: int) -> MakeMessage:
    def make() -> Message:
        time.sleep(0.03)
        return StepReport(step=step, recorded_at=1.0)

    return make


@pytest.mark.parametrize(("characters", "seconds"), [(1, 0.2), (16 * 2**20, 0.0)])
def test_slow_or_huge_texts_take_no_report_along(
    characters: int, seconds: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ISENTROPE_HOME", str(tmp_path))

    def decode(token_ids: Sequence[int]) -> str:
        time.sleep(seconds * len(token_ids))
        return "x" * (characters * len(token_ids))

    probe = isentrope.Probe("texts", mode="offline", tokenizer=decode)
    run_steps(TinyLoop(), probe, 8)
    probe.finish()
    (folder,) = find_spool_folders(tmp_path)
    messages = on_disk(folder.path)
    steps = [message.step for message in messages if isinstance(message, StepReport)]
    assert steps == [*range(8)]
    assert not [message for message in messages if isinstance(message, Gap)]


def test_what_there_is_no_time_to_build_is_a_gap_and_the_end_of_the_run_stands_behind_it(
    tmp_path: Path,
) -> None:
    transport = open_transport(RUN, mode="offline", home=tmp_path, grpc_target="127.0.0.1:1")
    assert isinstance(transport, SpoolTransport)
    for step in range(100):
        assert transport.put(slowly(step))
    assert transport.put(ReadyMessage(FINISHED))
    transport.close(timeout_seconds=0.5)
    first, *reports, gap, last = on_disk(transport.folder.path)
    written = len(reports)
    assert (first, last) == (RUN, FINISHED)
    assert [report.step for report in reports if isinstance(report, StepReport)] == list(
        range(written)
    )
    assert gap == Gap(first_seq=written + 2, last_seq=101, reason=OUT_OF_TIME)
    assert transport.folder.read_end() == SpoolEnd(102)
    assert transport.statistics().dropped == 100 - written


def test_what_stands_behind_a_report_that_hangs_arrives_as_a_gap_and_the_run_is_finished(
    tmp_path: Path, server: FakeTelemetry
) -> None:
    program = """
    import sys, time
    from pathlib import Path
    from isentrope.transport.spool import open_transport
    from isentrope.transport.transport import ReadyMessage
    from isentrope_wire.reports import RunFinished, RunStarted, StepReport
    run = RunStarted(run_id="r", incarnation="i", rank=0, world_size=1, name="n",
                     project="p", started_at=0.0, probe_version="0")
    transport = open_transport(run, mode="offline", home=Path(sys.argv[1]), grpc_target=sys.argv[2])
    transport.put(lambda: StepReport(step=0, recorded_at=1.0))
    while transport.statistics().spooled < 2: time.sleep(0.01)
    transport.put(lambda: time.sleep(1000))
    for step in range(2, 6): transport.put(lambda: StepReport(step=step, recorded_at=1.0))
    transport.put(ReadyMessage(RunFinished(status="finished", finished_at=2.0, step=99)))
    begin = time.monotonic()
    transport.close(timeout_seconds=0.3)
    print(time.monotonic() - begin)
    """
    command = [sys.executable, "-c", textwrap.dedent(program), str(tmp_path), server.target]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert float(ended.stdout) < 1.5
    (folder,) = find_spool_folders(tmp_path)
    status = ship(folder, QUICK)
    assert status is not None
    assert (status.state, status.acked_through) == (ShipperState.DRAINED, 8)
    first, report, gap, last = server.payloads
    assert (first, report) == (RUN, StepReport(step=0, recorded_at=1.0))
    assert (gap, last) == (Gap(first_seq=3, last_seq=7, reason=OUT_OF_TIME), FINISHED)


def test_a_full_disk_leaves_a_gap_and_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    transport = open_transport(RUN, mode="offline", home=tmp_path, grpc_target="127.0.0.1:1")
    assert isinstance(transport, SpoolTransport)
    while transport.statistics().spooled < 1:
        time.sleep(0.01)

    def fails(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(SegmentWriter, "append", fails)
    for step in range(3):
        transport.put(slowly(step))
    transport.put(ReadyMessage(FINISHED))
    transport.close(timeout_seconds=0.3)
    assert transport.folder.read_end() == SpoolEnd(5, OUT_OF_TIME, encode_payload(FINISHED))
    reader = SpoolReader(transport.folder.path)
    assert len(reader.next_batch(10, 10**6)) == 1
    gap, last = reader.missing_at_the_end(transport.folder.read_end())
    assert decode_payload(gap.payload) == Gap(first_seq=2, last_seq=4, reason=OUT_OF_TIME)
    assert (last.seq, decode_payload(last.payload)) == (5, FINISHED)


@pytest.mark.parametrize(
    "content", [b"", b"17x", b"{}", b"[1]", b'{"last_seq": 3, "reason": "r", "last_payload": "z"}']
)
def test_an_end_that_cannot_be_read_is_none(tmp_path: Path, content: bytes) -> None:
    transport = open_transport(RUN, mode="offline", home=tmp_path, grpc_target="127.0.0.1:1")
    assert isinstance(transport, SpoolTransport)
    transport.close()
    assert transport.folder.read_end() == SpoolEnd(1)
    transport.folder.end.write_bytes(content)
    assert transport.folder.read_end() is None


def test_runs_that_end_together_wait_once_for_shippers_that_report_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ShipperSupervisor, "keep_running", lambda *_, **__: None)
    monkeypatch.setattr(SpoolTransport, "_last_wait_ends", -SHARED_WAIT_SECONDS)
    opened = [
        open_transport(
            replace(RUN, run_id=name), mode="online", home=tmp_path, grpc_target="127.0.0.1:1"
        )
        for name in ("first", "second", "third")
    ]
    begin = time.monotonic()
    for transport in opened:
        transport.close()
    assert 0.9 < time.monotonic() - begin < 1.7
