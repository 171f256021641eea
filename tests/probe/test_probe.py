"""The probe measures, gates and follows the control in force."""

from __future__ import annotations

import math
import time
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import isentrope
from isentrope.transport.transport import InMemoryTransport
from isentrope_wire.reports import OutcomeState
from tests.probe.tiny_loop import CLIP, VOCABULARY, TinyLoop, probe_and_transport, pushed, reports, run_steps


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
    assert reports(transport)[0].scalars["clip/fraction"] == pytest.approx(
        (~kept & loop.mask).sum().item() / loop.mask.sum().item()
    )


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
                lambda ids=token_ids: probe.score(nn.functional.dropout(loop.policy(loop.states)), ids),  # type: ignore[misc]
            )
    return loop.weights()


def test_a_loop_that_is_only_observed_stays_bit_identical() -> None:
    assert torch.equal(trained_weights(observe=False), trained_weights(observe=True))


def test_gradients_through_gate_are_those_of_log_softmax() -> None:
    logits, token_ids, advantages = TinyLoop().sample()
    logits = logits.detach().requires_grad_()
    probe, _ = probe_and_transport()
    gated = probe.gate(probe.score(logits, token_ids), advantages)
    plain = logits.log_softmax(-1).gather(-1, token_ids.unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(gated, plain, rtol=0, atol=1e-6)
    (ours,), (theirs,) = (torch.autograd.grad((out * advantages).sum(), logits) for out in (gated, plain))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)


def test_observed_change_is_that_of_the_same_tokens_after_the_update() -> None:
    loop = TinyLoop()
    probe, transport = probe_and_transport()
    logits, token_ids, advantages = loop.sample()
    scores = probe.score(logits, token_ids)
    loop.update(probe.gate(scores, advantages, loop.mask), advantages)
    probe.step(0, loop.optimizer, lambda: probe.score(loop.policy(loop.states), token_ids))
    after = torch.distributions.Categorical(logits=loop.policy(loop.states)).entropy()
    expected = (after - scores.entropies)[loop.mask].mean().item()
    assert reports(transport)[0].scalars["entropy/observed_change"] == pytest.approx(expected, abs=1e-6)
    assert reports(transport)[0].labels["calibration/momentum"] == "0.9"


def test_the_prediction_agrees_with_what_plain_gradient_descent_does() -> None:
    """With SGD straight on the logits the unit prediction is the observed change up to one constant: the step size."""
    torch.manual_seed(0)
    table = nn.Parameter(torch.randn(400, VOCABULARY))
    optimizer = torch.optim.SGD([table], lr=0.4)
    probe, transport = probe_and_transport()
    for step in range(12):
        token_ids = torch.distributions.Categorical(logits=table.detach()).sample()
        advantages = torch.randn(400)
        scores = probe.score(table, token_ids)
        loss = -(probe.gate(scores, advantages) * advantages).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        probe.step(step, optimizer, lambda ids=token_ids: probe.score(table, ids))  # type: ignore[misc]
    last = reports(transport)[-1].scalars
    # d logits = lr / 400 per token: the gain from unit prediction to nats.
    assert last["entropy/gain"] == pytest.approx(0.4 / 400, rel=0.01)
    assert last["entropy/prediction_r2"] > 0.999
    assert last["entropy/prediction_sign_agreement"] == 1.0


def test_micro_batches_make_one_report() -> None:
    loop = TinyLoop()
    logits, token_ids, advantages = loop.sample()
    whole, whole_transport = probe_and_transport()
    whole.gate(whole.score(logits, token_ids), advantages, loop.mask)
    whole.step(0)
    parts, parts_transport = probe_and_transport()
    for rows in (slice(0, 3), slice(3, 16)):
        parts.gate(parts.score(logits[rows], token_ids[rows]), advantages[rows], loop.mask[rows])
    parts.step(0)
    timing = {"probe/seconds", "probe/dropped_reports"}
    one, other = (
        {name: value for name, value in reports(t)[0].scalars.items() if name not in timing}
        for t in (whole_transport, parts_transport)
    )
    assert one == pytest.approx(other, rel=1e-9)


