"""The diagnosis of a stored run: what is read of it, and that its suggestion agrees with the
stored sums."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass, replace
from statistics import fmean

import httpx
import pytest
from click.testing import CliRunner

from isentrope.cli import commands
from isentrope.cli.diagnose import diagnosis_of
from isentrope.client import calls
from isentrope.client.client import Client
from isentrope_server.control.diagnosis import measured
from isentrope_server.digests import renew_digests
from isentrope_server.store import runs
from isentrope_wire.answers import HealthLevel
from isentrope_wire.control import Control, Scope
from isentrope_wire.control_answers import Outcome
from isentrope_wire.diagnosis.check_states import CheckStatus
from isentrope_wire.diagnosis.checks import FINDINGS, cure_of
from isentrope_wire.diagnosis.course import DIRECTIONS
from isentrope_wire.methods import Method
from isentrope_wire.reports import (
    CHECKS_HOLDING,
    COURSE_SAID,
    Alert,
    AlertLevel,
    ControlOutcome,
    OutcomeState,
    StepReport,
)
from isentrope_wire.what_if import WhatIfCurve, WhatIfSums
from tests.probe.tiny_loop import probe_and_transport, reports
from tests.server.in_thread import ServerInThread
from tests.server.rank import Rank, step_report
from tests.wire.test_diagnosis import collapse, sums


def send_step(
    rank: Rank,
    step: int,
    entropy: float,
    *,
    what_if: WhatIfSums | None = None,
    gain: float = 0.5,
    **known: object,
) -> None:
    scalars = {
        "entropy/mean": entropy,
        "entropy/gain": gain,
        "change/negative_low": -0.3,
        "change/positive_high": -0.1,
    }
    scalars |= (
        {"influence/negative_low": -0.001, "influence/positive_high": -0.004}
        if step % 50 == 45
        else {}
    )
    rank.send(StepReport(step=step, recorded_at=1.0, scalars=scalars, what_if=what_if, **known))  # type: ignore[arg-type]


@dataclass(frozen=True)
class Under:
    """What a control does to one step's tokens."""

    clip_fraction: float
    change: float
    """Of the unit prediction."""


def under(control: Control, of_step: WhatIfSums) -> Under:
    curve = WhatIfCurve(of_step, control.scope, control.method)
    clipped, as_it_was = curve.evaluate(control.mu_low, control.mu_high), curve.evaluate(None, None)
    return Under(
        clipped.clip_fraction, clipped.unit_predicted_change - as_it_was.unit_predicted_change
    )


@pytest.fixture(scope="module")
def collapsed(server: ServerInThread) -> Rank:
    """100 steps, with an alert at step 30."""
    rank = Rank(server)
    raised = Alert(kind="collapse", level=AlertLevel.WATCH, message="A quarter is lost.")
    other = Alert(kind="prediction", level=AlertLevel.WATCH, message="R² fell.")
    for step in range(1, 101):
        alerts = {30: (raised,), 31: (other,)}.get(step, ())
        send_step(rank, step, collapse(step), what_if=sums(-4.0 - step / 100), alerts=alerts)
    return rank


def test_a_stored_collapse_is_diagnosed(client: Client, collapsed: Rank) -> None:
    found = client.diagnosis(collapsed.run_id)
    assert (found.level, found.step, found.lost_in_steps) == (HealthLevel.ACT, 100, 100)
    assert found.early_level == pytest.approx(collapse(2))
    assert found.entropy == pytest.approx(collapse(98))
    assert found.cause is not None
    assert (found.cause.quadrant, found.cause.influence_step) == ("change/positive_high", 95)
    assert found.cause.share == pytest.approx(0.8)
    assert found.alert is not None
    assert (found.alert.kind, found.alert.step) == ("collapse", 30)
    assert found.verdict is None


