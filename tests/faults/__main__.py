"""Run the fault matrix: `make faults`."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType

from tests.faults.catalogue import BY_NAME, FAULTS, Fault
from tests.faults.planted import run_planted
from tests.faults.soak import soak_of

_folders_in_use: set[Path] = set()
GONE_SECONDS = 10.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="faults to do; all of them without a name"
    )
    parser.add_argument(
        "--short",
        action="store_true",
        help="fewer repetitions and shorter waits, as in `make test-all`",
    )
    parser.add_argument(
        "--jobs", type=int, default=3, help="faults beside each other; most of them wait"
    )
    parser.add_argument("--planted", action="store_true", help="plant bugs; each must be found")
    parser.add_argument(
        "--soak",
        type=float,
        nargs="?",
        const=60.0,
        metavar="MINUTES",
        help="everything at once for an hour, instead",
    )
    parser.add_argument(
        "--forget", action="store_true", help="keep nothing of a fault that was not withstood"
    )
    parser.add_argument("--list", action="store_true", help="name the faults and do none")
    arguments = parser.parse_args()
    if arguments.list:
        print("\n".join(f"{fault.name:50} {fault.sentence}" for fault in FAULTS))
        return 0
    if arguments.planted:
        return run_planted(arguments.names)
    if unknown := [name for name in arguments.names if name not in BY_NAME]:
        parser.error(f"no fault is called {', '.join(unknown)}; --list names them")
    chosen = [BY_NAME[name] for name in arguments.names] or list(FAULTS)
    if arguments.soak:
        chosen = [Fault(soak_of(arguments.soak))]
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _end)
    return run(chosen, short=arguments.short, keep=not arguments.forget, jobs=arguments.jobs)


def run(faults: Sequence[Fault], *, short: bool, keep: bool, jobs: int) -> int:
    """Do the faults, some beside each other; returns how many broke a promise."""
    started = time.monotonic()
    # The readers of damaged spools log what they find, thousands of times.
    logging.getLogger("isentrope").setLevel(logging.CRITICAL)
    for fault in faults:
        if fault.needs is not None and not fault.possible:
            print(f"{fault.name}: not done, this machine lacks {fault.needs.name}")
    possible = [fault for fault in faults if fault.possible]
    with ThreadPoolExecutor(jobs) as pool:
        held = list(pool.map(lambda fault: _held(fault, short=short, keep=keep), possible))
    failed = [fault.name for fault, withstood in zip(possible, held, strict=True) if not withstood]
    seconds = time.monotonic() - started
    print(
        f"\n{len(possible) - len(failed)} of {len(possible)} faults were withstood, {seconds:.0f} s"
    )
    if failed:
        print(f"Not withstood: {', '.join(failed)}")
    return len(failed)


def _held(fault: Fault, *, short: bool, keep: bool) -> bool:
    folder = Path(tempfile.mkdtemp(prefix=f"{fault.name[:20]}-"))
    _folders_in_use.add(folder)
    started = time.monotonic()
    try:
        outcome = f"held: {fault.run(folder / 'stage', short=short)}"
        broken = False
    except Exception as error:  # noqa: BLE001  # whatever a fault runs into, the next one is still to be done
        outcome = f"BROKEN: {type(error).__name__}: {error}"
        broken = True
    kept = f"\n    kept for a look: {folder}" if broken and keep else ""
    print(
        f"{fault.name}: {fault.sentence}\n    {time.monotonic() - started:.1f} s, {outcome}{kept}",
        flush=True,
    )
    if not kept:
        shutil.rmtree(folder, ignore_errors=True)
    _folders_in_use.discard(folder)
    return not broken


def _end(number: int, _: FrameType | None) -> None:
    """Leave nothing behind. The faults' own threads cannot be interrupted: they wait, some for
    minutes."""
    for folder in tuple(_folders_in_use):
        clear(folder)
    os._exit(128 + number)


def clear(folder: Path) -> None:
    """End every process whose home lies below the folder, unmount what is mounted there, and remove
    it."""
    end = time.monotonic() + GONE_SECONDS
    # One process may be starting another.
    while (running := list(processes_below(folder))) and time.monotonic() < end:
        for pid in running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)
    for mounted in mounts_below(folder):
        subprocess.run(["umount", "--lazy", str(mounted)], check=False, capture_output=True)
    shutil.rmtree(folder, ignore_errors=True)


def processes_below(folder: Path) -> Iterator[int]:
    """The servers, training processes and shippers of a folder; a shipper outlives its trainer."""
    wanted = f"\0ISENTROPE_HOME={folder}{os.sep}".encode()
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and int(process.name) != os.getpid():
            # Not readable, or gone by now.
            with contextlib.suppress(OSError):
                if wanted in b"\0" + (process / "environ").read_bytes():
                    yield int(process.name)


def mounts_below(folder: Path) -> list[Path]:
    """The innermost first."""
    places = [
        Path(line.split()[1])
        for line in Path("/proc/mounts").read_text(encoding="utf-8").splitlines()
    ]
    return sorted((place for place in places if folder in place.parents), reverse=True)


if __name__ == "__main__":
    sys.exit(min(main(), 1))
