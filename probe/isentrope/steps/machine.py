"""What a step took of its machine: time, memory, use of the device."""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from pathlib import Path

import torch

from isentrope_wire import metrics

GIB = 2.0**30
UTILISATION_SECONDS = 2.0
"""Between two questions to the driver, which takes milliseconds for one."""
_STATM = Path("/proc/self/statm")


def current_device() -> int | None:
    """The CUDA or ROCm device of the calling thread; None before the first use of one, which this
    is not."""
    if torch.cuda.is_initialized():
        return torch.cuda.current_device()
    return None


class Machine:
    """Numbers of the process and of its device. Called from one thread, once a step."""

    def __init__(self) -> None:
        self._before: tuple[int, float] | None = None
        self._asked_driver = -UTILISATION_SECONDS
        self._driver_answers = torch.version.cuda is not None

    def scalars(self, step: int, at: float, tokens: int, device: int | None) -> dict[str, float]:
        """What is known of the step that was closed `at`, in seconds of a clock that nobody sets,
        with `tokens` of all ranks."""
        scalars = self._pace(step, at, tokens)
        with suppress(OSError):
            scalars[metrics.SYSTEM_HOST_MEMORY] = (
                int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / GIB
            )
        if device is not None:
            # The allocator's own counts: no kernel is waited for. Read once: torch flattens all of
            # them for each question.
            memory = torch.cuda.memory.memory_stats_as_nested_dict(device)
            scalars[metrics.SYSTEM_DEVICE_MEMORY] = (
                memory["allocated_bytes"]["all"]["current"] / GIB
            )
            scalars[metrics.SYSTEM_DEVICE_PEAK_MEMORY] = (
                memory["reserved_bytes"]["all"]["peak"] / GIB
            )
            scalars |= self._utilisation(device)
        return scalars

    def _pace(self, step: int, at: float, tokens: int) -> dict[str, float]:
        before, self._before = self._before, (step, at)
        if before is None or step <= before[0] or at <= before[1]:
            return {}
        seconds = (at - before[1]) / (step - before[0])
        pace: dict[str, float] = {metrics.TIME_STEP_SECONDS: seconds}
        if tokens:
            pace[metrics.SYSTEM_TOKENS_PER_SECOND] = tokens / seconds
        return pace

    def _utilisation(self, device: int) -> dict[str, float]:
        now = time.monotonic()
        if not self._driver_answers or now - self._asked_driver < UTILISATION_SECONDS:
            return {}
        self._asked_driver = now
        try:
            return {metrics.SYSTEM_DEVICE_UTILISATION: torch.cuda.utilization(device) / 100}
        except (
            ImportError,
            RuntimeError,
            getattr(sys.modules.get("pynvml"), "NVMLError", RuntimeError),
        ):
            self._driver_answers = False
            return {}
