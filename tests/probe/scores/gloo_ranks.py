"""A function run on several ranks of a real gloo group, each in a process of its own."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from torch.multiprocessing.spawn import spawn


def on_ranks(function: Callable[..., Any], ranks: int, *arguments: Any) -> list[Any]:
    """What `function(*arguments)` returns on each rank, in rank order. The function must be importable by name."""
    with tempfile.TemporaryDirectory() as folder:
        spawn(_run, (ranks, Path(folder), function, arguments), nprocs=ranks)
        return [torch.load(Path(folder) / f"{rank}.pt", weights_only=False) for rank in range(ranks)]


def _run(rank: int, ranks: int, folder: Path, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=ranks)
    torch.save(function(*arguments), folder / f"{rank}.pt")
    torch.distributed.destroy_process_group()