def test_a_fall_that_learning_costs_is_healthy_everywhere(
    client: Client, server: ServerInThread
) -> None:
    """The probe's labels take the level of the page to that of its alerts."""
    rank, (probe, transport) = Rank(server), probe_and_transport()
    for step in range(1, 101):
        entropy = 0.5 + 0.5 * math.exp(-step / 60)
        scalars = {"entropy/mean": entropy, "reward/mean": 0.2 + step / 200}
        probe.log({**scalars, "advantage/zero_group_fraction": 0.2})
        probe.step(step)
    probe.finish()
    built = reports(transport)[:100]
    rank.send(*built)
    assert not any(report.alerts for report in built)
    assert built[-1].labels[COURSE_SAID] == "0"
    found = client.diagnosis(rank.run_id)
    assert (found.level, found.alert) == (HealthLevel.HEALTHY, None)
    assert found.share_lost is not None
    assert found.share_lost > 0.3
    why = "The reward still rises; half of today's entropy would last "
    assert f"{why}200 steps." in found.message
    # A report without the label is judged by the course alone.
    rank.send(replace(built[-1], step=101, labels={}))
    assert client.diagnosis(rank.run_id).level == HealthLevel.WATCH


def test_each_check_says_what_it_found_or_needs(client: Client, server: ServerInThread) -> None:
    rank = Rank(server)
    cut = Alert(
        kind="zero_advantage",
        level=AlertLevel.ACT,
        message="All wrong.",
        words={"cause": "too_hard"},
    )
    for step in range(1, 31):
        scalars = {"entropy": 1.0, "completions/mean_length": 90.0, "eval/accuracy": 0.4}
        alerts = {25: (cut,)}.get(step, ())
        rank.send(StepReport(step=step, recorded_at=1.0, scalars=scalars, alerts=alerts))
    states = {state.kind: state for state in client.checks(rank.run_id)}
    assert states.keys() == {*FINDINGS, *DIRECTIONS}
    found = states["zero_advantage"]
    assert (found.status, found.level, found.step) == (CheckStatus.FOUND, AlertLevel.ACT, 25)
    assert (found.message, found.needs) == ("All wrong.", "")
    assert found.cure == cure_of("zero_advantage", "too_hard")
    # Where the probe says which of them hold, what is over is found no longer.
    labels = {CHECKS_HOLDING: "collapse"}
    rank.send(StepReport(step=31, recorded_at=1.0, scalars={"entropy": 1.0}, labels=labels))
    over = {state.kind: state for state in client.checks(rank.run_id)}["zero_advantage"]
    assert (over.status, over.level, over.step) == (CheckStatus.CLEAR, None, 25)
    assert over.message == "Found at step 25, and over since."
    clear = [kind for kind, state in states.items() if state.status == CheckStatus.CLEAR]
    assert clear == ["collapse", "explosion", "not_finite", "length"]
    # The held-out score is there, the reward is not.
    assert states["reward_hacking"].status == CheckStatus.NO_DATA
    assert states["truncation"].needs.startswith("the share of cut completions (own loop: ")
    young = Rank(server)
    young.send(StepReport(step=1, recorded_at=1.0, scalars={"entropy": 1.0}))
    assert client.checks(young.run_id)[0].status == CheckStatus.WAITS


def test_checks_agree_with_the_diagnosis_of_a_log(client: Client, server: ServerInThread) -> None:
    """Of one run; an alert of long ago is found, too."""
    rank, (probe, transport) = Rank(server), probe_and_transport()
    rows = []
    for step in range(1, 151):
        scalars = {"reward/mean": 0.02, "advantage/zero_group_fraction": 0.97}
        scalars |= {"entropy/mean": 1.0, "train/grad_norm": 0.01 if step > 40 else 1.0}
        rows.append((step, scalars))
        probe.log(scalars)
        probe.step(step)
    probe.finish()
    rank.send(*reports(transport)[:150])
    of_log = diagnosis_of(rows)
    states = {state.kind: state for state in client.checks(rank.run_id)}
    raised = {kind for kind, state in states.items() if state.status == CheckStatus.FOUND}
    assert raised == {finding.kind for finding in of_log.findings}
    assert raised == {"zero_advantage"}
    follows = {k: s.message for k, s in states.items() if s.status == CheckStatus.FOLLOWS}
    assert follows == {kind: f"Follows from {by}." for kind, by in of_log.follows.items()}
    assert "gradient" in follows


