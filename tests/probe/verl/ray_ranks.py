"""Two data-parallel ranks of verl in Ray workers, until a control has been active for two updates.

`python ray_ranks.py MODEL PORT` prints results as JSON.
"""

from __future__ import annotations

import json
import os
import sys
from importlib import import_module
from typing import Any

import ray

UPDATES = 600


class Worker:
    """One rank."""

    def __init__(self, model: str) -> None:
        import torch

        torch.set_num_threads(1)
        torch.distributed.init_process_group("gloo")
        self._engine = import_module("tiny_actor").engine_of(model, remove_padding=True)
        self._rank = torch.distributed.get_rank()

    def update(self, number: int) -> str:
        """The method that the update was made under."""
        # Other sequences on each rank.
        import_module("tiny_actor").update(self._engine, 2 * (number % 3) + self._rank, remove_padding=True)
        return str(self._engine._isentrope_attachment.probe.control.method)

    def end(self) -> str:
        self._engine._isentrope_attachment.probe.finish()
        return import_module("tiny_actor").fingerprint(self._engine)


def start_ray() -> None:
    """Start a cluster of this machine alone; on a busy one Ray may give up on its own processes, so try again."""
    for attempt in range(4):
        try:
            ray.init(num_cpus=2, include_dashboard=False, object_store_memory=80 * 2**20, configure_logging=False)
        except Exception:
            if attempt == 3:
                raise
        else:
            return


if __name__ == "__main__":
    model, port = sys.argv[1:]
    import_module("tiny_actor").save_model(model)
    start_ray()
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "LOCAL_RANK": "0"}
    shared |= {name: os.environ[name] for name in os.environ if name.startswith(("ISENTROPE_", "VERL_", "PYTHONPATH"))}
    actor = ray.remote(num_cpus=0)(Worker)
    workers = [actor.options(runtime_env={"env_vars": shared | {"RANK": str(rank)}}).remote(model) for rank in (0, 1)]
    methods: list[list[str]] = []
    for number in range(UPDATES):
        methods.append(ray.get([worker.update.remote(number) for worker in workers]))
        if len(methods) > 1 and all("clip_v" in found for found in methods[-2:]):
            break
    results: dict[str, Any] = {"methods": methods, "fingerprints": ray.get([worker.end.remote() for worker in workers])}
    print("RESULTS", json.dumps(results), flush=True)
