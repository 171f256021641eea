"""The disk is full, on either side, or returns errors."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from isentrope.transport.spool_reader import REMOVED
from tests.faults.faulty_libc import failing_calls
from tests.faults.oracle import Allowance, Verdict
from tests.faults.stage import Stage, Trainer
from tests.system.running_server import wait_for

SMALL_QUEUE = {"max_queued_messages": 100, "segment_bytes": 100_000}
REFUSED = Allowance(gap_reasons=("the queue of reports was full",), left_out=True)


def may_mount() -> bool:
    """Whether this machine lets us mount a small file system."""
    return os.geteuid() == 0


@contextlib.contextmanager
def small_disk(folder: Path, megabytes: int) -> Iterator[Path]:
    """A file system of its own, in memory."""
    folder.mkdir(parents=True)
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder)], check=True
    )
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=False)


def fill(folder: Path) -> Path:
    """Take all the room there is; returns the file that holds it."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        for size in (65_536, 4_096, 512, 1):
            with contextlib.suppress(OSError):
                while True:
                    if file.write(b"\1" * size) < size:
                        break
    return filler


def spool_disk_full(stage: Stage) -> Verdict:
    """The trainer's disk fills up while the server is away: tokens go first, then histograms, then
    whole reports."""
    home = stage.enter(small_disk(stage.folder / "small", 4))
    trainer = stage.running_trainer(
        "full", step_seconds=0.004, scalars=60, histograms=12, limits=SMALL_QUEUE, home=home
    )
    stage.server.kill()
    filler = fill(home)
    wait_for(lambda: _refused(trainer) > 50, 60.0, "the queue refused reports")
    filler.unlink()
    stage.server.start()
    stage.expect_a_fresh_report(trainer)
    verdict = stage.judge(trainer, allowance=REFUSED)
    verdict.require(verdict.left_out > 0, "nothing was left out before whole reports were lost")
    verdict.require(verdict.in_gaps > 0, "nothing was lost: this shows nothing")
    verdict.hold()
    return verdict


def spool_disk_full_beside_a_running_server(stage: Stage) -> Verdict:
    """Other programs fill the trainer's disk while the server takes everything: the reserve carries
    the scalars, nothing is lost."""
    home = stage.enter(small_disk(stage.folder / "small", 6))
    trainer = stage.running_trainer("crowded", limits={"segment_bytes": 100_000}, home=home)
    filler = fill(home)
    time.sleep(3.0 if stage.short else 20.0)
    filler.unlink()
    stage.expect_a_fresh_report(trainer)
    return stage.judge(trainer, allowance=Allowance(left_out=True))


def server_disk_full(stage: Stage) -> Verdict:
    """The server's disk fills up: it acknowledges nothing it can't commit, and goes on when there
    is room."""
    stage.server.kill()
    stage.server.home = stage.enter(small_disk(stage.folder / "small", 6)) / "home"
    stage.server.start()
    trainer = stage.running_trainer("stuffed", step_seconds=0.01, histograms=8)
    filler = fill(stage.server.home)
    time.sleep(4.0 if stage.short else 30.0)
    cause = (
        stage.api.get(f"{stage.server.url}/readyz")
        .json()
        .get("error", {})
        .get("details", {})
        .get("cause")
    )
    # What waits by now and its write-ahead log are more than the small disk holds.
    subprocess.run(["mount", "-o", "remount,size=64m", str(stage.server.home.parent)], check=True)
    filler.unlink()
    stage.expect_a_fresh_report(trainer)
    verdict = stage.judge(trainer)
    verdict.require(cause == "disk_full", f"the server named the cause {cause}")
    verdict.hold()
    return verdict


def spool_writes_fail(stage: Stage) -> Verdict:
    """Every write to the spool fails with EIO for a while: reports wait in memory."""
    return _fail_calls_of_the_trainer(stage, "unwritable", "write,open")


def spool_syncs_fail(stage: Stage) -> Verdict:
    """Every fdatasync of the spool fails with EIO for a while: what was not made durable is written
    again."""
    return _fail_calls_of_the_trainer(stage, "unsynced", "sync")


GONE = Allowance(gap_reasons=(REMOVED,))