def test_the_suggestion_agrees_with_its_preview_and_the_sums(
    client: Client, server: ServerInThread
) -> None:
    collapsed = Rank(server)
    for step in range(1, 101):
        what_if = sums(-4.0 - step / 100)
        send_step(collapsed, step, collapse(step), what_if=what_if, gain=0.02)
    found_all = client.diagnosis(collapsed.run_id)
    found = found_all.suggestion
    assert found is not None
    control = Control.from_document(found.control)
    shown = client.ask(calls.preview(collapsed.run_id, control))
    assert control.mu_low is not None
    each = [under(control, sums(-4.0 - step / 100)) for step in range(91, 101)]
    assert found.clip_fraction == pytest.approx(sum(one.clip_fraction for one in each) / 10)
    assert (shown.clip_fraction, shown.pace) == (found.clip_fraction, found.pace)
    changes = [
        0.75 * 0.02 * one.change * collapse(100) / collapse(step)
        for step, one in zip(range(91, 101), each, strict=True)
    ]
    assert shown.change == pytest.approx(sum(changes) / 10)
    assert shown.forecast is not None
    assert shown.forecast.step == [*range(101, 151)]
    together = client.ask(calls.outlook(collapsed.run_id, Control(reason="as it is")))
    assert together.diagnosis == client.diagnosis(collapsed.run_id)
    assert together.suggested == shown
    assert together.preview is not None
    assert together.preview.forecast == together.diagnosis.forecast
    offered = client.ask(calls.outlook(collapsed.run_id, curves=True)).preview
    assert offered == client.ask(calls.preview(collapsed.run_id, control, curves=True))
    pushed = client.ask(calls.set_control(collapsed.run_id, control, if_version=0))
    assert pushed.predicted is not None
    assert pushed.predicted.pace == shown.pace
    assert pushed.predicted.forecast == pytest.approx(shown.forecast.entropy, rel=1e-4)
    assert found_all.forecast is not None
    assert pushed.predicted.unchanged == pytest.approx(found_all.forecast.entropy, rel=1e-4)


def test_a_preview_changes_nothing_and_an_anneal_begins_now(
    server: ServerInThread, collapsed: Rank
) -> None:
    with Client(server.url, server.owner_token) as client:
        unchanged = client.ask(calls.preview(collapsed.run_id, Control()))
        assert unchanged.forecast == client.diagnosis(collapsed.run_id).forecast
        assert client.control(collapsed.run_id).version == 0
        shown = CliRunner().invoke(
            commands.control,
            [collapsed.run_id, "--hold-target", "100% to 40% over 300 steps", "--dry-run"],
            env={"ISENTROPE_URL": server.url, "ISENTROPE_TOKEN": server.owner_token},
        )
        assert "holding 101:100% 401:40%" in shown.output
        pushed = client.set_control(
            collapsed.run_id, hold={"anneal": ["100%", "40%"], "steps": 300}
        )
        assert pushed.control.hold is not None
        assert pushed.control.hold["target_curve"] == [[101, "100%"], [401, "40%"]]
    answer = httpx.post(
        f"{server.url}/api/v1/runs/{collapsed.run_id}/control/preview",
        json={"method": "clip_v", "mu_low": -1},
        headers={"Authorization": f"Bearer {server.owner_token}"},
    )
    assert answer.status_code == 422
    assert "mu_low" in answer.text
    raw = httpx.put(
        f"{server.url}/api/v1/runs/{collapsed.run_id}/control",
        json={"method": "none", "hold": {"target": "0.6 to 50% over 20 steps"}},
        headers={"Authorization": f"Bearer {server.owner_token}", "If-Match": '"1"'},
    )
    assert raw.json()["hold"]["target_curve"] == [[101, 0.6], [121, "50%"]]


def test_a_run_without_steps_has_no_data(server: ServerInThread, client: Client) -> None:
    found = client.diagnosis(Rank(server).run_id)
    assert (found.level, found.step, found.message) == (
        HealthLevel.NO_DATA,
        None,
        "No step has been reported.",
    )


