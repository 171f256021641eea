"""A loop of one's own on a real DeepSpeed engine, on CPUs: what each rank of it gives back, for tests."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

import isentrope
from isentrope.integrations.deepspeed import step
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
        self.body, self.lm_head = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

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
    rates: list[float] = field(default_factory=list)
    """What the engine made each update with."""
    norms: list[float] = field(default_factory=list)
    shape_outside: list[int] = field(default_factory=list)
    """Of the head's weight, between two forward passes."""


def engine_of(stage: int) -> Any:
    import deepspeed

    torch.manual_seed(0)
    policy = Policy().bfloat16()
    return deepspeed.initialize(
        model=policy,
        model_parameters=policy.parameters(),
        dist_init_required=False,
        config={
            "train_micro_batch_size_per_gpu": 4,
            "gradient_accumulation_steps": MICRO_BATCHES,
            "gradient_clipping": 0.05,
            "bf16": {"enabled": True},
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "betas": [0.8, 0.99], "torch_adam": True}},
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
        },
    )[0]


def train(rank: int, packages: str, stage: int, mode: str) -> Run:
    """Modes: `alone` without a probe, `watched` under none, `pushed` with a clip pushed live, `hidden` scores hidden states."""
    if packages not in sys.path:
        sys.path.append(packages)
        os.environ.update(
            DS_ACCELERATOR="cpu",
            LOCAL_RANK=str(rank),
            TORCH_EXTENSIONS_DIR=f"{packages}/extensions",
            CC="gcc",
            CXX="g++",
        )
        os.environ["PATH"] = f"{packages}/bin:{os.environ['PATH']}"
    import deepspeed

    if not deepspeed.comm.is_initialized():
        deepspeed.init_distributed("gloo", auto_mpi_discovery=False)
    engine, transport = engine_of(stage), InMemoryTransport()
    probe = None if mode == "alone" else isentrope.Probe("deepspeed", transport=transport)
    run = Run(torch.empty(0))
    torch.manual_seed(1 + rank)
    gradients: list[Tensor] = []
    for _ in range(UPDATES * MICRO_BATCHES):
        states, ids = torch.randint(VOCABULARY, (2, 4, 6))
        advantages = torch.tensor([1.0, -1.0, 0.5, -0.5])
        hidden, logits = engine(states)
        own = logits.float().log_softmax(-1).gather(-1, ids.unsqueeze(-1)).squeeze(-1)
        if probe is not None:
            own.register_hook(gradients.append)
            if mode == "hidden":
                weight = engine.module.lm_head.weight
                run.shape_outside = list(weight.shape)
                with deepspeed.zero.GatheredParameters([weight], enabled=stage == 3), torch.no_grad():
                    scores = probe.score_hidden(hidden.detach(), weight, ids)
            else:
                scores = probe.score(logits.detach(), ids)
            own = probe.gate(scores, advantages, logprobs=own)
        loss = -(own * advantages.unsqueeze(-1)).mean()
        engine.backward(loss)
        run.losses.append(loss.item())
        rate = engine.get_lr()[0]
        if probe is None:
            engine.step()
        elif step(engine, probe):
            run.gated.append(sum(int((gradient == 0).sum()) for gradient in gradients))
            run.rates.append(rate)
            run.norms.append(float(engine.get_global_grad_norm()))
            gradients.clear()
            if mode == "pushed" and engine.global_steps == PUSHED_IN and rank == 0:
                transport.set_control(pushed(1, CLIP))
    with deepspeed.zero.GatheredParameters(list(engine.module.parameters()), enabled=stage == 3):
        run.weights = torch.cat([parameter.detach().float().flatten() for parameter in engine.module.parameters()])
    if probe is not None:
        probe.finish()  # waits for the other rank's numbers of the last step
    run.reports = reports(transport)
    engine.destroy()
    return run
