"""Alerts come before a collapse, with level, cause and suggestion, and not in healthy runs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import pytest
import torch

from isentrope.statistics.alerts import PERSISTENCE, REARM, AlertWatch
from isentrope_wire.codec import decode_payload, encode_payload
from isentrope_wire.control import Control
from isentrope_wire.diagnosis.course import FLOOR, WINDOW
from isentrope_wire.numbers import document_of, read_exactly
from isentrope_wire.reports import Alert, AlertCause, AlertLevel, StepReport
from tests.benchmarks.alert_quality import (
    Course,
    collapsing,
    exploding,
    falling_in_a_line,
    flat,
    reports_of,
    settling,
    waving,
)
from tests.probe.tiny_loop import TinyLoop, probe_and_transport, reports, run_steps

WATCH, ACT = AlertLevel.WATCH, AlertLevel.ACT
Raised = list[tuple[int, Alert]]


def raised(rows: Iterable[Mapping[str, float]], labels: Mapping[str, str] | None = None) -> Raised:
    watch = AlertWatch()
    return [(step, alert) for step, row in enumerate(rows) for alert in watch.step(row, labels or {})]


def kinds(found: Raised) -> list[tuple[str, AlertLevel]]:
    return [(alert.kind, alert.level) for _, alert in found if alert.kind != "prediction"]


def entropies(*values: float) -> list[dict[str, float]]:
    return [{"entropy/mean": value} for value in values]


@pytest.mark.parametrize("course", [collapsing(60), collapsing(150), falling_in_a_line(200), falling_in_a_line(600)])
def test_a_collapse_is_raised_at_a_quarter_and_again_at_half(course: Course) -> None:
    arrives = next(step for step in range(1000) if course(step) <= FLOOR * course(0))
    for seed in range(3):
        found = raised(reports_of(course, arrives, seed))
        assert kinds(found) == [("collapse", WATCH), ("collapse", ACT)]
        (first, watch), (second, act) = (one for one in found if one[1].kind == "collapse")
        assert 0.2 < 1 - course(first) / course(0) < 0.3
        assert second < 0.75 * arrives
        assert watch.evidence["share_lost"] >= 0.25
        assert act.evidence["early_entropy"] == pytest.approx(course(0), rel=0.1)


def test_the_levels_are_25_and_50_percent_each_raised_once() -> None:
    found = raised(entropies(2, 2, 2, *[1.52] * 9, *[1.5] * 9, *[1.02] * 9, *[1.0] * 9, *[0.1] * 9))
    assert [(step, alert.level) for step, alert in found] == [(13, WATCH), (31, ACT)]
    assert found[0][1].evidence == {"entropy": 1.5, "share_lost": 0.25, "early_entropy": 2.0}


def test_an_explosion_is_raised_at_a_third_more_and_at_twice() -> None:
    found = raised(entropies(2, 2, 2, *[2.6] * 9, *[2.7] * 9, *[3.9] * 9, *[4.0] * 9))
    assert [(step, alert.kind, alert.level) for step, alert in found] == [
        (13, "explosion", WATCH),
        (31, "explosion", ACT),
    ]


def test_a_collapse_is_raised_again_only_after_it_was_over() -> None:
    collapse, near, back = [1.4] * 5, [1.7] * 2 * REARM, [1.9] * (REARM + 2)
    assert len(raised(entropies(2, 2, 2, *collapse, *near, *collapse))) == 1
    assert len(raised(entropies(2, 2, 2, *collapse, *back[:-4], *collapse))) == 1
    assert len(raised(entropies(2, 2, 2, *collapse, *back, *collapse))) == 2


def test_noise_as_large_as_the_loss_raises_nothing() -> None:
    assert raised(entropies(*(2.0 if step % 2 else 0.9 for step in range(40)))) == []


def test_a_held_entropy_is_counted_from_its_target() -> None:
    def rows(level: float) -> list[dict[str, float]]:
        return [{**row, "hold/target": 1.0} for row in entropies(2, 2, 2, *[1.5] * 5, *[level] * 20)]

    assert raised(rows(1.0)) == []
    ((_, alert),) = raised(rows(0.7))
    assert (alert.kind, alert.level, alert.evidence["target_entropy"]) == ("collapse", WATCH, 1.0)
    assert kinds(raised(rows(0.4))) == [("collapse", ACT)]
    assert raised([{**row, "hold/target": 4.0} for row in entropies(2, 2, 2, *[4.0] * 20)]) == []


def test_an_entropy_of_0_is_a_collapse() -> None:
    assert kinds(raised(entropies(2, 2, 2, *[0.0] * 40))) == [("collapse", ACT)]
    assert raised(entropies(*[0.0] * 40)) == []


@pytest.mark.parametrize("scale", [0.01, 100.0])
def test_the_unit_of_the_entropy_changes_nothing(scale: float) -> None:
    def scaled(row: Mapping[str, float]) -> dict[str, float]:
        return {n: v * scale if n in ("entropy/mean", "entropy/predicted_change") else v for n, v in row.items()}

    first = raised(reports_of(collapsing(60), 84, 0))
    other = raised(scaled(row) for row in reports_of(collapsing(60), 84, 0))
    assert [(step, alert.kind) for step, alert in other] == [(step, alert.kind) for step, alert in first]


def test_an_explosion_is_raised_before_it_ends() -> None:
    for seed in range(3):
        assert kinds(raised(reports_of(exploding(200), 139, seed))) == [("explosion", WATCH), ("explosion", ACT)]


@pytest.mark.parametrize("course", [flat, settling(0.85, 300), waving(200)])
@pytest.mark.parametrize("scatter", [0.02, 0.2])
def test_a_healthy_run_has_no_alert(course: Course, scatter: float) -> None:
    for seed in range(30, 33):
        assert kinds(raised(reports_of(course, 500, seed, scatter=scatter))) == []


def falling_after_a_rest(slope: float) -> list[dict[str, float]]:
    """A fifth is lost and nothing moves for a while, against a prediction of -0.03 nats a step; then the entropy falls."""
    course = [2.0] * 10 + [1.6] * 85 + [1.6 - slope * step for step in range(1, 26)]
    return [{"entropy/mean": entropy, "entropy/predicted_change": -0.03} for entropy in course]


def test_a_predicted_collapse_is_raised_as_act_before_half_is_lost() -> None:
    (alert,) = (alert for _, alert in raised(falling_after_a_rest(0.025)) if alert.level == ACT)
    evidence = alert.evidence
    assert evidence["share_lost"] < 0.5
    assert -0.03 <= evidence["rate"] < -0.02
    assert evidence["goal"] == pytest.approx(FLOOR * evidence["early_entropy"])
    assert 0 < evidence["steps_left"] < 55


def test_a_prediction_that_the_entropy_does_not_follow_is_not_used() -> None:
    assert raised(falling_after_a_rest(0.0)) == []


def test_a_self_check_that_fails_for_a_while_is_raised_and_scatter_alone_is_not() -> None:
    failing = raised({"score/self_check_z": 2.0 + (-1) ** step} for step in range(100))
    assert [(step, alert.kind, alert.level) for step, alert in failing] == [
        (WINDOW + PERSISTENCE - 2, "self_check", ACT)
    ]
    assert failing[0][1].evidence["mean_z"] == pytest.approx(2.0)
    assert raised({"score/self_check_z": 20.0 * (-1) ** step} for step in range(100)) == []


def test_a_self_check_counts_the_first_epoch_and_names_the_likely_cause() -> None:
    """A second update of the same tokens has learnt from them: their scores are not centred, and nothing is wrong."""
    second_epochs = [{"score/self_check_z": (-1) ** (step // 2) * 0.5, "token/epoch": 1.0} for step in range(200)]
    for row in second_epochs[1::2]:
        row |= {"score/self_check_z": -8.0, "token/epoch": 2.0}
    assert raised(second_epochs) == []
    first_epochs = [row | ({"score/self_check_z": -8.0} if row["token/epoch"] == 1 else {}) for row in second_epochs]
    ((_, alert),) = raised(first_epochs, {"sampler/likely_cause": "temperature: the sampler's is about 0.80 times"})
    assert "temperature" in alert.message
    assert alert.evidence["mean_z"] == pytest.approx(-8.0)


@pytest.mark.parametrize("known", [False, True], ids=["nothing known of the sampler", "its log-probs known"])
def test_a_self_check_that_fails_is_logged_once_with_its_cause(caplog: pytest.LogCaptureFixture, known: bool) -> None:
    loop, (probe, transport) = TinyLoop(), probe_and_transport()
    for step in range(1, 3 * WINDOW):
        logits = loop.policy(loop.states)
        kept = logits.detach().masked_fill(logits < logits.topk(6).values[..., -1:], -torch.inf)  # as with top_k=6
        sampler = torch.distributions.Categorical(logits=kept)
        ids = sampler.sample()
        drawn_with = {"sampler_logprobs": sampler.log_prob(ids)} if known else {}
        probe.gate(probe.score(logits, ids), torch.randn(16), loop.mask, **drawn_with)
        probe.step(step)
    (record,) = [record for record in caplog.records if record.name == "isentrope.step_report"]
    (alert,) = [alert for report in reports(transport) for alert in report.alerts if alert.kind == "self_check"]
    assert record.levelname == "WARNING"
    assert record.message == f"Step {WINDOW + PERSISTENCE - 1}: {alert.message}"
    assert "top_k=0" in alert.message
    assert ("truncation" in alert.message) == known


def test_a_prediction_that_is_no_longer_of_use_is_raised_once() -> None:
    r2 = [0.8] * 40 + [-0.2] * 40
    found = raised({"entropy/prediction_r2": value} for value in r2)
    assert [(step, alert.kind, alert.level) for step, alert in found] == [(40 + PERSISTENCE - 1, "prediction", WATCH)]
    assert raised({"entropy/prediction_r2": -0.2} for _ in range(80)) == []


def test_a_dead_knob_is_raised_when_it_stays_dead_and_again_only_after_it_acted() -> None:
    watch, found = AlertWatch(), []
    for step in range(200):
        dead = step in range(10, 10 + PERSISTENCE - 1) or step in range(50, 60) or step in range(60 + REARM, 150)
        for alert in watch.step({}, {"control/dead": "beta is 0."} if dead else {}):
            found.append((step, alert.kind, alert.level, alert.message))
    assert found == [
        (50 + PERSISTENCE - 1, "dead_knob", WATCH, "beta is 0."),
        (60 + REARM + PERSISTENCE - 1, "dead_knob", WATCH, "beta is 0."),
    ]


def test_groups_without_advantage_are_compared_with_the_runs_own_first_steps() -> None:
    def rows(early: float, late: float) -> list[dict[str, float]]:
        return [{"advantage/zero_group_fraction": early if step < 30 else late} for step in range(100)]

    found = raised(rows(0.2, 0.9))
    assert [(alert.kind, alert.level) for _, alert in found] == [("zero_advantage", WATCH)]
    assert found[0][1].evidence["early_share"] == pytest.approx(0.8)
    assert raised(rows(0.9, 0.92)) == []


def test_what_is_not_finite_is_as_if_it_were_not_there() -> None:
    rows = ({"entropy/mean": float("nan"), "score/self_check_z": float("inf")} for _ in range(60))
    assert raised(rows) == []


def test_the_state_continues_from_plain_values() -> None:
    watch, rows = AlertWatch(), list(reports_of(collapsing(60), 84, 0))
    for row in rows[:40]:
        watch.step({**row, "change/negative_low": -1.0}, {})
    again = read_exactly(AlertWatch, document_of(watch))
    assert [watch.step(row, {}) for row in rows[40:]] == [again.step(row, {}) for row in rows[40:]]
    assert again == watch


def test_alerts_and_the_share_lost_are_in_the_report_of_their_step(monkeypatch: pytest.MonkeyPatch) -> None:
    cause = AlertCause(
        quadrant="change/negative_low", mechanism=None, changes={"change/negative_low": -0.5}, message="They fall."
    )
    suggestion = Control(method="clip_v", mu_low=2.0, mu_high=2.0, scope="decreasing", reason="stop")
    alert = Alert(
        kind="collapse", level=ACT, message="because", evidence={"rate": -0.5}, cause=cause, suggestion=suggestion
    )
    monkeypatch.setattr(
        AlertWatch,
        "step",
        lambda self, scalars, labels, what_if: (alert,) if what_if is not None and "entropy/mean" in scalars else (),
    )
    monkeypatch.setattr(AlertWatch, "share_lost", 0.25)
    loop = TinyLoop()
    probe, transport = probe_and_transport()
    run_steps(loop, probe, 1)
    probe.step(1)
    measured, empty = reports(transport)
    assert (measured.alerts, empty.alerts) == ((alert,), ())
    assert measured.scalars["entropy/share_lost"] == 0.25
    assert "entropy/share_lost" not in empty.scalars
    decoded = decode_payload(encode_payload(measured))
    assert isinstance(decoded, StepReport)
    assert decoded.alerts == (alert,)


def test_early_steps_have_no_alert() -> None:
    assert raised(entropies(2.0, 0.1)) == []
    assert math.isclose(raised(entropies(2.0, 2.0, 2.0, 2.0, 1.0, 1.0))[0][1].evidence["entropy"], 1.0)
