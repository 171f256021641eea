"""The probe measures, gates and follows the control in force."""

from __future__ import annotations

import math
import sys
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import isentrope
from isentrope.transport.transport import InMemoryTransport
from isentrope_wire import metrics
from isentrope_wire.errors import InputError
from isentrope_wire.reports import OutcomeState, RunFinished, StepReport
from tests.probe.tiny_loop import (
    CLIP,
    VOCABULARY,
    TinyLoop,
    probe_and_transport,
    pushed,
    reports,
    run_steps,
)


def test_without_an_intervention_gate_returns_the_very_tensor() -> None:
    probe, _ = probe_and_transport()
    logits, token_ids, advantages = TinyLoop().sample()
    scores = probe.score(logits, token_ids)
    assert probe.gate(scores, advantages) is scores.logprobs


def test_an_intervention_keeps_values_and_lets_gradient_through_only_where_kept() -> None:
    probe, transport = probe_and_transport(control=CLIP)
    loop = TinyLoop()
    logits, token_ids, advantages = loop.sample()
    logits = logits.detach().requires_grad_()
    scores = probe.score(logits, token_ids)
    gated = probe.gate(scores, advantages, loop.mask)
    assert torch.equal(gated, scores.logprobs)
    (gradient,) = torch.autograd.grad(gated.sum(), logits, retain_graph=True)
    (ungated,) = torch.autograd.grad(scores.logprobs.sum(), logits)
    centred = scores.vocab_centered_scores
    kept = centred.abs() <= centred[loop.mask].std(correction=0)
    assert torch.equal(gradient[kept], ungated[kept])
    assert torch.equal(gradient[~kept], torch.zeros_like(gradient[~kept]))
    probe.step(0)
    scalars = reports(transport)[0].scalars
    assert scalars["clip/fraction"] == pytest.approx(
        (~kept & loop.mask).sum().item() / loop.mask.sum().item()
    )
    assert scalars["token/vocabulary"] == VOCABULARY


def trained_weights(observe: bool) -> Tensor:
    """Weights after ten steps of a loop that computes its own log-probs."""
    loop = TinyLoop()
    probe, _ = probe_and_transport()
    for step in range(10):
        logits, token_ids, advantages = loop.sample()
        logprobs = logits.log_softmax(-1).gather(-1, token_ids.unsqueeze(-1)).squeeze(-1)
        if observe:
            probe.gate(probe.score(logits, token_ids), advantages, loop.mask)
        loop.update(logprobs, advantages)
        if observe:
            probe.log({"reward/mean": advantages.mean()})
            # Dropout draws random numbers while re-scoring: the loop must not notice.
            probe.step(
                step,
                loop.optimizer,
                lambda ids=token_ids: probe.score(
                    nn.functional.dropout(loop.policy(loop.states)), ids
                ),  # type: ignore[misc]
            )
    return loop.weights()


def test_a_loop_that_is_only_observed_stays_bit_identical() -> None:
    assert torch.equal(trained_weights(observe=False), trained_weights(observe=True))


def test_previous_step_thresholds_are_those_of_the_step_before() -> None:
    probe, transport = probe_and_transport(control=CLIP, threshold_source="previous_step")
    first = torch.randn(64, VOCABULARY, generator=torch.Generator().manual_seed(1))
    ids = torch.randint(0, VOCABULARY, (64,), generator=torch.Generator().manual_seed(2))
    sigma = probe.score(first, ids).vocab_centered_scores.std(correction=0)
    probe.gate(probe.score(first, ids), torch.ones(64))
    probe.step(0)
    second = probe.score(first * 3, ids)
    probe.gate(second, torch.ones(64))
    probe.step(1)
    expected = (second.vocab_centered_scores.abs() > sigma).float().mean().item()
    assert reports(transport)[1].scalars["clip/fraction"] == pytest.approx(expected)
    assert reports(transport)[1].labels["threshold/source"] == "previous_step"