def home_moved_away(stage: Stage) -> Verdict:
    """The trainer's home is moved away for some seconds and back: reports wait in memory."""
    trainer = stage.running_trainer("moved")
    elsewhere = trainer.home.with_name("elsewhere")
    for _ in range(1 if stage.short else 3):
        trainer.home.rename(elsewhere)
        time.sleep(4.0)
        elsewhere.rename(trainer.home)
        stage.expect_a_fresh_report(trainer)
    return stage.judge(trainer)


def home_unmounted(stage: Stage) -> Verdict:
    """The mount that holds the trainer's home is away for three seconds and comes back."""
    place, real = stage.folder / "mount", stage.folder / "real"
    place.mkdir()
    real.mkdir()
    mount = ["mount", "--bind", str(real), str(place)]
    umount = ["umount", "--lazy", str(place)]
    subprocess.run(mount, check=True)
    try:
        trainer = stage.running_trainer("unmounted", home=place / "home")
        subprocess.run(umount, check=True)
        time.sleep(3.0)
        subprocess.run(mount, check=True)
        stage.expect_a_fresh_report(trainer)
        return stage.judge(trainer)
    finally:
        subprocess.run(umount, check=False)


def spool_removed(stage: Stage) -> Verdict:
    """The spool is removed while the server is away: what it held is a gap, the rest comes."""
    trainer = stage.running_trainer("removed")
    stage.server.kill()
    time.sleep(1.0)
    assert trainer.folder is not None
    # At once: its shipper writes into it meanwhile.
    shutil.rmtree(trainer.folder.path.rename(stage.folder / "removed"))
    stage.server.start()
    stage.expect_a_fresh_report(trainer)
    verdict = stage.judge(trainer, allowance=GONE)
    verdict.require(verdict.in_gaps > 0, "nothing was lost: this shows nothing")
    verdict.hold()
    return verdict


_SYNC_WITHOUT_LOCKS = """
import sys
from pathlib import Path
from isentrope.transport import files, shipper, sync
from isentrope.transport.spool_folder import SpoolFolder
shipper.is_held_by_another_process = sync.is_held_by_another_process = lambda path: False
files.ProcessLock.acquire = lambda lock: True
print(*sync.sync_spools([SpoolFolder(Path(sys.argv[1]))], target=None, give_up_after_seconds=5.0))
"""


def sync_where_locks_do_not_reach(stage: Stage) -> Verdict:
    """`isentrope sync` on a machine that does not see the locks takes a living spool for ended."""
    keep = {"ISENTROPE_KEEP_DELIVERED": "600"}
    trainer = stage.running_trainer("elsewhere", environment=keep)
    for _ in range(1 if stage.short else 3):
        assert trainer.folder is not None
        path = str(trainer.folder.path)
        environment = stage.server.environment | keep | {"ISENTROPE_HOME": str(trainer.home)}
        command = [sys.executable, "-c", _SYNC_WITHOUT_LOCKS, path]
        subprocess.run(command, env=environment, check=True, timeout=60)
        stage.expect_a_fresh_report(trainer)
    return stage.judge(trainer)


def _fail_calls_of_the_trainer(stage: Stage, run_id: str, calls: str) -> Verdict:
    flag = stage.folder / "failing"
    failing = failing_calls(flag, suffix=".seg", calls=calls, error=errno.EIO)
    trainer = stage.running_trainer(run_id, step_seconds=0.01, environment=failing)
    return _fail_for_a_while(stage, trainer, flag)


def server_writes_fail(stage: Stage) -> Verdict:
    """Every write and sync of the server's database fails with EIO for a while."""
    flag = stage.folder / "failing"
    stage.server.kill()
    stage.server.more_environment = failing_calls(
        flag, suffix="isentrope.db-wal", calls="write,sync", error=errno.EIO
    )
    stage.server.start()
    trainer = stage.running_trainer("misplaced", step_seconds=0.01)
    return _fail_for_a_while(stage, trainer, flag)


def _fail_for_a_while(stage: Stage, trainer: Trainer, flag: Path) -> Verdict:
    for _ in range(2 if stage.short else 5):
        flag.touch()
        time.sleep(1.5)
        flag.unlink()
        time.sleep(0.5)
    stage.expect_a_fresh_report(trainer)
    return stage.judge(trainer)


def _refused(trainer: Trainer) -> int:
    return sum(offer.accepted is False for offer in trainer.ledger.offers)
