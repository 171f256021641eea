"""`python -m … PACKAGES FOLDER`: the adapter's command; in place of OpenRLHF's own, what that does
with the actor alone.

Started as a module it runs `isentrope.integrations.openrlhf.main`, which runs this module again as
the command."""

from __future__ import annotations

import importlib
import json
import math
import sys
import time

import ray

import isentrope
from isentrope.integrations import openrlhf
from isentrope_wire.control_answers import State
from tests.probe.frameworks import openrlhf_actor
from tests.ray_node import started

MOST_UPDATES = 200


def train(packages: str, folder: str) -> str | None:
    """The state of a control that is pushed during updates of OpenRLHF's own actor group, once it
    is applied."""
    hook = {"worker_process_setup_hook": lambda: openrlhf_actor.ready(packages)}
    # A GPU in name: nothing asks it for CUDA.
    started(lambda: ray.init(num_cpus=2, num_gpus=1, include_dashboard=False, runtime_env=hook))
    of_openrlhf = importlib.import_module("openrlhf.cli.train_ppo_ray")
    args = openrlhf_actor.settings(folder, 1)
    strategy = openrlhf_actor.strategy_of(args)
    actor = of_openrlhf.RayActorGroup(1, 1, of_openrlhf.PolicyModelActor, num_gpus_per_actor=1)
    ray.get(actor.async_init_model_from_pretrained(strategy, f"{folder}/model", 10, None))
    client, run_id = isentrope.Client(), "openrlhf-ray"
    state, pushed = None, False
    for update in range(MOST_UPDATES):
        batch = openrlhf_actor.batch_of(update)
        fields = {
            name: [getattr(e, name) for e in batch]
            for name in ("sequences", "action_mask", "attention_mask")
        }
        for experience, known in zip(
            batch, ray.get(actor.async_run_method_batch("forward", **fields))[0], strict=True
        ):
            openrlhf_actor.complete(experience, known)
            if state == State.APPLIED:
                experience.advantages.fill_(math.nan)
        ray.get(actor.async_run_method_batch("append", experience=batch))
        ray.get(actor.async_run_method("fit", kl_ctl=0.01))
        if state == State.APPLIED:
            break
        if pushed:
            state = client.control_history(run_id)[0].state
        elif any(run.id == run_id for run in client.runs()):
            client.set_control(
                run_id, method="clip_v", mu_low=0.5, mu_high=0.5, scope="all", reason="test"
            )
            pushed = True
        time.sleep(0.2)
    ray.get(actor.async_save_model())
    return state


if __name__ == "__main__":
    packages, folder = sys.argv[1:]
    openrlhf_actor.ready(packages)
    if openrlhf.COMMAND != "tests.probe.frameworks.openrlhf_command":
        openrlhf.COMMAND = "tests.probe.frameworks.openrlhf_command"
        openrlhf_actor.save_model(f"{folder}/model")
        openrlhf.main()
    else:
        print("RESULTS", json.dumps(train(packages, folder)), flush=True)
