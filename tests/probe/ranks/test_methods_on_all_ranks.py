"""A method counts from the tokens of all ranks, and decides alike whoever holds a token."""

from __future__ import annotations

import pytest

import isentrope
from tests.probe.ranks.gang import one_after_another, run_ranks
from tests.probe.ranks.loops import RankResult, steps_on_rank

SHARES = [[slice(0, 3), slice(3, 7)], [], [slice(7, 12)]]
WHOLE = [[slice(0, 12)]]
CONTROLS = {
    # Nothing is drawn, so that the runs stay one run; who is a candidate depends on the means.
    "clip_cov": isentrope.Control(
        method="clip_cov", parameters={"ratio": 0, "omega_low": 0.05, "omega_high": 50}
    ),
    "score_sign": isentrope.Control(method="score_sign", scope="positive"),
    "unlikely": isentrope.Control(method="unlikely", parameters={"below": 1}),
    "drawn": isentrope.Control(method="clip_cov", parameters={"ratio": 0.1, "omega_low": 0}),
}

Results = dict[str, tuple[list[RankResult], RankResult]]


@pytest.fixture(scope="module")
def results() -> Results:
    # By default a single process counts from a micro-batch that is the whole step.
    source = {"threshold_source": "previous_step"}
    calls = {
        name: (4, False, None, {"control": control, **source}) for name, control in CONTROLS.items()
    }
    of_ranks = run_ranks(
        3, one_after_another, steps_on_rank, [(SHARES, *call) for call in calls.values()]
    )
    return {
        name: ([of_rank[index] for of_rank in of_ranks], steps_on_rank(0, WHOLE, *call))
        for index, (name, call) in enumerate(calls.items())
    }


@pytest.mark.parametrize("name", ["clip_cov", "score_sign", "unlikely"])
def test_rank_0_reports_what_one_process_with_all_tokens_would(results: Results, name: str) -> None:
    several, one = results[name]
    # In the first step the covariance is counted from each micro-batch's own means.
    first = 1 if name == "clip_cov" else 0
    for of_ranks, of_one in zip(several[0].reports[first:], one.reports[first:], strict=True):
        for metric in (
            "clip/candidate_fraction",
            "clip/fraction",
            "entropy/unit_predicted_change",
            "entropy/mean",
        ):
            assert of_ranks.scalars[metric] == pytest.approx(
                of_one.scalars[metric], rel=1e-5, abs=1e-9
            )
        assert 0 < of_ranks.scalars["clip/candidate_fraction"] < 1
        assert of_ranks.labels.get("control/dead") == of_one.labels.get("control/dead")


def test_each_rank_draws_among_its_own_tokens(results: Results) -> None:
    several, _ = results["drawn"]
    for report in several[0].reports[1:]:
        assert 0 < report.scalars["clip/fraction"] < report.scalars["clip/candidate_fraction"]
