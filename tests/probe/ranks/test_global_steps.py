"""Several ranks make one step: its numbers are those of one process that holds all tokens."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import isentrope
from isentrope_wire.messages import StepReport
from tests.probe.ranks.gang import run_ranks
from tests.probe.ranks.loops import RankResult, steps_on_rank

UNEVEN = [[slice(0, 3), slice(3, 7)], [slice(7, 12)]]
ONE_WITHOUT_TOKENS = [[slice(0, 3), slice(3, 7)], [], [slice(7, 12)]]
WHOLE = [[slice(0, 12)]]
OWN = {"probe/seconds", "probe/rescore_seconds", "probe/dropped_reports"}
CLIPS = {
    "clip_b": isentrope.Control(method="clip_b", mu_low=0.7, mu_high=0.7),
    "clip_v": isentrope.Control(method="clip_v", mu_low=0.5, mu_high=0.5),
}


def global_scalars(report: StepReport) -> dict[str, float]:
    return {name: value for name, value in report.scalars.items() if name not in OWN}


def kept_rows(result: RankResult, step: int) -> torch.Tensor:
    return torch.cat(result.kept[step])


def run(shares: list[list[slice]], **settings: Any) -> list[RankResult]:
    if len(shares) == 1:
        return [steps_on_rank(0, shares, **settings)]
    return run_ranks(len(shares), steps_on_rank, shares, *settings.values())


@pytest.mark.parametrize("shares", [UNEVEN, ONE_WITHOUT_TOKENS], ids=["uneven", "one rank without tokens"])
def test_rank_0_reports_what_one_process_with_all_tokens_would(shares: list[list[slice]]) -> None:
    several = run_ranks(len(shares), steps_on_rank, shares)
    (one,) = run(WHOLE)
    for of_ranks, of_one in zip(several[0].reports, one.reports, strict=True):
        assert global_scalars(of_ranks) == pytest.approx(global_scalars(of_one), rel=1e-12, abs=1e-14)
        assert of_ranks.histograms == of_one.histograms
    assert [set(report.scalars) for result in several[1:] for report in result.reports] == [
        {"probe/seconds", "probe/dropped_reports"} | ({"probe/rescore_seconds"} if share else set())
        for share in shares[1:]
        for _ in range(3)
    ]
    assert len({result.run_id for result in several}) == 1
