"""The training process's side: never waits, never raises, no socket; what it accepted is on
disk."""

from __future__ import annotations

import errno
import logging
import shutil
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from isentrope.transport.files import write_document
from isentrope.transport.segments import MAX_PAYLOAD_BYTES, encode_frame, keep_sent, list_segments
from isentrope.transport.spool import REPEAT_SECONDS, SpoolTransport, open_transport
from isentrope.transport.spool_disk import SpoolLimits
from isentrope.transport.spool_folder import (
    ControlFile,
    ShipperStatus,
    SpoolError,
    SpoolFolder,
    find_spool_folders,
)
from isentrope.transport.spool_reader import REMOVED, SpoolReader
from isentrope.transport.spool_writer import AWAY, QUEUE_FULL
from isentrope.transport.transport import InMemoryTransport, Message
from isentrope_wire import environment
from isentrope_wire.codec import decode_payload
from isentrope_wire.control import Control
from isentrope_wire.errors import ConfigurationError
from isentrope_wire.reports import ControlSnapshot, Gap, RunFinished, StepReport
from tests.probe.transport.fake_telemetry import RUN as RUN_OF_ONE_RANK
from tests.probe.transport.fake_telemetry import FakeTelemetry, on_disk
from tests.system.running_server import free_port, wait_for

RUN = replace(RUN_OF_ONE_RANK, run_id="r/1", rank=3, world_size=4)

IS_HELD = (
    "import sys; from pathlib import Path; "
    "from isentrope.transport.files import is_held_by_another_process; "
    "sys.exit(is_held_by_another_process(Path(sys.argv[1])))"
)
CLOSE_SECONDS = 5.0
"""The second and a tenth that a close takes at most, and what a busy machine adds; what hangs here
hangs for a minute."""


def report(step: int) -> StepReport:
    return StepReport(step=step, recorded_at=1.0, scalars={"entropy/mean": float("nan")})


def opened(home: Path, limits: SpoolLimits | None = None) -> SpoolTransport:
    transport = open_transport(
        RUN, mode="offline", home=home, grpc_target="127.0.0.1:1", limits=limits
    )
    assert isinstance(transport, SpoolTransport)
    return transport


@pytest.fixture
def transport(tmp_path: Path) -> Iterator[SpoolTransport]:
    a_transport = opened(tmp_path)
    yield a_transport
    a_transport.close()


def test_everything_accepted_before_the_close_is_on_disk_after_it(
    transport: SpoolTransport,
) -> None:
    finished = RunFinished(status="finished", finished_at=2.0, step=299)
    for step in range(300):
        assert transport.put(lambda step=step: report(step))  # type: ignore[misc]
    assert transport.put(lambda: finished)
    transport.close()
    messages = on_disk(transport.folder.path)
    assert messages[0] == RUN
    assert [message.step for message in messages[1:-1] if isinstance(message, StepReport)] == list(
        range(300)
    )
    assert messages[-1] == finished
    statistics = transport.statistics()
    assert (statistics.accepted, statistics.dropped, statistics.spooled) == (301, 0, 302)


def test_put_does_not_wait_for_a_report_that_is_slow_to_build(tmp_path: Path) -> None:
    transport = opened(tmp_path, SpoolLimits(max_queued_messages=5))
    release = threading.Event()

    def slow() -> Message:
        release.wait(60.0)
        return report(0)

    transport.put(slow)
    wait_for(lambda: len(transport._queue) == 0)
    start = time.perf_counter()
    taken = [transport.put(lambda: report(1)) for _ in range(8)]
    seconds = time.perf_counter() - start
    release.set()
    transport.close()
    assert taken == [True] * 5 + [False] * 3
    assert seconds < 1.0
    assert transport.statistics().dropped == 3
    assert Gap(first_seq=8, last_seq=10, reason="the queue of reports was full") in on_disk(
        transport.folder.path
    )


def test_after_the_close_reports_are_refused_and_counted(transport: SpoolTransport) -> None:
    transport.close()
    transport.close()
    assert not transport.put(lambda: report(1))
    assert transport.statistics().dropped == 1


def test_the_requested_control_comes_from_the_control_file(transport: SpoolTransport) -> None:
    assert transport.requested_control() is None
    wish = ControlSnapshot(version=4, control=Control(reason="try"), author="ada", requested_at=1.0)
    ControlFile(transport.folder.control).write(wish)
    wait_for(lambda: transport.requested_control() == wish)
    transport.folder.control.write_bytes(b"torn")
    time.sleep(0.15)
    assert transport.requested_control() == wish


