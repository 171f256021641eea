"""A TRL run on two ranks, as torchrun starts them: DDP over gloo, one report per step."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import isentrope
from isentrope.integrations.trl import attach
from isentrope.transport.transport import InMemoryTransport
from isentrope_wire.reports import StepReport
from tests.probe.integrations import tiny_trl
from tests.probe.integrations.test_trl_control import GatedTokens
from tests.probe.ranks.gang import run_ranks

pytestmark = pytest.mark.slow

CLIP = isentrope.Control(method="clip_v", mu_low=0.5, mu_high=0.5)


@dataclass
class RankRun:
    run_id: str
    reports: list[StepReport]
    losses: list[float]
    parameters: Tensor
    tokens: list[int]
    """Per micro-batch of this rank."""
    gated: list[int]


MERGING = {"steps": 3, "gradient_accumulation_steps": 2, "control": CLIP, "head": "replace"}
ITERATING = {"steps": 3, "num_iterations": 2, "entropy_coef": 0.02}
RUNS: dict[str, dict[str, Any]] = {
    "grpo": MERGING,
    "rloo": {**MERGING, "kind": "rloo"},
    "alone": {**ITERATING, "head": None},
    "observed": {**ITERATING, "head": "observe"},
}


def train_on_rank(rank: int, folder: str) -> dict[str, RankRun]:
    """All runs, one after another: starting a rank takes longer than they do."""
    os.environ["CI"] = "1"
    return {name: one_run(Path(folder) / name, **settings) for name, settings in RUNS.items()}


def one_run(
    folder: Path, head: Any, control: isentrope.Control | None = None, **settings: Any
) -> RankRun:
    trainer, transport = tiny_trl.trainer(folder, **settings), InMemoryTransport()
    tokens, run_id = GatedTokens(trainer), ""
    if head is not None:
        run_id = attach(trainer, head=head, control=control, transport=transport).run_id
        tokens.watch_what_is_handed_on(trainer)
    trainer.train()
    return RankRun(
        run_id=run_id,
        reports=tiny_trl.reports(transport),
        losses=tiny_trl.losses(trainer),
        parameters=tiny_trl.parameters(trainer),
        tokens=[int(mask.sum()) for mask in tokens.masks],
        gated=[
            int((gated & mask).sum())
            for gated, mask in zip(tokens.gated, tokens.masks, strict=False)
        ],
    )


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, RankRun]]:
    return run_ranks(
        2, train_on_rank, str(tmp_path_factory.mktemp("ranks")), group=False, timeout_seconds=200
    )


@pytest.mark.parametrize("name", ["grpo", "rloo"])
def test_micro_batches_and_ranks_merge_into_one_step(
    ranks: list[dict[str, RankRun]], name: str
) -> None:
    runs = [rank[name] for rank in ranks]
    assert runs[0].run_id == runs[1].run_id
    assert [report.step for report in runs[0].reports] == [1, 2, 3]
    assert torch.equal(runs[0].parameters, runs[1].parameters)
    for index, report in enumerate(runs[0].reports):
        own = slice(2 * index, 2 * index + 2)
        tokens = sum(sum(run.tokens[own]) for run in runs)
        gated = sum(sum(run.gated[own]) for run in runs)
        assert report.scalars["token/count"] == tokens
        assert report.scalars["clip/fraction"] == pytest.approx(gated / tokens)
        assert "entropy/observed_change" in report.scalars
        assert "probe/attachment_failures" not in report.scalars
    # What is measured of the step is reported once, by rank 0.
    assert not any("entropy/mean" in report.scalars for report in runs[1].reports)


def test_observing_two_ranks_leaves_them_bit_identical(ranks: list[dict[str, RankRun]]) -> None:
    for rank in ranks:
        assert rank["observed"].losses == rank["alone"].losses
        assert torch.equal(rank["observed"].parameters, rank["alone"].parameters)
