"""Alerts come before a collapse, with level, cause and suggestion, and not in healthy runs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import pytest
import torch

from isentrope.statistics.alerts import HOLD_BEGINS, PERSISTENCE, REARM, WINDOW, AlertWatch
from isentrope_wire.codec import decode_payload, encode_payload
from isentrope_wire.control import Control
from isentrope_wire.numbers import document_of, percent, read_exactly
from isentrope_wire.reports import Alert, AlertCause, AlertLevel, StepReport
from tests.probe.tiny_loop import TinyLoop, probe_and_transport, reports, run_steps
from tests.wire.test_diagnosis import sums

WATCH, ACT = AlertLevel.WATCH, AlertLevel.ACT
Raised = list[tuple[int, Alert]]


def raised(rows: Iterable[Mapping[str, float]], labels: Mapping[str, str] | None = None) -> Raised:
    watch = AlertWatch()
    return [
        (step, alert)
        for step, row in enumerate(rows)
        for alert in watch.step(step, row, labels or {})
    ]


def kinds(found: Raised) -> list[tuple[str, AlertLevel]]:
    return [(alert.kind, alert.level) for _, alert in found if alert.kind != "prediction"]


def entropies(*values: float) -> list[dict[str, float]]:
    return [{"entropy/mean": value} for value in values]


def falling(step: int) -> float:
    return 2 * math.exp(-step / 60)


def test_a_collapse_is_raised_at_a_quarter_and_at_each_halving() -> None:
    found = raised(entropies(*(falling(step) for step in range(150))))
    assert kinds(found) == [("collapse", WATCH), *[("collapse", ACT)] * 3]
    (first, watch), (second, act), *_ = found
    assert 0.25 <= watch.evidence["share_lost"] < 0.3
    assert first < second < 60
    assert act.evidence["early_entropy"] == falling(1)
    evidence = act.evidence
    assert evidence["forecast_low"] < evidence["forecast"] < evidence["entropy"]
    assert (
        act.message == f"The entropy is {percent(evidence['share_lost'])} below its early level:"
        f" {evidence['entropy']:.3g} instead of {falling(1):.3g} nats. In 50 steps it"
        f" comes to {evidence['forecast']:.3g} nats ({evidence['forecast_low']:.3g} to"
        f" {evidence['forecast_high']:.3g})."
    )


def test_below_a_held_target_the_course_alone_foretells_nothing() -> None:
    found = raised(
        [row | {"hold/target": 1.5} for row in entropies(*(falling(step) for step in range(100)))]
    )
    assert {alert.kind for _, alert in found} == {"collapse"}
    for _, alert in found:
        assert alert.evidence["target_entropy"] == 1.5
        assert "forecast" not in alert.evidence


def test_an_explosion_is_raised() -> None:
    found = raised(entropies(*(math.exp(step / 60) for step in range(80))))
    assert kinds(found)[:2] == [("explosion", WATCH), ("explosion", ACT)]


def test_an_alert_forecasts_at_most_ln_v() -> None:
    watch, found = AlertWatch(), list[Alert]()
    for step in range(60):
        row = {"entropy/mean": math.exp(step / 60), "token/vocabulary": 6.0}
        found += watch.step(step, row, {}, None)
    assert found[0].evidence["forecast_high"] == pytest.approx(math.log(6))


def test_a_collapse_has_its_cause_and_the_control_that_stops_it() -> None:
    parts = {
        "change/negative_low": -0.3,
        "change/positive_high": -0.1,
        "change/by_kl_penalty": -0.2,
    }
    watch, found = AlertWatch(), list[Alert]()
    for step in range(80):
        row = {"entropy/mean": falling(step), "entropy/gain": 0.5, **parts}
        found += watch.step(step, row, {}, sums(-4.0))
    act = next(alert for alert in found if alert.level == ACT)
    assert act.cause is not None
    assert (act.cause.quadrant, act.cause.mechanism) == (
        "change/negative_low",
        "change/by_kl_penalty",
    )
    assert act.cause.changes == pytest.approx(parts)
    assert act.suggestion is not None
    assert (act.suggestion.method, act.suggestion.mu_low, act.suggestion.scope) == (
        "clip_v",
        1.0,
        "decreasing",
    )
    assert act.message in act.suggestion.reason


def test_a_held_entropy_is_counted_from_its_target() -> None:
    def rows(level: float) -> list[dict[str, float]]:
        return [
            {**row, "hold/target": 1.0}
            for row in entropies(*(max(level, 2 - step / 10) for step in range(60)))
        ]

    assert raised(rows(1.0)) == []
    assert kinds(raised(rows(0.2)))[0] == ("collapse", WATCH)
    assert raised(rows(0.2))[0][1].evidence["target_entropy"] == 1.0


def test_an_entropy_of_0_is_a_collapse() -> None:
    assert ("collapse", ACT) in kinds(raised(entropies(2, 2, 2, *[0.0] * 40)))
    assert raised(entropies(*[0.0] * 40)) == []


def test_a_self_check_that_fails_for_a_while_is_raised_and_scatter_alone_is_not() -> None:
    failing = raised({"score/self_check_z": 2.0 + (-1) ** step} for step in range(100))
    assert [(step, alert.kind, alert.level) for step, alert in failing] == [
        (WINDOW + PERSISTENCE - 2, "self_check", ACT)
    ]
    assert failing[0][1].evidence["mean_z"] == pytest.approx(2.0)
    assert raised({"score/self_check_z": 20.0 * (-1) ** step} for step in range(100)) == []


def test_a_self_check_counts_the_first_epoch_and_names_the_likely_cause() -> None:
    """A second update of the same tokens has learnt from them: their scores are not centred, and
    nothing is wrong."""
    second_epochs = [
        {"score/self_check_z": (-1) ** (step // 2) * 0.5, "token/epoch": 1.0} for step in range(200)
    ]
    for row in second_epochs[1::2]:
        row |= {"score/self_check_z": -8.0, "token/epoch": 2.0}
    assert raised(second_epochs) == []
    first_epochs = [
        row | ({"score/self_check_z": -8.0} if row["token/epoch"] == 1 else {})
        for row in second_epochs
    ]
    ((_, alert),) = raised(
        first_epochs, {"sampler/likely_cause": "temperature: the sampler's is about 0.80 times"}
    )
    assert "temperature" in alert.message
    assert alert.evidence["mean_z"] == pytest.approx(-8.0)


@pytest.mark.parametrize(
    "known", [False, True], ids=["nothing known of the sampler", "its log-probs known"]
)
def test_a_self_check_that_fails_is_logged_once_with_its_cause(
    caplog: pytest.LogCaptureFixture, known: bool
) -> None:
    loop, (probe, transport) = TinyLoop(), probe_and_transport()
    for step in range(1, 3 * WINDOW):
        logits = loop.policy(loop.states)
        kept = logits.detach().masked_fill(
            logits < logits.topk(6).values[..., -1:], -torch.inf
        )  # as with top_k=6
        sampler = torch.distributions.Categorical(logits=kept)
        ids = sampler.sample()
        drawn_with = {"sampler_logprobs": sampler.log_prob(ids)} if known else {}
        probe.gate(probe.score(logits, ids), torch.randn(16), loop.mask, **drawn_with)
        probe.step(step)
    (record,) = [
        record
        for record in caplog.records
        if record.name == "isentrope.steps.report" and "mean of r S_c" in record.getMessage()
    ]
    (alert,) = [
        alert
        for report in reports(transport)
        for alert in report.alerts
        if alert.kind == "self_check"
    ]
    assert record.levelname == "WARNING"
    assert record.message == f"isentrope: step {WINDOW + PERSISTENCE - 1}: Act: {alert.message}"
    assert "top_k=0" in alert.message
    assert ("truncation" in alert.message) == known


@pytest.mark.parametrize(
    ("cure", "words"),
    [
        (
            Control(method="clip_v", mu_low=3.0, mu_high=3.0, scope="decreasing"),
            "Clip_V µ 3, decreasing",
        ),
        (Control(method="clip_b", mu_low=2.0), "Clip_B µ 2, all"),
        (Control(), "no control"),
        (Control(hold="75%"), "hold 75% of the early level"),
        (Control(method="kl_cov"), "KL-Cov, all"),
    ],
)
def test_an_alert_is_a_line_in_the_terminal_with_its_cure_and_the_page(
    cure: Control, words: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    alert = Alert(kind="collapse", level=ACT, message="Half is lost.", suggestion=cure)
    monkeypatch.setattr(AlertWatch, "step", lambda self, *given, **known: (alert,))
    loop, (probe, transport) = TinyLoop(), probe_and_transport()
    run_steps(loop, probe, 1)
    reports(transport)
    (message,) = caplog.messages
    assert message == f"isentrope: step 0: Act: Half is lost. Suggested: {words}."


@pytest.mark.parametrize(
    ("row", "pushed", "told"),
    [
        ({"entropy/mean": 1.0}, 0, 2),  # nothing is scored again: it can never act
        ({"entropy/mean": 1.0}, 40, 40),
        ({"entropy/mean": 1.0, "entropy/observed_change": 0.0}, 0, HOLD_BEGINS - 1),
        ({"entropy/mean": 1.0, "entropy/observed_change": 0.0}, 40, 40 + HOLD_BEGINS - 1),
    ],
)
def test_a_hold_that_can_never_act_is_told_at_once(
    row: dict[str, float], pushed: int, told: int
) -> None:
    watch, waits = AlertWatch(), {"hold/state": "fallback", "hold/why": "The gain is not known."}
    alerts = [
        (step, alert.message)
        for step in range(60)
        for alert in watch.step(step, row, waits if step >= pushed else {})
        if alert.kind == "hold_waits"
    ]
    assert alerts == [(told, "The hold waits: The gain is not known.")]


def test_a_prediction_that_is_no_longer_of_use_is_raised_once() -> None:
    r2 = [0.8] * 40 + [-0.2] * 40
    found = raised({"entropy/prediction_r2": value} for value in r2)
    assert [(step, alert.kind, alert.level) for step, alert in found] == [
        (40 + PERSISTENCE - 1, "prediction", WATCH)
    ]
    assert raised({"entropy/prediction_r2": -0.2} for _ in range(80)) == []


def test_a_dead_knob_is_raised_when_it_stays_dead_and_again_only_after_it_acted() -> None:
    watch, found = AlertWatch(), []
    for step in range(200):
        dead = (
            step in range(10, 10 + PERSISTENCE - 1)
            or step in range(50, 60)
            or step in range(60 + REARM, 150)
        )
        for alert in watch.step(step, {}, {"control/dead": "beta is 0."} if dead else {}):
            found.append((step, alert.kind, alert.level, alert.message))
    assert found == [
        (50 + PERSISTENCE - 1, "dead_knob", WATCH, "beta is 0."),
        (60 + REARM + PERSISTENCE - 1, "dead_knob", WATCH, "beta is 0."),
    ]


@pytest.mark.parametrize(("share", "mu"), [(0.2, 3.0), (0.95, None)])
def test_groups_that_teach_nothing_leave_no_suggestion(share: float, mu: float | None) -> None:
    watch, found = AlertWatch(), list[tuple[int, Alert]]()
    for step in range(80):
        row = {
            "entropy/mean": math.exp(-max(0, step - 40) / 15),
            "entropy/gain": 0.5,
            "change/negative_low": -0.3,
            "advantage/zero_group_fraction": 0.2 if step < 30 else share,
        }
        found += [(step, alert) for alert in watch.step(step, row, {}, sums(-4.0))]
    step, last = found[-1]
    assert (step, last.kind, last.level) == (74, "collapse", ACT)
    suggested = None if last.suggestion is None else last.suggestion.mu_low
    assert suggested == mu


def test_groups_without_advantage_are_compared_with_the_runs_own_first_steps() -> None:
    def rows(early: float, late: float) -> list[dict[str, float]]:
        return [
            {"advantage/zero_group_fraction": early if step < 30 else late} for step in range(100)
        ]

    found = raised(rows(0.2, 0.9))
    assert [(alert.kind, alert.level) for _, alert in found] == [("zero_advantage", WATCH)]
    assert found[0][1].evidence["early_share"] == pytest.approx(0.2)
    assert raised(rows(0.9, 0.92)) == []


def test_what_is_not_finite_is_told_and_judged_by_nothing() -> None:
    rows = ({"entropy/mean": float("nan"), "score/self_check_z": float("inf")} for _ in range(60))
    ((step, alert),) = raised(rows)
    assert (step, alert.kind, alert.level) == (PERSISTENCE - 1, "not_finite", ACT)
    assert alert.message.startswith("entropy/mean is NaN or infinite.")


def test_the_state_continues_from_plain_values() -> None:
    watch, rows = AlertWatch(), entropies(*(falling(step) for step in range(84)))
    for step, row in enumerate(rows[:40]):
        watch.step(step, {**row, "change/negative_low": -1.0}, {})
    again = read_exactly(AlertWatch, document_of(watch))
    for step, row in enumerate(rows[40:], start=40):
        assert watch.step(step, row, {}) == again.step(step, row, {})
    assert again == watch


def test_alerts_and_the_share_lost_are_in_the_report_of_their_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cause = AlertCause(
        quadrant="change/negative_low",
        mechanism=None,
        changes={"change/negative_low": -0.5},
        message="They fall.",
    )
    suggestion = Control(
        method="clip_v", mu_low=2.0, mu_high=2.0, scope="decreasing", reason="stop"
    )
    alert = Alert(
        kind="collapse",
        level=ACT,
        message="because",
        evidence={"rate": -0.5},
        cause=cause,
        suggestion=suggestion,
    )
    monkeypatch.setattr(
        AlertWatch,
        "step",
        lambda self, step, scalars, labels, what_if, active, gradient: (
            (alert,) if what_if is not None and "entropy/mean" in scalars else ()
        ),
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