def test_a_pushed_control_is_applied_at_the_next_step_boundary_and_acknowledged_with_its_step() -> (
    None
):
    loop = TinyLoop()
    probe, transport = probe_and_transport()
    run_steps(loop, probe, 2, first=40)
    logits, token_ids, advantages = loop.sample()
    first_half = probe.gate(probe.score(logits, token_ids), advantages)
    transport.set_control(pushed(1))  # arrives within step 42
    scores = probe.score(logits, token_ids)
    assert probe.gate(scores, advantages) is scores.logprobs
    assert first_half.shape == scores.logprobs.shape
    probe.step(42)
    run_steps(loop, probe, 2, first=43)
    by_step = {report.step: report for report in reports(transport)}
    assert [by_step[step].control_version for step in (41, 42, 43, 44)] == [0, 0, 1, 1]
    (outcome,) = by_step[43].outcomes
    assert (outcome.version, outcome.state, outcome.step) == (1, OutcomeState.APPLIED, 43)
    assert by_step[42].scalars["clip/fraction"] == 0.0
    assert by_step[43].scalars["clip/fraction"] > 0.0
    assert by_step[44].outcomes == ()


class FullTransport(InMemoryTransport):
    """Refuses messages while `full`."""

    full = False

    def put(self, make: Any) -> bool:
        return False if self.full else super().put(make)


def test_an_outcome_that_found_no_room_travels_with_a_later_report() -> None:
    transport, loop = FullTransport(), TinyLoop()
    probe = isentrope.Probe("test", transport=transport)
    transport.full = True
    transport.set_control(pushed(1))
    run_steps(loop, probe, 1, first=10)
    transport.full = False
    run_steps(loop, probe, 1, first=11)
    (outcome,) = reports(transport)[0].outcomes
    assert (outcome.version, outcome.state, outcome.step) == (1, OutcomeState.APPLIED, 10)


def test_step_alone_reports_what_was_logged_and_nothing_invented() -> None:
    probe, transport = probe_and_transport()
    probe.log({"reward/mean": 0.4, "loss": torch.tensor(1.5), "kl": math.nan})
    probe.step(7)
    (report,) = reports(transport)
    assert report.step == 7
    known = {name for name in report.scalars if not name.startswith("system/")}
    assert known == {"reward/mean", "loss", "kl", "probe/seconds", "probe/dropped_reports"}
    assert (report.scalars["reward/mean"], report.scalars["loss"]) == (0.4, 1.5)
    assert math.isnan(report.scalars["kl"])
    assert report.histograms == ()


@pytest.mark.parametrize(
    ("ending", "gates", "expected"),
    [
        ("finished", False, {"eval/accuracy": 0.7, "reward/mean": 0.9}),
        # Of a step that was begun, the last one's numbers stay.
        ("finished", True, {"eval/accuracy": 0.7}),
        ("failed", False, {"eval/accuracy": 0.7}),
    ],
)
def test_what_is_logged_after_the_last_step_arrives(
    ending: str, gates: bool, expected: dict[str, float]
) -> None:
    loop = TinyLoop()
    probe, transport = probe_and_transport()
    for step in (6, 7):
        probe.log({"reward/mean": 0.4})
        run_steps(loop, probe, 1, first=step)
    if gates:
        logits, token_ids, advantages = loop.sample()
        probe.gate(probe.score(logits, token_ids), advantages)
    probe.log({"eval/accuracy": torch.tensor(0.7), "reward/mean": 0.9})
    probe.finish(ending)
    *_, rest, end = transport.messages
    assert isinstance(rest, StepReport)
    assert isinstance(end, RunFinished)
    assert (rest.step, end.step, len(transport.messages)) == (7, 7, 4)
    assert rest.scalars == pytest.approx(expected)


def test_nothing_logged_since_the_last_step_adds_no_report() -> None:
    probe, transport = probe_and_transport()
    probe.log({"reward/mean": 0.4})
    probe.step(1)
    probe.finish()
    assert [type(message) for message in transport.messages] == [StepReport, RunFinished]


def test_an_evaluation_without_any_step_arrives() -> None:
    probe, transport = probe_and_transport()
    probe.log({"eval/accuracy": 0.7})
    probe.finish()
    (report,) = reports(transport)
    assert (report.step, report.scalars) == (0, {"eval/accuracy": 0.7})


NUMBERS: dict[str, Any] = {
    "np.float32": np.float32(0.5),
    "np.int64": np.int64(3),
    "np.bool": np.bool_(True),
    "array": np.array(0.5),
    "array of one": np.array([[0.5]]),
    "tensor of one": torch.tensor([[0.5]], dtype=torch.bfloat16),
    "large integer": 10**300,
}


