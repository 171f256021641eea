"""Alerts come before a collapse, with their reason, and stay away from runs that are well."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import pytest

from isentrope.statistics.alerts import FLOOR, PERSISTENCE, REARM, WINDOW, AlertWatch
from isentrope_trainer.figures.alert_quality import (
    Course,
    collapsing,
    exploding,
    falling_in_a_line,
    flat,
    reports_of,
    settling,
    waving,
)
from isentrope_wire.codec import decode_payload, encode_payload
from isentrope_wire.metrics import EARLY_STEPS
from isentrope_wire.reports import Alert, StepReport
from tests.probe.tiny_loop import TinyLoop, probe_and_transport, reports, run_steps

Said = list[tuple[int, Alert]]


def said(rows: Iterable[Mapping[str, float]], labels: Mapping[str, str] | None = None) -> Said:
    watch = AlertWatch()
    return [(step, alert) for step, row in enumerate(rows) for alert in watch.step(row, labels or {})]


def kinds(found: Said) -> list[str]:
    return [alert.kind for _, alert in found]


@pytest.mark.parametrize("course", [collapsing(60), collapsing(150), falling_in_a_line(200), falling_in_a_line(600)])
def test_a_collapse_is_foretold_before_the_floor_with_the_numbers_it_is_read_from(course: Course) -> None:
    arrives = next(step for step in range(1000) if course(step) <= FLOOR * course(0))
    for seed in range(3):
        found = said(reports_of(course, arrives, seed))
        assert kinds(found) == ["collapse"]
        step, alert = found[0]
        assert step < 0.85 * arrives
        # An entropy that falls by amounts is there earlier than one that falls by shares, as the alert takes it to.
        assert 0.4 < alert.evidence["steps_left"] / (arrives - step) < 2.2
        assert alert.evidence["goal"] == pytest.approx(FLOOR * alert.evidence["early_entropy"])
        assert alert.evidence["rate"] < 0
        now, goal = alert.evidence["entropy"], alert.evidence["goal"]
        assert alert.evidence["steps_left"] == pytest.approx(now * math.log(goal / now) / alert.evidence["rate"])
        assert "of its early" in alert.reason


@pytest.mark.parametrize("scale", [0.01, 100.0])
def test_the_unit_of_the_entropy_changes_nothing(scale: float) -> None:
    def scaled(row: Mapping[str, float]) -> dict[str, float]:
        return {n: v * scale if n in ("entropy/mean", "entropy/predicted_change") else v for n, v in row.items()}

    plain = said(reports_of(collapsing(60), 84, 0))
    other = said(scaled(row) for row in reports_of(collapsing(60), 84, 0))
    assert [(step, alert.kind) for step, alert in other] == [(step, alert.kind) for step, alert in plain]


def test_an_explosion_is_foretold_too() -> None:
    arrives = 139
    for seed in range(3):
        found = said(reports_of(exploding(200), arrives, seed))
        assert kinds(found) == ["explosion"]


@pytest.mark.parametrize("course", [flat, settling(0.5, 100), settling(0.7, 300), waving(200)])
def test_a_run_that_is_well_is_left_alone(course: Course) -> None:
    for seed in range(30, 33):
        assert [kind for kind in kinds(said(reports_of(course, 500, seed))) if kind != "prediction"] == []


def test_a_run_that_lies_below_the_floor_is_named_once() -> None:
    rows = list(reports_of(collapsing(40), 400, 0))
    assert kinds(said(rows)).count("collapse") == 1


def test_a_prediction_that_the_entropy_does_not_follow_foretells_nothing() -> None:
    def rows(slope: float) -> list[dict[str, float]]:
        early = [{"entropy/mean": 2.0}] * EARLY_STEPS + [{"entropy/mean": 1.4}] * 20
        return early + [{"entropy/mean": 1.4 - slope * step, "entropy/predicted_change": -0.05} for step in range(30)]

    assert said(rows(0.0)) == []
    assert kinds(said(rows(0.025))) == ["collapse"]


def test_a_fall_slower_than_predicted_is_expected_to_arrive_at_its_own_pace() -> None:
    """By hand: the entropy falls at 0.02 a step, the prediction says 0.05."""

    def rows() -> list[dict[str, float]]:
        early = [{"entropy/mean": 2.0}] * EARLY_STEPS + [{"entropy/mean": 1.4}] * 20
        return early + [{"entropy/mean": 1.4 - 0.02 * step, "entropy/predicted_change": -0.05} for step in range(45)]

    ((_, alert),) = said(rows())
    assert alert.kind == "collapse"
    assert alert.evidence["rate"] == pytest.approx(-0.02, rel=0.05)


def test_without_a_prediction_no_collapse_is_foretold() -> None:
    rows = [{"entropy/mean": row["entropy/mean"]} for row in reports_of(collapsing(60), 130, 0)]
    assert said(rows[:80]) == []
    # That it has arrived needs none.
    ((step, alert),) = said(rows)
    assert 80 < step < 110
    assert alert.kind == "collapse"
    assert alert.reason.startswith("The entropy is at")


def test_a_self_check_that_fails_for_a_while_is_named_and_scatter_alone_is_not() -> None:
    failing = said({"score/self_check_z": 2.0 + (-1) ** step} for step in range(100))
    assert [(step, alert.kind) for step, alert in failing] == [(WINDOW + PERSISTENCE - 2, "self_check")]
    assert failing[0][1].evidence["mean_z"] == pytest.approx(2.0)
    assert said({"score/self_check_z": 20.0 * (-1) ** step} for step in range(100)) == []


def test_a_prediction_that_was_of_use_and_no_longer_is_loses_its_trust_once() -> None:
    r2 = [0.8] * 40 + [-0.2] * 40
    found = said({"entropy/prediction_r2": value} for value in r2)
    assert [(step, alert.kind) for step, alert in found] == [(40 + PERSISTENCE - 1, "prediction")]
    assert said({"entropy/prediction_r2": -0.2} for _ in range(80)) == []


def test_a_dead_knob_is_named_when_it_stays_dead_and_again_only_after_it_lived() -> None:
    watch, found = AlertWatch(), []
    for step in range(200):
        dead = step in range(10, 10 + PERSISTENCE - 1) or step in range(50, 60) or step in range(60 + REARM, 150)
        for alert in watch.step({}, {"control/dead": "beta is 0."} if dead else {}):
            found.append((step, alert.kind, alert.reason))
    assert found == [
        (50 + PERSISTENCE - 1, "dead_knob", "beta is 0."),
        (60 + REARM + PERSISTENCE - 1, "dead_knob", "beta is 0."),
    ]


def test_groups_without_advantage_are_compared_with_the_runs_own_first_steps() -> None:
    def rows(early: float, late: float) -> list[dict[str, float]]:
        return [{"advantage/zero_group_fraction": early if step < 30 else late} for step in range(100)]

    found = said(rows(0.2, 0.9))
    assert kinds(found) == ["zero_advantage"]
    assert found[0][1].evidence["early_share"] == pytest.approx(0.8)
    assert said(rows(0.9, 0.92)) == []


def test_what_is_not_finite_is_as_if_it_were_not_there() -> None:
    rows = ({"entropy/mean": float("nan"), "score/self_check_z": float("inf")} for _ in range(60))
    assert said(rows) == []
    assert EARLY_STEPS < WINDOW


def test_alerts_travel_with_the_report_of_the_step_they_are_found_at(monkeypatch: pytest.MonkeyPatch) -> None:
    alert = Alert(kind="collapse", reason="because", evidence={"rate": -0.5})
    monkeypatch.setattr(AlertWatch, "step", lambda self, scalars, labels: (alert,) if "entropy/mean" in scalars else ())
    loop = TinyLoop()
    probe, transport = probe_and_transport()
    run_steps(loop, probe, 1)
    probe.step(1)
    measured, empty = reports(transport)
    assert (measured.alerts, empty.alerts) == ((alert,), ())
    decoded = decode_payload(encode_payload(measured))
    assert isinstance(decoded, StepReport)
    assert decoded.alerts == (alert,)