def test_one_advantage_per_sequence_is_one_per_token() -> None:
    logits, token_ids, _ = TinyLoop().sample()
    per_sequence = torch.randn(16)
    results = []
    for advantages in (per_sequence, per_sequence.unsqueeze(1), per_sequence.unsqueeze(1).expand(16, 5)):
        probe, transport = probe_and_transport()
        probe.gate(probe.score(logits, token_ids), advantages)
        probe.step(0)
        results.append(reports(transport)[0].scalars["entropy/unit_predicted_change"])
    assert results[0] == results[1] == results[2]


def test_the_sampler_s_logprobs_make_the_prediction_off_policy() -> None:
    logits, token_ids, advantages = TinyLoop().sample()
    probe, transport = probe_and_transport()
    scores = probe.score(logits, token_ids)
    probe.gate(scores, advantages, sampler_logprobs=scores.logprobs.detach() - math.log(2))
    probe.step(0)
    scalars = reports(transport)[0].scalars
    assert scalars["ratio/mean"] == pytest.approx(2.0, rel=1e-6)
    on_policy = -(advantages * scores.vocab_centered_scores).mean().item()
    assert scalars["entropy/unit_predicted_change"] == pytest.approx(2 * on_policy, rel=1e-5)


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


def test_a_pushed_control_is_applied_at_the_next_step_boundary_and_acknowledged_with_its_step() -> None:
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


def test_a_stale_or_impossible_control_is_refused_and_the_old_one_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("isentrope.probe.CAPABILITIES", ("method:none", "method:clip_v"))
    loop = TinyLoop()
    probe, transport = probe_and_transport(control=CLIP)
    transport.set_control(pushed(1, expires_at=time.time() - 1))
    run_steps(loop, probe, 1)
    transport.set_control(pushed(2, isentrope.Control(method="clip_b", mu_low=1.0)))
    run_steps(loop, probe, 1, first=1)
    assert [outcome.state for report in reports(transport) for outcome in report.outcomes] == [
        OutcomeState.EXPIRED,
        OutcomeState.REJECTED,
    ]
    assert probe.control == CLIP


class FullTransport(InMemoryTransport):
    """Refuses messages while `full`."""

    full = False

    def put(self, make: Any) -> bool:
        return False if self.full else super().put(make)


def test_an_outcome_that_found_no_room_travels_with_a_later_report() -> None:
    transport = FullTransport()
    probe = isentrope.Probe("test", transport=transport)
    transport.full = True
    transport.set_control(pushed(1))
    probe.step(10)
    transport.full = False
    probe.step(11)
    (outcome,) = reports(transport)[0].outcomes
    assert (outcome.version, outcome.state, outcome.step) == (1, OutcomeState.APPLIED, 10)


def test_step_alone_reports_what_was_logged_and_nothing_invented() -> None:
    probe, transport = probe_and_transport()
    probe.log({"reward/mean": 0.4, "loss": torch.tensor(1.5), "kl": math.nan})
    probe.step(7)
    (report,) = reports(transport)
    assert report.step == 7
    assert report.scalars.keys() == {"reward/mean", "loss", "kl", "probe/seconds", "probe/dropped_reports"}
    assert (report.scalars["reward/mean"], report.scalars["loss"]) == (0.4, 1.5)
    assert math.isnan(report.scalars["kl"])
    assert report.histograms == ()


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
    assert histograms.keys() == {"score/vocab_centered", "score/discriminator", "entropy/token", "token/probability"}
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
    assert reports(transport)[0].scalars["entropy/unit_predicted_change"] == pytest.approx(expected, rel=1e-5)


def test_thresholds_of_a_step_without_tokens_clip_nothing() -> None:
    probe, _ = probe_and_transport(control=CLIP, threshold_source="previous_step")
    loop = TinyLoop()
    logits, token_ids, advantages = loop.sample()
    probe.gate(probe.score(logits, token_ids), advantages, torch.zeros_like(loop.mask))
    probe.step(0)
    logits = logits.detach().requires_grad_()
    scores = probe.score(logits, token_ids)
    (gated,) = torch.autograd.grad(probe.gate(scores, advantages, loop.mask).sum(), logits, retain_graph=True)
    (ungated,) = torch.autograd.grad(scores.logprobs.sum(), logits)
    assert torch.equal(gated, ungated)