def test_numpys_numbers_are_logged() -> None:
    probe, transport = probe_and_transport()
    probe.log(NUMBERS)
    probe.step(1)
    scalars = reports(transport)[0].scalars
    assert {name: scalars[name] for name in NUMBERS} == {
        "np.float32": 0.5,
        "np.int64": 3.0,
        "np.bool": 1.0,
        "array": 0.5,
        "array of one": 0.5,
        "tensor of one": 0.5,
        "large integer": 1e300,
    }


class WithoutValue:
    def __float__(self) -> float:
        raise RuntimeError("not computed yet")

    def __repr__(self) -> str:
        return "a promise"


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "None"),
        (10**400, "1.8e308"),
        (np.ones(3), "array"),
        (np.array(["word"]), "word"),
        (np.complex64(1j), "must be a number"),
        (WithoutValue(), "a promise"),
    ],
)
def test_a_bad_value_leaves_the_others(value: Any, words: str) -> None:
    probe, transport = probe_and_transport()
    with pytest.raises(InputError, match=words):
        probe.log({"before": 1.0, "bad": value, "after": 2.0})
    probe.step(1)
    scalars = reports(transport)[0].scalars
    assert (scalars["before"], scalars["after"]) == (1.0, 2.0)
    assert "bad" not in scalars


def test_a_report_has_pace_and_memory_of_its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    # In the second step the machine's clock is set by a day.
    wall, steady = iter([0.0, 86400.0, 86401.0]), iter([10.0, 13.0, 14.0])
    clocks = SimpleNamespace(time=partial(next, wall), monotonic=partial(next, steady))
    monkeypatch.setattr("isentrope.steps.report.time", clocks)
    loop = TinyLoop()
    probe, transport = probe_and_transport()
    for step in (1, 3, 4):
        if step == 4:
            probe.log({"step_time": 9.0})
        run_steps(loop, probe, 1, first=step)
    first, second, third = reports(transport)
    pace = (13 - 10) / 2
    assert metrics.TIME_STEP_SECONDS not in first.scalars
    assert second.scalars[metrics.TIME_STEP_SECONDS] == pytest.approx(pace)
    assert second.scalars[metrics.SYSTEM_TOKENS_PER_SECOND] == pytest.approx(
        second.scalars[metrics.TOKEN_COUNT] / pace
    )
    assert metrics.TIME_STEP_SECONDS not in third.scalars  # the loop has said it
    assert metrics.SYSTEM_TOKENS_PER_SECOND in third.scalars
    if sys.platform == "linux":
        assert 0.01 < third.scalars[metrics.SYSTEM_HOST_MEMORY] < 100
    if not torch.cuda.is_initialized():
        assert metrics.SYSTEM_DEVICE_MEMORY not in third.scalars


def test_a_logged_tensor_has_the_value_it_had_when_it_was_logged() -> None:
    probe, transport = probe_and_transport()
    value = torch.tensor(1.0)
    probe.log({"x": value})
    value.fill_(2.0)
    probe.step(0)
    assert reports(transport)[0].scalars["x"] == 1.0


def test_histograms_count_each_valid_token_once_in_64_bins() -> None:
    loop = TinyLoop()
    probe, transport = probe_and_transport()
    run_steps(loop, probe, 1)
    histograms = {histogram.name: histogram for histogram in reports(transport)[0].histograms}
    assert histograms.keys() == {
        "score/vocab_centered",
        "score/discriminator",
        "entropy/token",
        "token/probability",
    }
    for histogram in histograms.values():
        assert len(histogram.counts) == 64
        assert sum(histogram.counts) == int(loop.mask.sum())


def test_advantages_that_are_overwritten_later_count_with_the_values_they_had() -> None:
    loop = TinyLoop()
    probe, transport = probe_and_transport()
    logits, token_ids, advantages = loop.sample()
    scores = probe.score(logits, token_ids)
    expected = -(advantages * scores.vocab_centered_scores)[loop.mask].double().mean().item()
    probe.gate(scores, advantages, loop.mask)
    advantages.zero_()
    probe.step(0)
    assert reports(transport)[0].scalars["entropy/unit_predicted_change"] == pytest.approx(
        expected, rel=1e-5
    )
