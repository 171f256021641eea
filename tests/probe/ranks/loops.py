"""What a rank does in these tests: a share of one step's sequences, padded or packed, gated and
reported."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import isentrope
from isentrope.scores import token_scores
from isentrope.statistics.moments import threshold_statistics
from isentrope.transport.transport import InMemoryTransport
from isentrope_wire.reports import ControlSnapshot, StepReport
from tests.probe.tiny_loop import reports

VOCABULARY = 24
TOKENS = 6


@dataclass(frozen=True, slots=True)
class Sequences:
    """Logits [rows, TOKENS, VOCABULARY] and what belongs to them, the same on every rank."""

    logits: Tensor
    token_ids: Tensor
    advantages: Tensor
    mask: Tensor
    logits_after: Tensor

    @classmethod
    def of_step(cls, step: int, rows: int = 12) -> Sequences:
        g = torch.Generator().manual_seed(step)
        logits = torch.randn(rows, TOKENS, VOCABULARY, generator=g) * (2 + step)
        token_ids = torch.distributions.Categorical(
            logits=torch.randn(rows, TOKENS, VOCABULARY, generator=g)
        ).probs
        return cls(
            logits=logits,
            token_ids=token_ids.argmax(-1),
            advantages=torch.randn(rows, generator=g),
            mask=torch.rand(rows, TOKENS, generator=g) < 0.8,
            logits_after=logits + 0.1 * torch.randn(rows, TOKENS, VOCABULARY, generator=g),
        )

    def rows(self, rows: slice) -> Sequences:
        parts = (self.logits, self.token_ids, self.advantages, self.mask, self.logits_after)
        return Sequences(*(part[rows] for part in parts))


def probe_of(rank: int, **settings: Any) -> tuple[isentrope.Probe, InMemoryTransport]:
    transport = InMemoryTransport()
    return isentrope.Probe("ranks", transport=transport, **settings), transport


def gate(probe: isentrope.Probe, part: Sequences, ranks: int = 1) -> Tensor:
    """Which tokens were kept: gradient flows there and nowhere else.

    The loss is a sum over all tokens of the step; its gradients are averaged over the ranks, as DDP
    does."""
    logits = part.logits.clone().requires_grad_()
    scores = probe.score(logits, part.token_ids)
    gated = probe.gate(scores, part.advantages, part.mask)
    loss = -ranks * (part.advantages[:, None] * gated)[part.mask].sum()
    (gradient,) = torch.autograd.grad(loss, logits)
    return gradient.abs().sum(-1) > 0


def sharded_step(rank: int, columns_of: list[slice]) -> tuple[Tensor, list[StepReport]]:
    """A step whose vocabulary is split over the ranks: the gradient of this rank's slice, and what
    it reported."""
    control = isentrope.Control(method="clip_v", mu_low=0.5, mu_high=0.5)
    probe, transport = probe_of(rank, control=control, counts=rank == 0)
    part, columns = Sequences.of_step(0), columns_of[rank]
    start = columns.start
    shard = part.logits[..., columns].clone().requires_grad_()
    scores = probe.score_sharded(shard, part.token_ids, start=start, temperature=0.7)
    gated = probe.gate(scores, part.advantages, part.mask)
    (gradient,) = torch.autograd.grad(-(part.advantages[:, None] * gated)[part.mask].mean(), shard)

    def rescore() -> isentrope.TokenScores:
        return probe.score_sharded(
            part.logits_after[..., columns], part.token_ids, start=start, temperature=0.7
        )

    # Of ranks that average their gradients one counts.
    probe.step(0, rescore=rescore, loss_scale=1 / len(columns_of))
    probe.finish()
    return gradient, reports(transport)


@dataclass(frozen=True, slots=True)
class RankResult:
    """What one rank computed and reported."""

    kept: list[list[Tensor]]
    """Per step, per `gate` call."""
    thresholds: list[tuple[str, list[float]]]
    """Per step: where they would come from at its end, and the statistics to the last bit."""
    reports: list[StepReport]
    run_id: str


def steps_on_rank(
    rank: int,
    shares: list[list[slice]],
    steps: int = 3,
    first_passes: bool = False,
    pushed_to_rank_0: dict[int, ControlSnapshot] | None = None,
    settings: dict[str, Any] | None = None,
) -> RankResult:
    """Close some steps on one rank.

    Args:
        shares: for each rank the rows of its `gate` calls; an empty list for a rank without tokens.
        first_passes: give each step's rows to `first_pass` before they are gated.
        pushed_to_rank_0: controls that reach rank 0 while the step is open.
    """
    probe, transport = probe_of(rank, **(settings or {}))
    some_tokens = (
        token_scores(torch.zeros(1, VOCABULARY), torch.zeros(1, dtype=torch.long)),
        torch.ones(1) > 0,
    )
    kept: list[list[Tensor]] = []
    thresholds = []
    for step in range(steps):
        whole = Sequences.of_step(step)
        parts = [whole.rows(rows) for rows in shares[rank]]
        if first_passes:
            with torch.no_grad():
                probe.first_pass(
                    [probe.score(p.logits, p.token_ids) for p in parts], [p.mask for p in parts]
                )
        kept.append([gate(probe, part, len(shares)) for part in parts])
        if rank == 0 and pushed_to_rank_0 and step in pushed_to_rank_0:
            transport.set_control(pushed_to_rank_0[step])
        after = [(part.logits_after, part.token_ids) for part in parts]
        rescore = (lambda after=after: [probe.score(*part) for part in after]) if parts else None
        probe.step(step, rescore=rescore)
        source, statistics = probe._parts.basis.known(first_call=False)
        if statistics is None:
            statistics = threshold_statistics([some_tokens[0]], [some_tokens[1]])
        thresholds.append(
            (source, [getattr(statistics, name).item() for name in statistics.__slots__])
        )
    probe.finish()
    return RankResult(kept, thresholds, reports(transport), probe.run_id)