def test_a_second_spool_of_the_same_incarnation_is_refused(
    tmp_path: Path, transport: SpoolTransport
) -> None:
    with pytest.raises(SpoolError, match="incarnation"):
        opened(tmp_path)


def test_a_spool_of_an_earlier_protocol_is_refused(transport: SpoolTransport) -> None:
    written_as_protobuf = b"\n\x06\n\x01r\x12\x01i"
    (transport.folder.path / "run.payload").write_bytes(written_as_protobuf)
    for segment in list_segments(transport.folder.path):
        segment.write_bytes(encode_frame(1, written_as_protobuf))
    with pytest.raises(SpoolError, match="deliver an older spool with the version that wrote it"):
        transport.folder.run()


def test_a_run_too_large_for_a_record_is_named_and_leaves_nothing(tmp_path: Path) -> None:
    large = replace(RUN, config={"text": "x" * MAX_PAYLOAD_BYTES})
    with pytest.raises(ConfigurationError, match=r"config.*8388608.*8388\d\d\d"):
        open_transport(large, mode="offline", home=tmp_path, grpc_target="127.0.0.1:1")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("kind", "lines"), [("nfs4", 1), ("lustre", 1), ("ext4", 0)])
def test_a_home_on_a_network_is_named(
    kind: str,
    lines: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(environment, "file_system_of", lambda _path: kind)
    open_transport(
        RUN_OF_ONE_RANK, mode="offline", home=tmp_path, grpc_target="127.0.0.1:1"
    ).close()
    assert sum(f"network file system ({kind})" in line for line in caplog.messages) == lines


def test_a_home_without_locks_is_named_and_left_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.lockf", no_locks)
    with pytest.raises(SpoolError, match="locks"):
        opened(tmp_path)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_home_that_is_no_folder_is_named_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("a file")
    with pytest.raises(SpoolError, match="ISENTROPE_HOME"):
        opened(tmp_path / "home")


def test_names_from_outside_stay_inside_the_spool(tmp_path: Path) -> None:
    hostile = replace(RUN_OF_ONE_RANK, run_id="../../etc", incarnation="..")
    folder = SpoolFolder.create(tmp_path, hostile, "127.0.0.1:1")
    assert folder.path.resolve().is_relative_to(tmp_path / "spool")
    assert folder.run() == hostile


def test_the_spool_is_the_owners_alone_and_says_what_a_shipper_needs(
    tmp_path: Path, transport: SpoolTransport
) -> None:
    (folder,) = find_spool_folders(tmp_path)
    assert folder.path == transport.folder.path
    assert folder.path.stat().st_mode & 0o777 == 0o700
    assert folder.run() == RUN
    assert folder.grpc_target() == "127.0.0.1:1"


def test_disabled_builds_nothing_and_makes_no_file(tmp_path: Path) -> None:
    transport = open_transport(RUN, mode="disabled", home=tmp_path / "none", grpc_target="")
    assert isinstance(transport, InMemoryTransport)
    assert transport.put(lambda: pytest.fail("built, which may wait for the device"))
    assert not (tmp_path / "none").exists()


def run_python(program: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", textwrap.dedent(program), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


OPEN = """
import os, sys, time
from pathlib import Path
from isentrope.transport.spool import open_transport
from isentrope_wire.reports import RunStarted, StepReport
run = RunStarted(run_id="r", incarnation="i", rank=0, world_size=1, name="n",
                 project="p", started_at=0.0, probe_version="0")
transport = open_transport(run, mode="offline", home=Path(sys.argv[1]), grpc_target="x")
def put(step): return transport.put(lambda: StepReport(step=step, recorded_at=0.0))
"""


@pytest.mark.parametrize("token", [None, "wrong"], ids=["server away", "wrong token"])
def test_a_script_whose_reports_are_not_delivered_hears_of_it_once_at_its_end(
    tmp_path: Path, token: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = FakeTelemetry(free_port(), token="right")
    # Else the shipper would outlive the test.
    monkeypatch.setenv("ISENTROPE_DRAIN_SECONDS", "0.2")
    program = OPEN.replace('mode="offline"', 'mode="online"').replace(
        'grpc_target="x"', "grpc_target=sys.argv[2]"
    )
    program = "import os, sys; os.environ['ISENTROPE_TOKEN'] = sys.argv[3]\n" + program
    program += """
put(1); put(2)
status, end = transport.folder.status, time.monotonic() + 60
while time.monotonic() < end:
    if status.exists() and '"error": ""' not in status.read_text():
        break
    time.sleep(0.05)
begin = time.monotonic()
transport.close()
print(time.monotonic() - begin)
transport.close()
"""
    if token is not None:
        server.start()
    try:
        result = run_python(program, tmp_path, server.target, token or "right")
    finally:
        if token is not None:
            server.stop()
    (folder,) = find_spool_folders(tmp_path)
    assert result.returncode == 0
    assert float(result.stdout) < CLOSE_SECONDS
    (line,) = result.stderr.splitlines()
    reason = "holding: UNAUTH" if token else "retrying: UNAVAIL"
    assert line.startswith(f"3 records are not delivered yet to {server.target} ({reason}")
    assert f"kept in {folder.path}." in line
    assert f"`isentrope sync {folder.path}`" in line


def test_a_closed_port_is_named_soon_and_again_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("ISENTROPE_DRAIN_SECONDS", "0.2")
    monkeypatch.setattr(
        "isentrope.transport.spool.REPEAT_SECONDS", 1.2
    )  # the status is read each half second
    target = f"127.0.0.1:{free_port()}"
    run = replace(RUN, rank=0)
    transport = open_transport(run, mode="online", home=tmp_path, grpc_target=target)
    assert isinstance(transport, SpoolTransport)
    try:
        wait_for(lambda: len(caplog.records) > 1)
    finally:
        transport.close()
    first, second = [
        record for record in caplog.records if "Reports are not delivered" in record.message
    ]
    assert (first.levelname, first.threadName) == ("WARNING", "isentrope-spool")
    for named in (target, "ISENTROPE_GRPC", "ISENTROPE_URL", str(transport.folder.path)):
        assert named in first.message
    assert second.created - first.created > 1.2
    assert REPEAT_SECONDS == 3600


def test_a_script_whose_reports_are_delivered_says_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = FakeTelemetry(free_port())
    monkeypatch.setenv("ISENTROPE_DRAIN_SECONDS", "0.2")
    program = OPEN.replace('mode="offline"', 'mode="online"').replace(
        'grpc_target="x"', "grpc_target=sys.argv[2]"
    )
    server.start()
    try:
        result = run_python(program + "put(1); put(2)", tmp_path, server.target)
    finally:
        server.stop()
    assert (result.returncode, result.stderr) == (0, "")


def test_the_training_process_imports_no_grpc_no_torch_and_opens_no_socket(tmp_path: Path) -> None:
    program = """
    put(1)
    time.sleep(0.2)
    sockets = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")
               if os.path.islink(f"/proc/self/fd/{fd}")]
    print([name for name in ("grpc", "torch", "socket", "httpx") if name in sys.modules],
          [link for link in sockets if link.startswith("socket:")])
    """
    result = run_python(OPEN + textwrap.dedent(program), tmp_path)
    assert (result.stdout.strip(), result.stderr) == ("[] []", "")


def test_spools_are_found_while_others_are_being_removed(tmp_path: Path) -> None:
    kept = SpoolFolder.create(tmp_path, RUN, "127.0.0.1:1")
    stop = threading.Event()

    def come_and_go() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            SpoolFolder.create(
                tmp_path, replace(RUN, incarnation=f"j-{number}"), "127.0.0.1:1"
            ).remove()

    coming_and_going = threading.Thread(target=come_and_go)
    coming_and_going.start()
    try:
        for _ in range(300):
            assert kept.path in [folder.path for folder in find_spool_folders(tmp_path)]
    finally:
        stop.set()
        coming_and_going.join()


def test_what_the_server_says_of_the_run_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    transport = opened(tmp_path)
    transport._run = replace(RUN, rank=0)
    with caplog.at_level(logging.WARNING):
        for acked in (1, 2):
            write_document(
                transport.folder.status, ShipperStatus(acked_through=acked, note="It had finished.")
            )
            wait_for(lambda acked=acked: transport._acked_through == acked)  # type: ignore[misc]
    transport.close()
    assert [record.message for record in caplog.records] == ["It had finished."]


def lose_and_return(path: Path, loss: str) -> None:
    """What a folder may suffer, until it is there again where the loss itself brings it back."""
    home = path.parents[3]
    if loss == "removed":
        shutil.rmtree(path.parent.parent)
    elif loss == "home_removed":
        shutil.rmtree(home)
    elif loss == "moved":
        home.rename(home.with_name("elsewhere"))
        time.sleep(0.3)
        home.with_name("elsewhere").rename(home)
    elif loss == "segment_removed":
        next(iter(list_segments(path))).unlink()
    else:
        for segment in list_segments(path):
            keep_sent(segment, 60.0)
        SpoolFolder(path).retire()
        assert not path.exists()


def what_a_server_gets(folder: SpoolFolder) -> list[str]:
    """Steps, and `1..2` for a gap, with each number once."""
    reader = SpoolReader(folder.path)
    records = reader.next_batch(10**6, 10**9)
    records += reader.missing_at_the_end(folder.read_end())
    words, expected = [], 1
    for record in records:
        message = decode_payload(record.payload)
        first = message.first_seq if isinstance(message, Gap) else record.seq
        assert first == expected
        expected = record.seq + 1
        if isinstance(message, Gap):
            words.append(f"{first}..{record.seq} {message.reason}")
        elif isinstance(message, StepReport):
            words.append(str(message.step))
    return words


@pytest.mark.parametrize(
    ("loss", "begins_with"),
    [
        ("removed", [f"1..2 {REMOVED}"]),
        ("home_removed", [f"1..2 {REMOVED}"]),
        ("segment_removed", [f"1..2 {REMOVED}"]),
        ("moved", ["0"]),
        ("retired_by_a_sync", ["0"]),
    ],
)
def test_a_spool_that_disappears_is_restored(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    loss: str,
    begins_with: list[str],
) -> None:
    monkeypatch.setattr("isentrope.transport.spool.ABSENT_SECONDS", 0.1)
    monkeypatch.setattr("isentrope.transport.spool.HOME_ABSENT_SECONDS", 0.5)
    transport = opened(tmp_path / "home")
    transport.put(lambda: report(0))
    # What no sync has reached is written once more, and not lost.
    wait_for(lambda: transport.statistics().spooled == 2 and not transport._writer._disk._unsynced)
    with caplog.at_level("WARNING", logger="isentrope"):
        lose_and_return(transport.folder.path, loss)
        wait_for(lambda: bool(caplog.records))
        for step in (1, 2):
            transport.put(lambda step=step: report(step))  # type: ignore[misc]
        wait_for(lambda: transport.statistics().spooled == 4)
    assert transport.folder.exists
    # Asked by another process: this one would lose its own lock by looking.
    command = [sys.executable, "-c", IS_HELD, str(transport.folder.trainer_lock)]
    assert subprocess.run(command, check=False, timeout=60).returncode == 1
    transport.close()
    said = [record.getMessage() for record in caplog.records]
    assert what_a_server_gets(transport.folder) == [*begins_with, "1", "2"]
    assert said
    assert all(str(transport.folder.path) in message for message in said)


def test_the_end_of_a_run_restores_its_spool(transport: SpoolTransport) -> None:
    assert transport.put(lambda: report(0))
    wait_for(lambda: transport.statistics().spooled == 2 and not transport._writer._disk._unsynced)
    shutil.rmtree(transport.folder.path)
    assert transport.put(lambda: report(1))
    transport.close()
    assert what_a_server_gets(transport.folder) == [f"1..2 {REMOVED}", "1"]


def test_reports_beyond_the_memory_are_one_named_gap(tmp_path: Path) -> None:
    transport = opened(tmp_path / "home", SpoolLimits(max_queued_messages=3))
    wait_for(lambda: transport.statistics().spooled == 1)
    home = tmp_path / "home"
    home.rename(tmp_path / "elsewhere")
    time.sleep(0.2)
    for step in range(8):
        transport.put(lambda step=step: report(step))  # type: ignore[misc]
    (tmp_path / "elsewhere").rename(home)
    wait_for(lambda: transport.statistics().spooled == 9)
    transport.close()
    gap = f"5..9 {QUEUE_FULL}: {AWAY}"
    assert what_a_server_gets(transport.folder) == ["0", "1", "2", gap]


def test_records_wait_for_their_acknowledgement_from_when_they_were_written(
    transport: SpoolTransport,
) -> None:
    assert transport.put(lambda: StepReport(step=0, recorded_at=1.0))
    wait_for(lambda: transport.statistics().lag_seconds > 0.7)
    write_document(transport.folder.status, ShipperStatus(acked_through=2))
    wait_for(lambda: transport.statistics().acknowledged == 2)
    assert transport.statistics().lag_seconds == 0.0