def test_nan_is_reported_as_it_is(rank: Rank, client: Client) -> None:
    for step in range(5):
        send_step(rank, step, math.nan if step == 4 else 0.6)
    found = client.diagnosis(rank.run_id)
    assert found.level == HealthLevel.WATCH
    assert found.entropy == pytest.approx(0.6)
    assert "step 4 is NaN" in found.message


def test_a_resumed_run_is_as_old_as_its_first_attempt(
    server: ServerInThread, client: Client
) -> None:
    first = Rank(server, started_at=1.0)
    for step in range(1, 31):
        send_step(first, step, 0.6)
    second = Rank(server, run_id=first.run_id, incarnation="second", started_at=2.0)
    for step in range(25, 61):
        send_step(second, step, 0.6 * math.exp(-0.05 * (step - 24)))
    found = client.diagnosis(first.run_id)
    assert (found.level, found.lost_in_steps) == (HealthLevel.ACT, 60)
    assert found.early_level == pytest.approx(0.6)


def test_a_stored_rise_is_forecast_to_ln_v_at_most(server: ServerInThread, client: Client) -> None:
    rank = Rank(server)
    for step in range(1, 31):
        scalars = {"entropy/mean": 0.5 * 1.03**step, "token/vocabulary": 4.0}
        rank.send(StepReport(step=step, recorded_at=1.0, scalars=scalars))
    forecast = client.diagnosis(rank.run_id).forecast
    assert forecast is not None
    assert max(forecast.high) == pytest.approx(math.log(4))


@pytest.fixture(scope="module")
def cured(server: ServerInThread) -> Rank:
    """Falls by 0.01 nats a step until clip_v is applied at step 31, stays level to step 60; clip_b
    is pushed then."""
    rank = Rank(server)
    for step in range(1, 31):
        send_step(rank, step, 1.0 - 0.01 * step, what_if=sums(-4.0))
    with Client(server.url, server.owner_token) as client:
        client.set_control(
            rank.run_id,
            method="clip_v",
            mu_low=1.4,
            mu_high=1.4,
            scope="decreasing",
            reason="collapse",
        )
        applied = ControlOutcome(version=1, state=OutcomeState.APPLIED, at=1.0, step=31)
        for step in range(31, 61):
            scalars = {
                "entropy/mean": 0.7,
                "clip/fraction": 0.15,
                "change/by_intervention": 0.02,
                "entropy/gain": 0.5,
            }
            outcomes = (applied,) if step == 31 else ()
            rank.send(step_report(step, scalars, control_version=1, outcomes=outcomes))
        client.set_control(rank.run_id, method="none")
    return rank


def test_a_push_is_predicted_when_it_is_made(client: Client, cured: Rank) -> None:
    control = Control(method=Method("clip_v"), mu_low=1.4, mu_high=1.4, scope=Scope.DECREASING)
    what_if = under(control, sums(-4.0))
    none, clipped, begun = client.control_history(cured.run_id)
    assert clipped.predicted is not None
    assert clipped.predicted.steps == 10
    assert clipped.predicted.clip_fraction == pytest.approx(what_if.clip_fraction)
    shares = fmean(
        0.72 / (0.72 + 0.01 * steps) for steps in range(10)
    )  # an effect is a share of the entropy
    assert clipped.predicted.change == pytest.approx(0.75 * 0.5 * what_if.change * shares)
    assert clipped.predicted.pace is not None
    assert none.predicted is not None
    assert none.predicted.clip_fraction == 0.0
    assert begun.predicted is None


