"""verl's updates with and without the adapter; prints results as JSON.

`python updates.py alone MODEL FOLDER` is one process; of `python updates.py together MODEL` each of
two ranks runs one."""

from __future__ import annotations

import json
import logging
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from verl.utils.tracking import Tracking

import isentrope
from isentrope.integrations.verl import ATTRIBUTE, attach
from isentrope.transport.transport import InMemoryTransport
from isentrope_wire.reports import StepReport

# Beside this file, where some package of verl's calls itself `tests`.
actor = import_module("tiny_actor")

TEMPERATURE = 0.8
TEMPERATURES = torch.linspace(0.7, 1.3, 8)
CLIP = isentrope.Control(method="clip_v", mu_low=0.5, mu_high=0.5)


def trained(model: str, temperature: Any, attached: bool, **settings: Any) -> dict[str, Any]:
    engine = actor.engine_of(model, attached=attached, **settings)
    outputs = [actor.update(engine, seed, temperature=temperature) for seed in range(3)]
    if attached:
        getattr(engine, ATTRIBUTE).probe.finish()
    return {
        "fingerprint": actor.fingerprint(engine),
        "losses": [float(loss) for output in outputs for loss in output["loss"]],
        "norms": [output["metrics"].get("grad_norm") for output in outputs],
    }


