"""A tiny policy trained by several ranks under DDP, FSDP2 or accelerate, watched or not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import isentrope
from isentrope_wire.reports import StepReport
from tests.probe.ranks.loops import TOKENS, VOCABULARY, probe_of
from tests.probe.tiny_loop import reports

ROWS = (5, 0, 7)
"""Sequences of each rank; the second has none: it takes part in the passes of a sharded model, and
gates nothing."""


@dataclass(frozen=True, slots=True)
class Training:
    weights: Tensor
    reports: list[StepReport]


def train(
    rank: int, wrapper: str, attached: str, control: isentrope.Control | None = None
) -> Training:
    """Four updates of len(ROWS) ranks.

    Args:
        wrapper: ddp, fsdp or accelerate.
        attached: no; observe: the loop keeps its own log-probs; gate: it takes the probe's;
            coupled: as observe, and the probe takes the entropy's gradient and moves whole weights
                along it.
    """
    size = len(ROWS)
    torch.manual_seed(0)
    policy = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, VOCABULARY))
    model, optimizer, backward = wrapped(policy, wrapper)
    settings = {"coupling": "model", "influence_every": 1} if attached == "coupled" else {}
    probe, transport = (
        probe_of(rank, control=control, **settings) if attached != "no" else (None, None)
    )
    for step in range(4):
        states, token_ids, advantages, mask = batch_of(rank, step)
        # Whatever the rank holds counts against the tokens of all ranks.
        all_tokens = sum(int(batch_of(r, step)[3].sum()) for r in range(size))
        logits = model(states)
        own = logits.log_softmax(-1).gather(-1, token_ids.unsqueeze(-1)).squeeze(-1)
        if probe is not None and len(token_ids):
            scores = probe.score(logits, token_ids)
            gated = probe.gate(scores, advantages, mask)
            own = gated if attached == "gate" else own
        loss = -(own * advantages.unsqueeze(1) * mask).sum() * size / all_tokens
        optimizer.zero_grad()
        backward(loss)
        optimizer.step()
        if probe is not None:
            probe.step(step, optimizer, lambda s=states, i=token_ids: probe.score(model(s), i))  # type: ignore[misc]
    if probe is not None:
        probe.finish()
    return Training(weights_of(model), reports(transport) if transport else [])


def batch_of(rank: int, step: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(100 * step + rank)
    rows = ROWS[rank]
    return (
        torch.randn(rows, TOKENS, 8, generator=g),
        torch.randint(0, VOCABULARY, (rows, TOKENS), generator=g),
        torch.randn(rows, generator=g),
        torch.rand(rows, TOKENS, generator=g) < 0.8,
    )


def wrapped(policy: nn.Module, wrapper: str) -> tuple[Any, torch.optim.Optimizer, Any]:
    if wrapper == "ddp":
        policy = DistributedDataParallel(policy)
    if wrapper == "fsdp":
        fully_shard(policy)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-2)
    if wrapper == "accelerate":
        from accelerate import Accelerator

        accelerator = Accelerator(cpu=True)
        policy, optimizer = accelerator.prepare(policy, optimizer)
        return policy, optimizer, accelerator.backward
    return policy, optimizer, lambda loss: loss.backward()


def weights_of(model: nn.Module) -> Tensor:
    parameters = [p.full_tensor() if isinstance(p, DTensor) else p for p in model.parameters()]
    return torch.cat([parameter.detach().flatten() for parameter in parameters])
