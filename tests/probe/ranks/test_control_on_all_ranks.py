"""Rank 0 hears of a control; all ranks switch at the same step, and each says so."""

from __future__ import annotations

import time

import isentrope
from isentrope_wire.reports import OutcomeState
from tests.probe.ranks.gang import run_ranks
from tests.probe.ranks.loops import RankResult, steps_on_rank
from tests.probe.tiny_loop import CLIP, pushed

SHARES = [[slice(0, 3), slice(3, 7)], [], [slice(7, 12)]]


def outcomes(result: RankResult) -> list[tuple[int, OutcomeState, int | None]]:
    return [(o.version, o.state, o.step) for report in result.reports for o in report.outcomes]


def test_a_control_pushed_to_rank_0_is_in_force_on_all_ranks_from_the_same_step_on() -> None:
    # The second one is longer than the ranks' message: it travels one step later, on all of them.
    long = isentrope.Control(method="clip_b", mu_low=1.0, reason="x" * 9000)
    results = run_ranks(3, steps_on_rank, SHARES, 6, False, {1: pushed(1), 2: pushed(2, long)})
    for result in results:
        assert [report.control_version for report in result.reports] == [0, 0, 1, 1, 2, 2]
        assert outcomes(result) == [(1, OutcomeState.APPLIED, 2), (2, OutcomeState.APPLIED, 4)]
    fractions = [report.scalars["clip/fraction"] for report in results[0].reports]
    assert fractions[:2] == [0.0, 0.0]
    assert all(0 < fraction < 1 for fraction in fractions[2:])


def test_what_rank_0_finds_expired_or_superseded_all_ranks_refuse() -> None:
    wishes = {0: pushed(2, expires_at=time.time() - 1), 1: pushed(1)}
    results = run_ranks(3, steps_on_rank, SHARES, 3, False, wishes, {"control": CLIP})
    for result in results:
        assert outcomes(result) == [
            (2, OutcomeState.EXPIRED, None),
            (1, OutcomeState.SUPERSEDED, None),
        ]
        assert [report.control_version for report in result.reports] == [0, 0, 0]
    answered_at = [
        [o.at for report in result.reports for o in report.outcomes] for result in results
    ]
    assert answered_at[0] == answered_at[1] == answered_at[2]


def test_a_control_of_ranks_that_gate_nothing_is_rejected() -> None:
    shares: list[list[slice]] = [[], []]
    results = run_ranks(2, steps_on_rank, shares, 5, False, {0: pushed(1), 3: pushed(2)})
    first, second = map(outcomes, results)
    assert first == [(1, OutcomeState.REJECTED, None), (2, OutcomeState.REJECTED, None)]
    assert second == [(2, OutcomeState.REJECTED, None)]
    assert {report.control_version for result in results for report in result.reports} == {0}
