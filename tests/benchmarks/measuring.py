"""Medians of interleaved runs, memory that a call needs on top of what it was given, CPU time of
processes."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import psutil  # type: ignore[import-untyped]

M_MMAP_THRESHOLD = -3
STATUS, CLEAR_REFS = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def median_seconds(candidates: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """CPU seconds of each candidate. They take turns: what a busy machine does to one it does to
    all; one round is not measured."""
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for turn in range(rounds + 1):
        for name, run in candidates.items():
            started = time.process_time()
            run()
            if turn:
                seconds[name].append(time.process_time() - started)
    return {name: statistics.median(values) for name, values in seconds.items()}


def cpu_seconds(pid: int) -> float:
    """CPU seconds so far of a process and its children, also ended ones."""
    process = psutil.Process(pid)
    seconds = float(sum(process.cpu_times()[:4]))
    for child in process.children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            seconds += sum(child.cpu_times()[:4])
    return seconds


def peak_extra_mebibytes(run: Callable[[], object]) -> float:
    """The rise of the process's peak resident set, on Linux with glibc.

    Large blocks come from and return to the system, so that none is counted or missed twice. The
    call is made once unmeasured, for what is loaded and compiled at a first call.
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
    return next(
        int(line.split()[1])
        for line in STATUS.read_text().splitlines()
        if line.startswith(field + ":")
    )
