"""Ranks of verl that train until a control has been active for two updates; prints results as JSON.

`python ranks.py ulysses MODEL` is one of two that share the sequences; RANK names which. `python
ranks.py ray MODEL` starts two data-parallel ones in Ray workers.
"""

from __future__ import annotations

import json
import os
import sys
from importlib import import_module
from typing import Any

UPDATES = 600


class Worker:
    """One rank."""

    def __init__(self, model: str, parts: int = 1) -> None:
        import torch

        torch.set_num_threads(1)
        # By a file: a port that was free before Ray started may be one of Ray's now.
        torch.distributed.init_process_group(
            "gloo", init_method=f"file://{model}.ranks", rank=int(os.environ["RANK"]), world_size=2
        )
        self._engine = import_module("tiny_actor").engine_of(
            model, remove_padding=True, ulysses_sequence_parallel_size=parts
        )

    def update(self, number: int) -> str:
        """The method that the update was made under."""
        import_module("tiny_actor").update(self._engine, number % 3, spoilt=number == 1)
        return str(self._engine._isentrope_attachment.probe.control.method)

    def end(self) -> str:
        """Of the parameters, after the run has ended."""
        self._engine._isentrope_attachment.probe.finish()
        return str(import_module("tiny_actor").fingerprint(self._engine))


def ray_workers(model: str) -> tuple[Any, list[Any]]:
    """Ray, and two ranks in it; on a busy machine it may give up on its own processes, so it is
    tried again."""
    ray: Any = import_module("ray")
    for attempt in range(3):
        try:
            ray.init(
                num_cpus=2,
                include_dashboard=False,
                object_store_memory=80 * 2**20,
                configure_logging=False,
            )
            break
        except Exception as error:  # noqa: BLE001  (Ray raises no other)
            if attempt == 2:
                print("RESULTS", json.dumps({"no_ray": str(error)}), flush=True)
                sys.exit()
    shared = {"WORLD_SIZE": "2", "LOCAL_RANK": "0"}
    shared |= {
        name: os.environ[name]
        for name in os.environ
        if name.startswith(("ISENTROPE_", "VERL_", "PYTHONPATH"))
    }
    actor = ray.remote(num_cpus=0)(Worker)
    return ray, [
        actor.options(runtime_env={"env_vars": shared | {"RANK": str(rank)}}).remote(model)
        for rank in (0, 1)
    ]


def main(kind: str, model: str) -> dict[str, Any]:
    found: list[list[str]] = []
    if kind == "ulysses":
        worker = Worker(model, parts=2)
    else:
        import_module("tiny_actor").save_model(model)
        ray, workers = ray_workers(model)
    for number in range(UPDATES):
        if kind == "ulysses":
            found.append([worker.update(number)])
        else:
            found.append(ray.get([worker.update.remote(number) for worker in workers]))
        if len(found) > 1 and all("clip_v" in methods for methods in found[-2:]):
            break
    ends = (
        [worker.end()]
        if kind == "ulysses"
        else ray.get([worker.end.remote() for worker in workers])
    )
    return {"methods": found, "fingerprints": ends}


if __name__ == "__main__":
    print("RESULTS", json.dumps(main(*sys.argv[1:])), flush=True)
