"""The control state: every version requested gets one outcome, and the applied ones rise."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from isentrope.control import ControlState
from isentrope_wire.control import Control, Method
from isentrope_wire.reports import ControlSnapshot, OutcomeState

CAPABILITIES = ("method:none", "method:clip_v")


def snapshot(
    version: int, *, expires_at: float | None = None, method: Method = Method.CLIP_V
) -> ControlSnapshot:
    control = (
        Control(method=method, mu_low=float(version))
        if method in (Method.CLIP_V, Method.CLIP_B)
        else Control()
    )
    return ControlSnapshot(
        version=version, control=control, author="ada", requested_at=100.0, expires_at=expires_at
    )


def state() -> ControlState:
    return ControlState(snapshot(0, method=Method.NONE), CAPABILITIES)


UNREADABLE = replace(
    snapshot(2, method=Method.NONE), unreadable="method must be one of none; got 'newer'."
)


@pytest.mark.parametrize(
    ("asked", "end", "code", "words"),
    [
        (
            snapshot(2, method=Method.CLIP_B),
            OutcomeState.REJECTED,
            "capability_missing",
            "method:clip_b",
        ),
        (UNREADABLE, OutcomeState.REJECTED, "unreadable", "got 'newer'. Version 1 stays active."),
        (snapshot(2, expires_at=110.0), OutcomeState.EXPIRED, "time_to_live_over", "0.5 s"),
    ],
)
def test_a_control_that_cannot_act_leaves_the_old_one(
    asked: ControlSnapshot, end: OutcomeState, code: str, words: str
) -> None:
    control = state()
    control.decide(snapshot(1), now=100.0)
    (outcome,) = control.decide(asked, now=110.5)
    assert (outcome.version, outcome.state, outcome.code, outcome.step) == (2, end, code, None)
    assert words in outcome.message
    assert control.active.version == 1


def test_a_change_applied_in_time_stays_active_after_it_expires() -> None:
    control = state()
    control.decide(snapshot(1, expires_at=110.0), now=110.0)
    assert control.decide(snapshot(1, expires_at=110.0), now=500.0) == ()
    assert control.active.version == 1


def test_a_rejected_version_still_outranks_the_older_ones() -> None:
    control = state()
    control.decide(snapshot(2, method=Method.CLIP_B), now=100.0)
    (outcome,) = control.decide(snapshot(1), now=100.0)
    assert outcome.state is OutcomeState.SUPERSEDED
    assert control.active.version == 0


def test_in_any_order_applied_versions_rise_and_each_version_ends_once() -> None:
    for order in itertools.permutations([1, 2, 3, 4, 2, 3], 6):
        control = state()
        outcomes = [
            outcome
            for step, version in enumerate(order)
            for outcome in control.decide(snapshot(version), now=100.0)
        ]
        applied = [o.version for o in outcomes if o.state is OutcomeState.APPLIED]
        assert applied == sorted(set(applied))
        assert sorted(o.version for o in outcomes) == [1, 2, 3, 4]
        assert control.active.version == applied[-1] == 4


def test_a_decided_number_that_comes_with_another_document_is_rejected_once() -> None:
    control = state()
    control.decide(snapshot(1), now=100.0)
    another = replace(snapshot(1), control=Control(method=Method.CLIP_V, mu_low=7.0))
    (outcome,) = control.decide(another, now=101.0)
    assert (outcome.version, outcome.state, outcome.code) == (
        1,
        OutcomeState.REJECTED,
        "version_taken",
    )
    assert control.active == snapshot(1)
    assert control.decide(another, now=102.0) == ()
    assert control.decide(snapshot(1), now=103.0) == ()


def test_the_active_version_requested_again_by_another_author_has_no_outcome() -> None:
    control = state()
    control.decide(snapshot(1), now=100.0)
    again = replace(snapshot(1), author="bob", requested_at=150.0, expires_at=200.0)
    assert control.decide(again, now=300.0) == ()


def test_what_a_checkpoint_knows_only_by_its_number_is_not_contested() -> None:
    control = state()
    control.resume(snapshot(2), newest_decided=3, last_step=8)
    assert control.decide(snapshot(3), now=100.0) == ()
    assert control.newest_decided == 3