def test_an_applied_control_gets_its_verdict(
    server: ServerInThread, client: Client, cured: Rank
) -> None:
    none, clipped, begun = client.control_history(cured.run_id)
    diagnosis = client.diagnosis(cured.run_id)
    control = client.control(cured.run_id)
    assert (none.verdict, begun.verdict) == (None, None)
    verdict = clipped.verdict
    assert verdict is not None
    assert (verdict.version, verdict.outcome, verdict.judged_steps) == (1, Outcome.STOPPED, 20)
    assert verdict.realised == pytest.approx(0.0)
    assert verdict.without == pytest.approx(-0.0068, abs=1e-4)
    assert clipped.predicted is not None
    assert clipped.predicted.pace is not None
    assert verdict.promised == clipped.predicted.pace.value
    assert verdict.clip_fraction.realised == pytest.approx(0.15)
    assert diagnosis.verdict == verdict
    shown = CliRunner().invoke(
        commands.control,
        [cured.run_id],
        env={"ISENTROPE_URL": server.url, "ISENTROPE_TOKEN": server.owner_token},
    )
    assert f"verdict: {verdict.message}" in shown.output
    assert control.active is not None
    assert control.active.verdict == verdict
    asyncio.run(renew_digests(server.backend, rest=0))
    listed = client.run(cured.run_id).digest
    assert listed is not None
    assert listed.level == diagnosis.level == HealthLevel.HOLDING
    assert diagnosis.message == (
        "Entropy holds at 0.700 nats, 29 % below its early level, 29 steps after version 1 was"
        " applied."
    )


def test_a_replaced_control_is_judged_by_what_there_is(rank: Rank, client: Client) -> None:
    for step in range(1, 21):
        send_step(rank, step, 1.0 - 0.01 * step)
    for version, first in ((1, 21), (2, 28)):
        client.set_control(rank.run_id, method="clip_v", mu_low=version)
        applied = ControlOutcome(version=version, state=OutcomeState.APPLIED, at=1.0, step=first)
        for step in range(first, first + 7):
            outcomes = (applied,) if step == first else ()
            scalars = {
                "entropy/mean": 1.0 - 0.01 * step,
                "change/by_intervention": 0.0,
                "entropy/gain": 0.5,
            }
            rank.send(step_report(step, scalars, control_version=version, outcomes=outcomes))
    second, first_version, _ = client.control_history(rank.run_id)
    assert first_version.verdict is not None
    assert second.verdict is not None
    assert (first_version.verdict.outcome, first_version.verdict.judged_steps) == (
        Outcome.NO_EFFECT,
        7,
    )
    assert (second.verdict.outcome, second.verdict.judged_steps) == (Outcome.UNDECIDED, 0)
    assert first_version.predicted is None  # no step had what-if sums


def test_a_diagnosis_takes_nothing_of_later_steps(server: ServerInThread) -> None:
    """A report may arrive between the reading of the run and that of its sums."""
    rank = Rank(server)
    for step in range(12):
        send_step(rank, step, 1.0 - 0.01 * step, what_if=sums(-4.0))
    with server.backend.database.reading() as connection:
        run = runs.find(connection, rank.run_id, silent_after_seconds=60.0)
    assert run is not None
    send_step(rank, 12, 0.5, what_if=sums(-400.0))
    with server.backend.database.reading() as connection:
        found = measured(connection, run)
    assert found.step == 11
    assert {one.change_sum for one in found.last.sums} == {-4.0}


def test_a_push_warns_of_its_curve(client: Client, server: ServerInThread) -> None:
    """In its answer, and in the terminal; no later answer repeats it."""
    rank = Rank(server)
    for step in range(1, 31):
        rank.report(step, entropy__mean=0.5)
    environment = {"ISENTROPE_URL": server.url, "ISENTROPE_TOKEN": server.owner_token}
    command = ["control", rank.run_id, "--hold-target", "31:200% 90:40%"]
    result = CliRunner().invoke(commands.control, command[1:], env=environment)
    warning = "The curve starts 0.500 nats above the present level of 0.500 nats."
    assert result.exit_code == 0
    assert result.stderr.splitlines() == [f"warning: {warning}"]
    assert client.control(rank.run_id).warnings == []
    pushed = client.set_control(
        rank.run_id, hold={"target_curve": [[31, 0.1], [60, 0.1]]}, if_version=1
    )
    assert "0.400 nats below the present level" in pushed.warnings[-1]
