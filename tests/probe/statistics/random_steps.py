"""Prints what random steps are reported as, with all their digits; run by this commit's code and by another's."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from isentrope.distributed import Gathered
from isentrope.scores import TokenScores, token_scores
from isentrope.statistics import global_step
from isentrope.statistics.global_step import ADDITIVE_FROM, failed_rank_vector, rank_vector
from isentrope.statistics.tokens import TokenBatch
from isentrope.step_report import ClosedStep, ReportBuilder
from isentrope_wire.control import Control
from isentrope_wire.reports import ControlSnapshot

CONTROLS = (Control(), Control(method="clip_v", mu_low=1.0), Control(method="unlikely"))


def random_batch(g: torch.Generator, rows: int, kind: int) -> TokenBatch:
    tokens = int(torch.randint(1, 12, (), generator=g))
    logits = torch.randn(rows, tokens, 30, generator=g) * 2
    token_ids = torch.randint(0, 30, (rows, tokens), generator=g)
    shape = (rows, tokens)

    def uniform() -> Tensor:
        return torch.rand(shape, generator=g)

    def one_in(n: int) -> bool:
        return not int(torch.randint(0, n, (), generator=g))

    mask = uniform() < (0.8 if kind != 5 else -1.0)
    scores = token_scores(logits, token_ids)
    if one_in(2):
        poison = torch.where(uniform() < 0.05, torch.nan, 0.0)
        scores = TokenScores(*(getattr(scores, name) + poison for name in TokenScores.__slots__))
    advantages = torch.randint(-1, 2, shape, generator=g) * (uniform() if one_in(2) else 1.0)
    batch = TokenBatch(scores, advantages, mask, mask, uniform() + 0.5 if kind != 1 else None)
    if kind in (2, 3):
        keep = uniform() < 0.7
        batch = replace(batch, keep_mask=keep, threshold_source="micro_batch", candidates=uniform() < 0.5)
        if kind == 3:
            batch = replace(batch, gradient_factors=torch.where(keep, 1 + uniform(), 0.0))
    if one_in(2):
        batch = replace(batch, loss_weights=(uniform() < 0.6).float(), kl_strengths=uniform() - 0.5)
    if one_in(2):
        batch = replace(batch, token_ids=token_ids)
    if one_in(2):
        batch = replace(batch, group_ids=torch.randint(-2, 4, (rows,), generator=g).double())
    return batch


def thresholds_of(parts: Tensor) -> Any:
    code: Any = global_step
    return code.ThresholdStatistics.of_sums(parts)


def random_step(seed: int) -> None:
    g = torch.Generator().manual_seed(seed)

    def below(n: int) -> int:
        return int(torch.randint(0, n, (), generator=g))

    ranks, kind, control = 1 + seed % 4, below(6), CONTROLS[below(3)]
    alone = ranks == 1 and below(2) == 0
    thresholds = thresholds_of(torch.rand(2, 6, generator=g, dtype=torch.float64) + 0.1)
    centre = None if alone or below(2) else (torch.tensor(-1.5, dtype=torch.float64), torch.tensor(0.1).double())
    vectors = []
    for rank in range(ranks):
        batches = [random_batch(g, below(9), kind) for _ in range(below(4))]
        after = (
            [b.scores.entropies - 0.1 * torch.rand(b.mask.shape, generator=g) for b in batches] if seed % 2 else None
        )
        if rank == 3 and below(2):
            vectors.append(failed_rank_vector(2, None, alone=False))
            continue
        given = thresholds if below(2) else None
        vectors.append(rank_vector(seed, rank, batches, after, None, given, alone=alone, centre=centre))
    rows = torch.stack(vectors)
    print(*columns(rows))
    closed = ClosedStep(
        step=seed,
        measured=Gathered(rows).numbers_later(ADDITIVE_FROM),
        active=ControlSnapshot(version=1, control=control, author="a", requested_at=0.0),
        control=control,
        momentum=0.9,
        what_if_source="micro_batch",
    )
    build = ReportBuilder().report_of(closed)
    report = build()
    print(dict(sorted(report.scalars.items())), sorted(report.labels.items()))
    print(report.histograms, report.tokens, report.what_if, report.alerts)


def columns(rows: Tensor) -> list[list[float]]:
    """What the next step counts its thresholds and centres from, by either code."""
    code: Any = global_step
    if hasattr(code, "THRESHOLD_COLUMNS"):
        return [rows[:, code.THRESHOLD_COLUMNS].tolist(), rows[:, code.MEANS_COLUMNS].tolist()]
    return [code.threshold_moments(rows).tolist(), code.centre_moments(rows)[:, :3].tolist()]


if __name__ == "__main__":
    torch.set_num_threads(1)
    for seed in range(300):
        random_step(seed)
