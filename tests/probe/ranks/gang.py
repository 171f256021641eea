"""Runs a function on several ranks at once: real processes, real gloo."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import queue
import time
import traceback
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from isentrope import lifecycle
from isentrope.transport import spool
from tests.system.running_server import free_port

# Forked from a process that has imported what most ranks need, and never run torch: starting a rank
# takes no second.
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    ["tests.probe.ranks.gang", "tests.probe.ranks.loops", "torch.distributed.tensor", "pytest"]
)


class RankFailed(AssertionError):
    """A rank ended with an error, or not at all."""


def run_ranks(
    size: int,
    work: Callable[..., Any],
    *arguments: Any,
    survivors: int | None = None,
    group: bool = True,
    timeout_seconds: float = 60.0,
) -> list[Any]:
    """What `work(rank, *arguments)` gives on each rank; it must be a function a fresh process can
    import.

    Args:
        survivors: how many ranks, from rank 0 on, are expected to come back.
        group: make the process group for `work`; otherwise it does so itself, as under torchrun.

    Raises:
        RankFailed: a rank raised, or did not come back within the time.
    """
    results, address = _CONTEXT.Queue(), f"127.0.0.1:{free_port()}"
    processes = [
        _CONTEXT.Process(
            target=_rank,
            args=(rank, size, address, group, results, work, arguments),
            daemon=True,
            name=f"rank {rank}",
        )
        for rank in range(size)
    ]
    for process in processes:
        process.start()
    try:
        answers = _collect(
            results, size if survivors is None else survivors, time.monotonic() + timeout_seconds
        )
        for process in processes:
            process.join(5)
    finally:
        for process in processes:
            process.kill()
    return answers


def one_after_another(
    rank: int, work: Callable[..., Any], calls: list[tuple[Any, ...]]
) -> list[Any]:
    """For `run_ranks`: several calls of `work` in the same processes, which saves starting them
    anew."""
    return [work(rank, *arguments) for arguments in calls]


def _collect(results: Any, size: int, end: float) -> list[Any]:
    answers: dict[int, Any] = {}
    while len(answers) < size:
        try:
            rank, answer, error = results.get(timeout=max(end - time.monotonic(), 0.01))
        except queue.Empty:
            missing = sorted(set(range(size)) - set(answers))
            raise RankFailed(f"Ranks {missing} did not come back.") from None
        if error:
            raise RankFailed(f"Rank {rank}:\n{error}")
        answers[rank] = pickle.loads(answer)
    return [answers[rank] for rank in range(size)]


def _rank(
    rank: int,
    size: int,
    address: str,
    group: bool,
    results: Any,
    work: Callable[..., Any],
    arguments: tuple[Any, ...],
) -> None:
    torch.set_num_threads(1)
    # A fork server draws one seed for all ranks it ever starts, and every run of the tests another.
    torch.manual_seed(0)
    # The second that a run's end may take is short on a busy machine, and here every report is
    # looked for.
    spool.LONGEST_CLOSE_SECONDS = lifecycle.LONGEST_END_SECONDS = 20.0
    # The probe raises everything under pytest; ranks run as they do in a training job.
    os.environ.pop("PYTEST_CURRENT_TEST", None)
    host, port = address.split(":")
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(size),
        MASTER_ADDR=host,
        MASTER_PORT=port,
    )
    try:
        if group:
            dist.init_process_group("gloo")
        answer = work(rank, *arguments)
        # As bytes: a queue would share a tensor's memory, which ends with its rank.
        results.put((rank, pickle.dumps(answer), ""))
        if group:
            dist.destroy_process_group()
    except BaseException:
        results.put((rank, None, traceback.format_exc()))
        raise
