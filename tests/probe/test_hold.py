"""An entropy is held near its target where it collapses when left to itself, alone and on several
ranks."""

from __future__ import annotations

import time
from pathlib import Path
from statistics import fmean

import pytest
from torch import Tensor

import isentrope
from isentrope_wire.control import Method, Scope
from isentrope_wire.reports import OutcomeState, StepReport
from isentrope_wire.what_if import WhatIfCurve
from tests.probe.ranks.gang import run_ranks
from tests.probe.tiny_loop import CLIP, TinyLoop, probe_and_transport, pushed, reports, run_steps

STEPS = 120


def entropies(run: list[StepReport]) -> list[float]:
    return [report.scalars["entropy/mean"] for report in run]


def run_of(control: isentrope.Control, steps: int = STEPS) -> list[StepReport]:
    probe, transport = probe_and_transport(control=control)
    run_steps(TinyLoop(), probe, steps)
    return reports(transport)


def assert_held(run: list[StepReport], target: float) -> None:
    settled = entropies(run)[60:]
    assert fmean(abs(entropy - target) for entropy in settled) < 0.06 * target
    assert {report.labels["hold/state"] for report in run[20:]} <= {
        "approaching",
        "holding",
        "slewing",
        "limit",
        "resting",
    }


def test_the_entropy_is_held_near_the_target_where_it_collapses_by_itself() -> None:
    alone = entropies(run_of(isentrope.Control()))
    target = 0.75 * alone[0]
    assert alone[-1] < 0.85 * target
    assert_held(run_of(isentrope.Control(method="clip_b", hold={"target_entropy": target})), target)


