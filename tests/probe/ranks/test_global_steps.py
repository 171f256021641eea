"""Several ranks make one step: its numbers and its keep-masks are those of one process that holds
all tokens."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import isentrope
from isentrope.statistics.histogram import BIN_RATIO
from isentrope_wire.methods import threshold_methods
from isentrope_wire.metrics import COVARIANCE_TOP
from isentrope_wire.reports import StepReport
from tests.probe.ranks.gang import one_after_another, run_ranks
from tests.probe.ranks.loops import VOCABULARY, RankResult, sharded_step, steps_on_rank
from tests.probe.tiny_loop import of_the_machine

UNEVEN = [[slice(0, 3), slice(3, 7)], [slice(7, 12)]]
ONE_WITHOUT_TOKENS = [[slice(0, 3), slice(3, 7)], [], [slice(7, 12)]]
WHOLE = [[slice(0, 12)]]
OWN = {"probe/dropped_reports"}
CLIPS = [
    isentrope.Control(method="clip_b", mu_low=0.7, mu_high=0.7),
    isentrope.Control(method="clip_v", mu_low=0.5, mu_high=0.5),
]


def measured(report: StepReport) -> dict[str, float]:
    # Of several ranks the top shares come from bins, see below.
    return {
        n: value
        for n, value in report.scalars.items()
        if n not in OWN and not of_the_machine(n) and not n.startswith("covariance/top_")
    }


def kept(results: list[RankResult], step: int) -> torch.Tensor:
    return torch.cat([rows for result in results for rows in result.kept[step]])


FROM_STEP_BEFORE = {"threshold_source": "previous_step"}
"""By default a single process counts from a micro-batch that is the whole step."""
Calls = dict[str, tuple[list[RankResult], RankResult]]


def on_all_and_on_one(shares: list[list[slice]], calls: dict[str, tuple[Any, ...]]) -> Calls:
    """Each call made by several ranks, and by one process that holds all tokens."""
    of_ranks = run_ranks(
        len(shares), one_after_another, steps_on_rank, [(shares, *call) for call in calls.values()]
    )
    return {
        name: ([of_rank[index] for of_rank in of_ranks], steps_on_rank(0, WHOLE, *call))
        for index, (name, call) in enumerate(calls.items())
    }


@pytest.fixture(scope="module")
def uneven() -> Calls:
    return on_all_and_on_one(UNEVEN, {"observed": (3, False, None, FROM_STEP_BEFORE)})


@pytest.fixture(scope="module")
def one_without_tokens() -> Calls:
    clipped = {
        f"{control.method} {source}": (
            3,
            source == "first_pass",
            None,
            {"control": control, "threshold_source": source},
        )
        for control in CLIPS
        for source in ("previous_step", "first_pass")
    }
    return on_all_and_on_one(
        ONE_WITHOUT_TOKENS, {"observed": (3, False, None, FROM_STEP_BEFORE), **clipped}
    )


@pytest.mark.parametrize("shares", ["uneven", "one_without_tokens"])
def test_rank_0_reports_what_one_process_with_all_tokens_would(
    shares: str, request: pytest.FixtureRequest
) -> None:
    several, one = request.getfixturevalue(shares)["observed"]
    for of_ranks, of_one in zip(several[0].reports, one.reports, strict=True):
        assert measured(of_ranks) == pytest.approx(measured(of_one), rel=1e-6, abs=1e-12)
        assert of_ranks.histograms == of_one.histograms
        assert "entropy/observed_change" in of_ranks.scalars
        # In the very first step the bins lie about each rank's own means, and these are of a few
        # tokens.
        allowed = 0.2 if of_ranks.step == 0 else BIN_RATIO - 1
        for name in COVARIANCE_TOP:
            assert of_ranks.scalars[name] == pytest.approx(of_one.scalars[name], rel=allowed)
        assert of_ranks.scalars["covariance/top_100"] == pytest.approx(
            of_one.scalars["covariance/top_100"], rel=1e-9
        )
    # The very first step's thresholds would have been each rank's own; from then on all ranks count
    # from one sigma.
    assert several[0].reports[0].labels["what_if/source"] == "micro_batch"
    for of_ranks, of_one in zip(several[0].reports[1:], one.reports[1:], strict=True):
        assert of_ranks.labels["what_if/source"] == "previous_step"
        assert of_ranks.what_if is not None
        assert of_one.what_if is not None
        assert of_ranks.what_if.tokens == of_one.what_if.tokens
        for method, expected in of_one.what_if.by_method.items():
            bins = of_ranks.what_if.by_method[method]
            if method not in threshold_methods():
                # One process counts covariances about its own means, several about those of the
                # step before.
                assert sum(bins.counts) == pytest.approx(sum(expected.counts), rel=0.25)
                continue
            assert (bins.cells, bins.counts) == (expected.cells, expected.counts)
            assert bins.change_sums == pytest.approx(expected.change_sums, rel=1e-6, abs=1e-6)
    # There is one truth: the other ranks say nothing of the step but what is their own.
    for result in several[1:]:
        for report in result.reports:
            assert {name for name in report.scalars if not of_the_machine(name)} <= OWN
            assert report.histograms == ()
            assert report.what_if is None
    assert len({result.run_id for result in several}) == 1


@pytest.mark.parametrize("method", ["clip_b", "clip_v"])
@pytest.mark.parametrize("source", ["previous_step", "first_pass"])
def test_all_ranks_keep_the_tokens_that_one_process_would(
    method: str, source: str, one_without_tokens: Calls
) -> None:
    several, one = one_without_tokens[f"{method} {source}"]
    # The very first step has no step before it: its thresholds are each micro-batch's own, and
    # differ.
    for step in range(0 if source == "first_pass" else 1, 3):
        assert torch.equal(kept(several, step), kept([one], step))
        assert 0 < several[0].reports[step].scalars["clip/fraction"] < 1
        assert several[0].reports[step].labels["threshold/source"] == source
    if source == "previous_step":
        assert several[0].reports[0].labels["threshold/source"] == "micro_batch"
    # Bit for bit.
    assert several[0].thresholds == several[1].thresholds == several[2].thresholds
    assert [name for name, _ in several[0].thresholds] == [source] * 3
    for (_, of_ranks), (_, of_one) in zip(several[0].thresholds, one.thresholds, strict=True):
        assert of_ranks == pytest.approx(of_one, rel=1e-12)
        assert not any(math.isnan(number) for number in of_ranks)


def test_a_step_without_tokens_on_any_rank_reports_no_measurement() -> None:
    shares: list[list[slice]] = [[], []]
    results = run_ranks(2, steps_on_rank, shares, 2, False, None, {"control": CLIPS[0]})
    for report in results[0].reports:
        assert measured(report) == {}
        assert "threshold/source" not in report.labels


def test_a_vocabulary_split_over_ranks_is_measured_and_gated_as_a_whole() -> None:
    """Both ranks hold the same tokens, and one of them counts."""
    (left, reports), (right, _) = run_ranks(2, sharded_step, [slice(0, 7), slice(7, VOCABULARY)])
    ((gradient, (expected,)),) = run_ranks(1, sharded_step, [slice(0, VOCABULARY)])
    torch.testing.assert_close(torch.cat([left, right], -1), gradient, rtol=0, atol=1e-6)
    assert measured(reports[0]) == pytest.approx(measured(expected), rel=1e-5, abs=1e-9)
    assert 0 < expected.scalars["clip/fraction"] < 1
