"""What a matrix that is ended would leave behind, found by the folder it worked in: processes and mounted disks."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

GONE_SECONDS = 10.0


def clear(folder: Path) -> None:
    """End every process whose home lies below the folder, unmount what is mounted there, and remove it."""
    end = time.monotonic() + GONE_SECONDS
    # One may be starting another just now.
    while (running := list(processes_below(folder))) and time.monotonic() < end:
        for pid in running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)
    for mounted in mounts_below(folder):
        subprocess.run(["umount", "--lazy", str(mounted)], check=False, capture_output=True)
    shutil.rmtree(folder, ignore_errors=True)


def processes_below(folder: Path) -> Iterator[int]:
    """The servers, training processes and shippers of a folder; a shipper is nobody's child once its trainer is dead."""
    wanted = f"\0ISENTROPE_HOME={folder}{os.sep}".encode()
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and int(process.name) != os.getpid():
            # Another's process, or one that is gone by now.
            with contextlib.suppress(OSError):
                if wanted in b"\0" + (process / "environ").read_bytes():
                    yield int(process.name)


def mounts_below(folder: Path) -> list[Path]:
    """The innermost first."""
    places = [Path(line.split()[1]) for line in Path("/proc/mounts").read_text(encoding="utf-8").splitlines()]
    return sorted((place for place in places if folder in place.parents), reverse=True)