def test_numbers_that_the_writer_s_thread_reads_are_steered_by(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ISENTROPE_HOME", str(tmp_path))
    loop, states = TinyLoop(), []
    control = isentrope.Control(hold={"target_entropy": 3.0, "max_change_per_step": 0.05})
    with isentrope.Probe("test", mode="offline", control=control) as probe:
        for step in range(24):
            run_steps(loop, probe, 1, first=step)
            deadline = time.monotonic() + 20
            while probe.latest.step < step and time.monotonic() < deadline:
                time.sleep(0.005)  # as a generation would
            states.append(probe.latest.labels["hold/state"])
    assert states[0] == "fallback"
    assert set(states[-8:]) <= {"approaching", "slewing", "holding", "limit"}


class OneTokenIsRight(TinyLoop):
    """A policy that learns one token, and so loses all of its entropy."""

    def sample(self) -> tuple[Tensor, Tensor, Tensor]:
        logits, token_ids, _ = super().sample()
        rewards = (token_ids == 3).float()
        return logits, token_ids, rewards - rewards.mean()


@pytest.mark.slow
def test_a_tenth_of_the_start_is_reached_and_held() -> None:
    loop = OneTokenIsRight()
    loop.optimizer.param_groups[0]["lr"] = 0.02
    probe, transport = probe_and_transport(control=isentrope.Control(hold="10%"))
    run_steps(loop, probe, 280)
    run = reports(transport)
    target = 0.1 * sorted(entropies(run)[:3])[1]
    assert run[-1].scalars["hold/target"] == pytest.approx(target)
    assert fmean(abs(entropy / target - 1) for entropy in entropies(run)[-50:]) < 0.1
    # On the way nothing that lowers entropy is clipped: the approach is not slowed.
    on_the_way = [
        report for report in run[20:100] if report.labels["control/scope"] == "decreasing"
    ]
    assert len(on_the_way) < 8
    assert {report.labels["hold/state"] for report in run[40:80]} == {"approaching"}


def test_every_step_says_what_was_done_and_what_was_in_force() -> None:
    run = run_of(
        isentrope.Control(hold={"target_entropy": 3.0, "side": "raise", "lever": "thresholds"}), 30
    )
    assert all(
        report.scalars["hold/target"] == 3.0 and report.control_version == 0 for report in run
    )
    assert (run[0].labels["hold/state"], run[0].labels["control/method"]) == (
        "fallback",
        Method.NONE,
    )
    assert run[0].labels["hold/why"] == "No measurements have arrived yet."
    assert "hold/mu" not in run[0].scalars
    clipping = [report for report in run if "hold/mu" in report.scalars]
    assert len(clipping) > 5
    for report in clipping:
        assert (report.labels["control/method"], report.labels["control/scope"]) == (
            Method.CLIP_V,
            Scope.DECREASING,
        )
        mu = report.scalars["hold/mu"]
        assert report.scalars["control/mu_low"] == report.scalars["control/mu_high"] == mu
        # Thresholds come from the step before and the what-if's from the same: it knows the share
        # that was clipped.
        assert report.what_if is not None
        asked = WhatIfCurve(report.what_if, Scope.DECREASING, Method.CLIP_V).evaluate(mu, mu)
        off = abs(asked.clip_fraction - report.scalars["clip/fraction"])
        assert off <= asked.clip_fraction_bound + 1e-9
    mus = [report.scalars["hold/mu"] for report in clipping]
    assert len(set(mus)) > 3
    assert fmean(report.scalars["clip/fraction"] for report in clipping) > 0


def test_every_step_says_which_gain_and_drift_its_decision_went_by() -> None:
    loop = TinyLoop()
    probe, transport = probe_and_transport(
        control=isentrope.Control(
            hold={"target_entropy": 3.0, "side": "raise", "lever": "thresholds"}
        )
    )
    run_steps(loop, probe, 12)
    # The step before it is the newest one whose numbers were there when step 12 began.
    known = probe.state_dict()["hold"]["measured"]["entropy"]
    run_steps(loop, probe, 1, first=12)
    run = reports(transport)
    assert not {"hold/gain", "hold/drift", "hold/resting_point"} & run[0].scalars.keys()
    assert run[12].scalars["hold/gain"] == known["gain"] != run[12].scalars["entropy/gain"]
    assert run[12].scalars["hold/drift"] == known["drift"] != 0
    assert run[12].scalars["hold/resting_point"] == pytest.approx(
        known["mean_entropy"] + known["to_come"]
    )
    free = run_of(isentrope.Control(), 4)
    assert not any(name.startswith("hold/") for report in free for name in report.scalars)


def test_without_an_observed_change_the_pushed_thresholds_stay_with_the_reason() -> None:
    control = isentrope.Control(
        method="clip_v", mu_low=1.0, mu_high=1.0, hold={"target_entropy": 2.9}
    )
    probe, transport = probe_and_transport(control=control)
    plain, plain_transport = probe_and_transport(control=CLIP)
    for each in (probe, plain):
        loop = TinyLoop()
        for step in range(12):
            logits, token_ids, advantages = loop.sample()
            loop.update(each.gate(each.score(logits, token_ids), advantages, loop.mask), advantages)
            each.step(step, loop.optimizer)
    last = reports(transport)[-1]
    assert last.labels["hold/state"] == "fallback"
    assert "rescore=" in last.labels["hold/why"]
    assert last.scalars["control/mu_low"] == 1.0
    assert entropies(reports(transport)) == entropies(reports(plain_transport))
    assert (
        last.scalars["clip/fraction"] == reports(plain_transport)[-1].scalars["clip/fraction"] > 0
    )


def test_a_hold_is_pushed_and_ended_while_the_run_is_live() -> None:
    loop = TinyLoop()
    probe, transport = probe_and_transport()
    run_steps(loop, probe, 20)
    hold = isentrope.Control(hold={"target_entropy": 3.0, "lever": "thresholds"})
    transport.set_control(pushed(1, hold))
    run_steps(loop, probe, 10, first=20)
    transport.set_control(pushed(2))
    run_steps(loop, probe, 2, first=30)
    run = reports(transport)
    assert [(o.version, o.state, o.step) for report in run for o in report.outcomes] == [
        (1, OutcomeState.APPLIED, 20),
        (2, OutcomeState.APPLIED, 30),
    ]
    # The calibration was ready: the first step under it holds already.
    assert all(
        report.labels["hold/state"] in ("approaching", "slewing", "limit") for report in run[20:30]
    )
    assert [report.labels["control/method"] for report in run[28:]] == [
        "clip_v",
        "clip_v",
        "clip_v",
        "clip_v",
    ]
    assert "hold/state" not in run[30].labels
    assert probe.control == CLIP


def held_on_rank(
    rank: int, steps: int, control: isentrope.Control
) -> tuple[list[StepReport], list[float]]:
    """Both ranks train the same policy on the same tokens; only rank 0 measures for both."""
    probe, transport = probe_and_transport(control=control)
    loop = TinyLoop()
    run_steps(loop, probe, steps)
    probe.finish()
    return reports(transport), loop.weights().tolist()


def test_all_ranks_run_under_what_rank_0_decided() -> None:
    target = 2.26
    (first, first_weights), (second, second_weights) = run_ranks(
        2, held_on_rank, STEPS, isentrope.Control(hold={"target_entropy": target})
    )
    assert_held(first, target)
    for left, right in zip(first, second, strict=True):
        assert left.labels["hold/state"] == right.labels["hold/state"]
        assert left.scalars.get("hold/mu") == right.scalars.get("hold/mu")
    assert first_weights == second_weights
    assert first[0].labels["hold/why"] == "No decision has been made for this control yet."