def clipped(model: str, **settings: Any) -> dict[str, Any]:
    """Updates under clip_v: what the reports count, and which log-probs really got no gradient."""
    engine = actor.engine_of(model, attached=False, **settings)
    transport = InMemoryTransport()
    attach(engine, control=CLIP, transport=transport)
    attachment, behind, apart = getattr(engine, ATTRIBUTE), list[torch.Tensor](), [0.0]
    theirs = engine.prepare_model_outputs

    def prepare_model_outputs(**kwargs: Any) -> Any:
        output = theirs(**kwargs)
        if attachment._held:
            own = output["log_probs"]
            difference = own.values() - attachment._held[-1].logprobs
            difference[own.offsets()[1:] - 1] = 0.0  # no token follows there
            apart.append(float(difference.abs().max()))
        if output["log_probs"].requires_grad:
            output["log_probs"].register_hook(
                lambda gradient: behind.append(gradient.values().clone())
            )
        return output

    engine.prepare_model_outputs = prepare_model_outputs
    outputs = [actor.update(engine, seed, temperature=TEMPERATURE) for seed in range(3)]
    pushed = [0, 0, 0]
    for number, gradient in enumerate(behind):
        pushed[number // 2] += int((gradient != 0).sum())
    found = {"apart": max(apart), "with_gradient": pushed}
    if torch.distributed.get_rank():
        return found  # rank 0 reports for all
    advantages = actor.batch_of(0)["advantages"].values().repeat(engine.get_data_parallel_size())
    scalars = [message.scalars for message in transport.messages]  # type: ignore[union-attr]
    return found | {
        "tokens": [scalar["token/count"] for scalar in scalars],
        "clipped_positive": [
            scalar["clip/fraction_positive"] * int((advantages > 0).sum()) for scalar in scalars
        ],
        "clipped_negative": [
            scalar["clip/fraction_negative"] * int((advantages < 0).sum()) for scalar in scalars
        ],
        "moved_by_the_loss": int((advantages != 0).sum()),
        "losses": [float(loss) for loss in outputs[0]["loss"]],
        "norms": [output["metrics"]["grad_norm"] for output in outputs],
        "measured": {
            name: value
            for name, value in scalars[0].items()
            if not name.startswith(("probe/", "system/", "time/"))
        },
        "observed": [scalar["entropy/observed_change"] for scalar in scalars],
        "reward": [scalar["reward/mean"] for scalar in scalars],
        "groups": [scalar["group/count"] for scalar in scalars],
        "shown": sorted(name for name in outputs[-1]["metrics"] if name.startswith("isentrope/")),
    }


def coupled(model: str, coupling: Any, **settings: Any) -> dict[str, Any]:
    """Updates with a coupled prediction."""
    engine, transport, said = (
        actor.engine_of(model, attached=False, **settings),
        InMemoryTransport(),
        list[str](),
    )
    isentrope_log, handler = logging.getLogger("isentrope"), logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    isentrope_log.addHandler(handler)
    os.environ["ISENTROPE_COUPLING"] = coupling
    probe = attach(engine, transport=transport)
    del os.environ["ISENTROPE_COUPLING"]
    for seed in range(3):
        actor.update(engine, seed, temperature=TEMPERATURE)
    probe.finish()
    isentrope_log.removeHandler(handler)
    sent = [message for message in transport.messages if isinstance(message, StepReport)]
    return {
        "fingerprint": actor.fingerprint(engine),
        "basis": [message.labels["entropy/prediction_basis"] for message in sent],
        "predicted": [message.scalars.get("entropy/predicted_change") for message in sent],
        "observed": [message.scalars.get("entropy/observed_change") for message in sent],
        "refused": [line for line in said if "No coupled prediction" in line],
    }


def resumed(model: str, folder: Path) -> int | None:
    """The step that an engine closes after it has loaded another one's checkpoint."""
    first, second = (actor.engine_of(model, remove_padding=False, attached=False) for _ in range(2))
    attach(first, transport=InMemoryTransport())
    probe = attach(second, transport=InMemoryTransport())
    for seed in range(2):
        actor.update(first, seed)
    first.save_checkpoint(str(folder), global_step=2)
    second.load_checkpoint(str(folder), del_local_after_load=False)
    actor.update(second, 2)
    return probe.last_step


def tracked() -> dict[str, Any]:
    tracking = Tracking("maths", "tracked", ["console", "isentrope"], {"trainer": {}})
    probe = tracking.logger["isentrope"]._probe
    tracking.log({"critic/rewards/mean": 0.5}, step=1)
    tracking.finish()
    return {"reward": probe.latest.scalars["reward/mean"], "name": probe.config.name}


def compared(model: str, temperature: Any = TEMPERATURE, **settings: Any) -> list[dict[str, Any]]:
    return [trained(model, temperature, attached, **settings) for attached in (False, True)]


def alone(model: str, tied: str, folder: Path) -> dict[str, Any]:
    padding = [{"remove_padding": False}, {"remove_padding": True}]
    return {
        "clipped": [clipped(model, **setting) for setting in padding],
        "unfused": [clipped(tied, **setting) for setting in padding],
        "coupled": [
            *[coupled(model, "model", **setting) for setting in padding],
            coupled(model, "last_block", remove_padding=False),
            coupled(model, "model", remove_padding=False, strategy="fsdp"),
        ],
        "resumed": resumed(model, folder),
        "tracked": tracked(),
        "pairs": [
            *[
                compared(model, at, **setting)
                for setting in padding
                for at in (TEMPERATURE, TEMPERATURES)
            ],
            *[compared(tied, fused=True, **setting) for setting in padding],
            compared(tied, remove_padding=True, fused=True, precision="bf16"),
        ],
        "fused": [clipped(tied, fused=True, **setting) for setting in padding],
    }


def together(model: str, tied: str) -> dict[str, Any]:
    split = {"ulysses_sequence_parallel_size": 2}
    cases: dict[str, tuple[str, dict[str, Any]]] = {
        "fsdp-lora": (model, {"strategy": "fsdp", "lora_rank": 4}),
        "ulysses": (model, split),
        "ulysses-fsdp-fused": (model, {"strategy": "fsdp", "fused": True, **split}),
        "fused": (tied, {"fused": True}),
    }
    return {
        name: {
            "pair": compared(path, remove_padding=True, **settings),
            "clipped": clipped(path, remove_padding=True, **settings),
        }
        for name, (path, settings) in cases.items()
    }


if __name__ == "__main__":
    kind, model, *folder = sys.argv[1:]
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    tied = f"{model}-tied"
    if torch.distributed.get_rank() == 0:
        actor.save_model(model)
        actor.save_model(tied, tied=True)
    torch.distributed.barrier()
    results = together(model, tied) if kind == "together" else alone(model, tied, Path(folder[0]))
    print("RESULTS", json.dumps(results), flush=True)
