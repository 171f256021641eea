"""The exchange of all ranks once a step: bytes, CPU time on rank 0, and the time on a network by a
model.

    python -m tests.benchmarks.rank_exchange [RANKS ...]

Each rank's vector is gathered on every rank. Measured: the vector's length, and the CPU seconds in
which rank 0 copies what was gathered, adds up what may be added and merges the rest, on the thread
that writes reports. Calculated: a ring all-gather, (n - 1)(L + m / B), and for comparison a tree's
all-reduce of the additive part, 2 (log2(n) L + m / B), behind an all-gather of the rest. L and B
are stated below; a real network has its own.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator, Sequence

import torch

from isentrope.distributed import Gathered
from isentrope.global_step import ADDITIVE_FROM, LAYOUT, rank_vector, read_ranks
from tests.probe.statistics.test_step_summary import batch_of

RANKS = (8, 512, 4_096)
LATENCY_SECONDS = 10e-6
"""L: from a rank to the next, the start of a message included."""
BYTES_A_SECOND = 20e9
"""B: of one rank's link, as a collective gets out of 200 Gbit/s."""
NUMBER_BYTES = 8


def all_gather_seconds(ranks: int, numbers: int) -> float:
    """A ring: every rank passes on the vector of each other one."""
    return (ranks - 1) * (LATENCY_SECONDS + numbers * NUMBER_BYTES / BYTES_A_SECOND)


def all_reduce_seconds(ranks: int, numbers: int) -> float:
    """A pipelined binary tree, up to add up and down to make it known."""
    return 2 * (math.log2(ranks) * LATENCY_SECONDS + numbers * NUMBER_BYTES / BYTES_A_SECOND)


def merge_seconds(ranks: int) -> float:
    """CPU seconds of rank 0 between the gathered vectors and the step's sums."""
    vector = rank_vector(1, 0, [batch_of(4, 64, 1)], None, None)
    gathered = Gathered(vector.repeat(ranks, 1))
    started = time.process_time()
    step = read_ranks(gathered.numbers_later(ADDITIVE_FROM)())
    seconds = time.process_time() - started
    assert step.sums is not None
    return seconds


def measure(counts: Sequence[int] = RANKS) -> Iterator[str]:
    """Rows of a Markdown table."""
    torch.set_num_threads(1)
    own = LAYOUT.size
    yield (
        f"A vector: {own} float64 = {own * NUMBER_BYTES / 1e3:.0f} kB, {own - ADDITIVE_FROM} of"
        " them additive.\n"
    )
    yield (
        "| ranks | gathered on every rank, MB | all-gather, ms | reduced instead, ms | rank 0"
        " merges, CPU s |"
    )
    yield "|---|---|---|---|---|"
    for ranks in counts:
        gathered = ranks * own * NUMBER_BYTES / 1e6
        reduced = all_gather_seconds(ranks, ADDITIVE_FROM) + all_reduce_seconds(
            ranks, own - ADDITIVE_FROM
        )
        yield (
            f"| {ranks} | {gathered:.1f} | {1e3 * all_gather_seconds(ranks, own):.2f} |"
            f" {1e3 * reduced:.2f} | {merge_seconds(ranks):.3f} |"
        )


if __name__ == "__main__":
    for row in measure([int(count) for count in sys.argv[1:]] or RANKS):
        print(row, flush=True)
