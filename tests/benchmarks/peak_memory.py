"""How much memory a call needs on top of what it was given: the rise of the process's peak resident set."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from pathlib import Path

M_MMAP_THRESHOLD = -3
STATUS, CLEAR_REFS = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def peak_extra_mebibytes(run: Callable[[], object]) -> float:
    """Linux and glibc: large blocks come from and return to the system, so that none is counted or missed twice.

    The call is made once unmeasured, for what is loaded and compiled at a first call.
    """
    libc = ctypes.CDLL(None)
    libc.mallopt(M_MMAP_THRESHOLD, 1 << 16)
    run()
    gc.collect()
    libc.malloc_trim(0)
    CLEAR_REFS.write_text("5")
    before = _status("VmRSS")
    result = run()
    peak = _status("VmHWM")
    del result
    return max(0, peak - before) / 1024


def _status(field: str) -> int:
    """In KiB."""
    return next(int(line.split()[1]) for line in STATUS.read_text().splitlines() if line.startswith(field + ":"))
