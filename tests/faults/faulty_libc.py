"""Builds `faulty_libc.c`, and the variables that start a process under it."""

from __future__ import annotations

import functools
import shutil
import subprocess
import tempfile
from pathlib import Path

SOURCE = Path(__file__).with_suffix(".c")


def has_compiler() -> bool:
    """Whether this machine can build it."""
    return shutil.which("cc") is not None


@functools.cache
def library() -> Path:
    """The built library."""
    built = Path(tempfile.mkdtemp(prefix="faulty-libc-")) / "faulty_libc.so"
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-O1", "-o", str(built), str(SOURCE), "-ldl"], check=True
    )
    return built


def failing_calls(
    flag: Path, *, suffix: str, calls: str, error: int = 0, kill_at: int = 0
) -> dict[str, str]:
    """Variables for a process whose calls on some files fail while `flag` exists.

    Args:
        suffix: of the files' paths.
        calls: comma-separated, of write, sync, open.
        error: errno they fail with; 0: they work.
        kill_at: the call at which the process dies; 0: it doesn't.
    """
    return {
        "LD_PRELOAD": str(library()),
        "FAULT_WHILE": str(flag),
        "FAULT_SUFFIX": suffix,
        "FAULT_CALLS": calls,
        "FAULT_ERRNO": str(error),
        "FAULT_KILL_AT": str(kill_at),
    }


def shifted_clock(offset_file: Path) -> dict[str, str]:
    """Variables for a process whose clock is off by the seconds in the file, read at each call."""
    return {"LD_PRELOAD": str(library()), "FAULT_CLOCK": str(offset_file)}
