"""The control desk: every version shown ends once, and the applied ones rise."""

from __future__ import annotations

import itertools
from dataclasses import replace

from isentrope.control import ControlDesk
from isentrope_wire.control import Control, Method
from isentrope_wire.reports import ControlSnapshot, OutcomeState

CAPABILITIES = ("method:none", "method:clip_v")


def snapshot(version: int, *, expires_at: float | None = None, method: Method = Method.CLIP_V) -> ControlSnapshot:
    control = Control(method=method, mu_low=float(version)) if method in (Method.CLIP_V, Method.CLIP_B) else Control()
    return ControlSnapshot(version=version, control=control, author="ada", requested_at=100.0, expires_at=expires_at)


def desk() -> ControlDesk:
    return ControlDesk(snapshot(0, method=Method.NONE), CAPABILITIES)


def test_without_a_wish_nothing_changes() -> None:
    a_desk = desk()
    assert a_desk.at_step_boundary(None, step=1, now=100.0) == ()
    assert a_desk.at_step_boundary(snapshot(0), step=2, now=100.0) == ()
    assert a_desk.in_force.version == 0


def test_a_new_version_is_applied_and_says_from_which_step() -> None:
    a_desk = desk()
    (outcome,) = a_desk.at_step_boundary(snapshot(3), step=41, now=107.5)
    assert (outcome.version, outcome.state, outcome.step, outcome.at) == (3, OutcomeState.APPLIED, 41, 107.5)
    assert a_desk.in_force == snapshot(3)


def test_a_version_is_decided_once_however_often_it_is_shown() -> None:
    a_desk = desk()
    outcomes = [a_desk.at_step_boundary(snapshot(1), step=step, now=100.0) for step in range(5)]
    assert [len(o) for o in outcomes] == [1, 0, 0, 0, 0]


def test_a_control_this_probe_cannot_carry_out_is_rejected_and_the_old_one_stays() -> None:
    a_desk = desk()
    a_desk.at_step_boundary(snapshot(1), step=1, now=100.0)
    (outcome,) = a_desk.at_step_boundary(snapshot(2, method=Method.CLIP_B), step=2, now=100.0)
    assert (outcome.state, outcome.code, outcome.step) == (OutcomeState.REJECTED, "capability_missing", None)
    assert "method:clip_b" in outcome.message
    assert a_desk.in_force.version == 1


def test_a_control_this_probe_cannot_read_is_rejected_with_the_reason_and_the_old_one_stays() -> None:
    a_desk = desk()
    unreadable = replace(snapshot(1, method=Method.NONE), unreadable="method must be one of none; got 'newer'.")
    (outcome,) = a_desk.at_step_boundary(unreadable, step=2, now=100.0)
    assert (outcome.version, outcome.state, outcome.code) == (1, OutcomeState.REJECTED, "unreadable")
    assert "got 'newer'. Version 0 stays in force." in outcome.message
    assert a_desk.in_force.version == 0


def test_a_change_does_not_fire_after_its_time_to_live() -> None:
    a_desk = desk()
    (outcome,) = a_desk.at_step_boundary(snapshot(1, expires_at=110.0), step=9, now=110.5)
    assert (outcome.state, outcome.step) == (OutcomeState.EXPIRED, None)
    assert "0.5 s" in outcome.message
    assert a_desk.in_force.version == 0


def test_a_change_within_its_time_to_live_stays_in_force_after_it() -> None:
    a_desk = desk()
    a_desk.at_step_boundary(snapshot(1, expires_at=110.0), step=9, now=110.0)
    assert a_desk.at_step_boundary(snapshot(1, expires_at=110.0), step=10, now=500.0) == ()
    assert a_desk.in_force.version == 1


def test_a_version_that_arrives_after_a_newer_one_is_superseded_once() -> None:
    a_desk = desk()
    a_desk.at_step_boundary(snapshot(5), step=1, now=100.0)
    (outcome,) = a_desk.at_step_boundary(snapshot(4), step=2, now=101.0)
    assert (outcome.version, outcome.state) == (4, OutcomeState.SUPERSEDED)
    assert a_desk.at_step_boundary(snapshot(4), step=3, now=101.0) == ()
    assert a_desk.in_force.version == 5


def test_a_rejected_version_still_outranks_the_older_ones() -> None:
    a_desk = desk()
    a_desk.at_step_boundary(snapshot(2, method=Method.CLIP_B), step=1, now=100.0)
    (outcome,) = a_desk.at_step_boundary(snapshot(1), step=2, now=100.0)
    assert outcome.state is OutcomeState.SUPERSEDED
    assert a_desk.in_force.version == 0


def test_in_any_order_applied_versions_rise_and_each_version_ends_once() -> None:
    for order in itertools.permutations([1, 2, 3, 4, 2, 3], 6):
        a_desk = desk()
        outcomes = [
            outcome
            for step, version in enumerate(order)
            for outcome in a_desk.at_step_boundary(snapshot(version), step=step, now=100.0)
        ]
        applied = [o.version for o in outcomes if o.state is OutcomeState.APPLIED]
        assert applied == sorted(set(applied))
        assert sorted(o.version for o in outcomes) == [1, 2, 3, 4]
        assert a_desk.in_force.version == applied[-1] == 4


def test_a_decided_number_that_comes_with_another_document_is_rejected_once() -> None:
    a_desk = desk()
    a_desk.at_step_boundary(snapshot(1), step=1, now=100.0)
    another = replace(snapshot(1), control=Control(method=Method.CLIP_V, mu_low=7.0))
    (outcome,) = a_desk.at_step_boundary(another, step=2, now=101.0)
    assert (outcome.version, outcome.state, outcome.code) == (1, OutcomeState.REJECTED, "version_taken")
    assert a_desk.in_force == snapshot(1)
    assert a_desk.at_step_boundary(another, step=3, now=102.0) == ()
    assert a_desk.at_step_boundary(snapshot(1), step=4, now=103.0) == ()


def test_a_version_in_force_that_is_asked_for_anew_by_another_author_needs_no_word() -> None:
    a_desk = desk()
    a_desk.at_step_boundary(snapshot(1), step=1, now=100.0)
    again = replace(snapshot(1), author="bob", requested_at=150.0, expires_at=200.0)
    assert a_desk.at_step_boundary(again, step=2, now=300.0) == ()


def test_what_a_checkpoint_knows_only_by_its_number_is_not_contested() -> None:
    a_desk = ControlDesk(snapshot(2), CAPABILITIES, newest_decided=3)
    assert a_desk.at_step_boundary(snapshot(3), step=9, now=100.0) == ()
    assert a_desk.newest_decided == 3
