"""Loops of one's own on a real DeepSpeed engine, also under accelerate, on CPUs: what each rank
gives back, for tests."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

import isentrope
from isentrope.integrations.deepspeed import engine_step
from isentrope.probe import Probe
from isentrope.transport.transport import InMemoryTransport
from isentrope_wire.reports import StepReport
from tests.probe.tiny_loop import CLIP, pushed, reports

VOCABULARY, WIDTH, MICRO_BATCHES, UPDATES = 24, 16, 2, 4
PUSHED_IN = 2
"""The update whose report comes before the first one under a control that was pushed live."""


class Policy(nn.Module):
    """An embedding and a head, whose hidden states and logits are both to be had."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.lm_head = (
            nn.Embedding(VOCABULARY, WIDTH),
            nn.Linear(WIDTH, VOCABULARY, bias=False),
        )

    def forward(self, states: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.body(states)
        return hidden, self.lm_head(hidden)


@dataclass
class Run:
    """What one rank has seen of one run."""

    weights: Tensor
    losses: list[float] = field(default_factory=list)
    reports: list[StepReport] = field(default_factory=list)
    gated: list[int] = field(default_factory=list)
    """Of each update: tokens whose gradient did not reach the policy."""
    norms: list[float] = field(default_factory=list)
    shape_outside: list[int] = field(default_factory=list)
    """Of the head's weight, between two forward passes."""


def config_of(stage: int) -> dict[str, Any]:
    return {
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": MICRO_BATCHES,
        "gradient_clipping": 0.05,
        "bf16": {"enabled": True},
        "optimizer": {
            "type": "AdamW",
            "params": {"lr": 1e-2, "betas": [0.8, 0.99], "torch_adam": True},
        },
        "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 4, "warmup_max_lr": 1e-2}},
        "zero_optimization": {
            "stage": stage,
            "overlap_comm": False,
            # A tiny policy would stay whole.
            "stage3_param_persistence_threshold": 0,
            "stage3_max_live_parameters": 0,
            "stage3_max_reuse_distance": 0,
        },
        "steps_per_print": 1000,
    }


def call(rank: int, work: Callable[..., Run], *arguments: Any) -> Run:
    """For `one_after_another`: calls of several functions."""
    return work(rank, *arguments)


def engine_of(stage: int) -> Any:
    import deepspeed

    torch.manual_seed(0)
    policy = Policy().bfloat16()
    return deepspeed.initialize(
        model=policy,
        model_parameters=policy.parameters(),
        dist_init_required=False,
        config=config_of(stage),
    )[0]


def begin(rank: int, packages: str) -> Any:
    """Let DeepSpeed be imported from its folder, and run on the process group that there is."""
    if packages not in sys.path:
        sys.path.append(packages)
        os.environ.update(DS_ACCELERATOR="cpu", LOCAL_RANK=str(rank))
    import deepspeed
    from deepspeed.comm import torch as comm

    comm.build_shm_op = lambda: None  # built from C++: a minute

    if not deepspeed.comm.is_initialized():
        deepspeed.init_distributed("gloo", auto_mpi_discovery=False)
    return deepspeed


def batch() -> tuple[Tensor, Tensor, Tensor]:
    """States, sampled ids and advantages of a micro-batch."""
    states, ids = torch.randint(VOCABULARY, (2, 4, 6))
    return states, ids, torch.tensor([1.0, -1.0, 0.5, -0.5])


def logprobs_of(logits: Tensor, ids: Tensor) -> Tensor:
    return logits.float().log_softmax(-1).gather(-1, ids.unsqueeze(-1)).squeeze(-1)


def weights_of(deepspeed: Any, engine: Any, stage: int) -> Tensor:
    with deepspeed.zero.GatheredParameters(list(engine.module.parameters()), enabled=stage == 3):
        return torch.cat(
            [parameter.detach().float().flatten() for parameter in engine.module.parameters()]
        )


def train(rank: int, packages: str, stage: int, mode: str) -> Run:
    """Modes: `alone` without a probe, `watched` under none, `pushed` with a clip pushed live,
    `hidden` scores hidden states."""
    deepspeed = begin(rank, packages)
    engine, transport = engine_of(stage), InMemoryTransport()
    probe = None if mode == "alone" else isentrope.Probe("deepspeed", transport=transport)
    run = Run(torch.empty(0))
    torch.manual_seed(1 + rank)
    gradients: list[Tensor] = []
    for _ in range(UPDATES * MICRO_BATCHES):
        states, ids, advantages = batch()
        hidden, logits = engine(states)
        own = logprobs_of(logits, ids)
        if probe is not None:
            own.register_hook(gradients.append)
            if mode == "hidden":
                weight = engine.module.lm_head.weight
                run.shape_outside = list(weight.shape)
                with (
                    deepspeed.zero.GatheredParameters([weight], enabled=stage == 3),
                    torch.no_grad(),
                ):
                    scores = probe.score_hidden(hidden.detach(), weight, ids)
            else:
                scores = probe.score(logits.detach(), ids)
            own = probe.gate(scores, advantages, logprobs=own)
        loss = -(own * advantages.unsqueeze(-1)).mean()
        engine.backward(loss)
        run.losses.append(loss.item())
        if probe is None:
            engine.step()
        elif engine_step(engine, probe):
            run.gated.append(sum(int((gradient == 0).sum()) for gradient in gradients))
            run.norms.append(float(engine.get_global_grad_norm()))
            gradients.clear()
            if mode == "pushed" and engine.global_steps == PUSHED_IN and rank == 0:
                transport.set_control(pushed(1, CLIP))
    run.weights = weights_of(deepspeed, engine, stage)
    if probe is not None:
        probe.finish()  # waits for the other rank's numbers of the last step
    run.reports = reports(transport)
    engine.destroy()
    return run


def train_in_parts(
    rank: int, packages: str, stage: int, saving: str, loading: str, folder: str, *parts: int
) -> Run:
    """The loop of `train` with so many updates in each part, continued by the lines of the guide
    from the part before."""
    deepspeed = begin(rank, packages)
    os.environ["ISENTROPE_RUN_ID"] = "continued"
    run = Run(torch.empty(0))
    for part, updates in enumerate(parts):
        engine, transport = engine_of(stage), InMemoryTransport()
        probe = isentrope.Probe("deepspeed", transport=transport)
        if part:
            exec(loading, {"engine": engine, "probe": probe, "folder": folder})  # noqa: S102  # our own page
        for index in range(updates * MICRO_BATCHES):
            torch.manual_seed(100 * engine.global_steps + 10 * (index % MICRO_BATCHES) + rank)
            states, ids, advantages = batch()
            _, logits = engine(states)
            own = probe.gate(
                probe.score(logits.detach(), ids), advantages, logprobs=logprobs_of(logits, ids)
            )
            engine.backward(-(own * advantages.unsqueeze(-1)).mean())
            if engine_step(engine, probe) and engine.global_steps == 1 and rank == 0:
                transport.set_control(pushed(1, CLIP))
        exec(saving, {"engine": engine, "probe": probe, "folder": folder})  # noqa: S102
        run.weights = weights_of(deepspeed, engine, stage)
        probe.finish()
        run.reports += reports(transport)
        engine.destroy()
    return run


def train_under_accelerate(rank: int, packages: str, lines: str, mode: str, folder: str) -> Run:
    """The lines of the guide around two updates, a checkpoint of accelerate's, and two more; modes
    as of `train`."""
    begin(rank, packages)
    from accelerate.state import AcceleratorState

    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(torch.distributed.get_world_size())}
    gradients: list[Tensor] = []
    transport = InMemoryTransport()
    isentrope.Probe = functools.partial(Probe, transport=transport)  # type: ignore[assignment, misc]

    def batches() -> Iterator[dict[str, Tensor]]:
        torch.manual_seed(1 + rank)
        for index in range(UPDATES * MICRO_BATCHES):
            if mode == "pushed" and rank == 0 and index == PUSHED_IN * MICRO_BATCHES:
                transport.set_control(pushed(1, CLIP))
            states, ids, advantages = batch()
            yield {
                "states": states,
                "tokens": ids,
                "advantages": advantages,
                "mask": torch.ones_like(ids).bool(),
            }

    def watched_logprobs_of(logits: Tensor, ids: Tensor) -> Tensor:
        own = logprobs_of(logits, ids)
        own.register_hook(gradients.append)
        return own

    def loss_of(logprobs: Tensor, batch: dict[str, Tensor]) -> Tensor:
        run.losses.append((loss := -(logprobs * batch["advantages"].unsqueeze(-1)).mean()).item())
        return loss

    torch.manual_seed(0)
    policy, run = Policy(), Run(torch.empty(0))
    config = {
        name: value
        for name, value in config_of(2).items()
        if name not in ("optimizer", "scheduler")
    }
    loop: dict[str, Any] = {
        "model": policy,
        "optimizer": torch.optim.AdamW(policy.parameters(), lr=1e-2, betas=(0.8, 0.99)),
        "ds_config": config,
        "batches": batches(),
        "logprobs_of": watched_logprobs_of,
        "loss_of": loss_of,
    }
    exec(lines, loop)  # noqa: S102  # our own page
    engine, in_update = loop["engine"], len(gradients) // UPDATES
    run.weights = torch.cat(
        [parameter.detach().float().flatten() for parameter in engine.module.parameters()]
    )
    zeros = [int((gradient == 0).sum()) for gradient in gradients]
    run.gated = [sum(zeros[at : at + in_update]) for at in range(0, len(zeros), in_update)]
    run.reports = reports(transport)
    engine.destroy()
    AcceleratorState._reset_state(reset_partial_state=True)
    return run
