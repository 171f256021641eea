"""Medians of interleaved runs: what a busy machine does to one candidate it does to all."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping


def median_seconds(candidates: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """CPU seconds of each candidate, the candidates taking turns; one unmeasured round first."""
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for turn in range(rounds + 1):
        for name, run in candidates.items():
            started = time.process_time()
            run()
            if turn:
                seconds[name].append(time.process_time() - started)
    return {name: statistics.median(values) for name, values in seconds.items()}
