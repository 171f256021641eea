"""The probe measures and gates without hurting the run."""

from __future__ import annotations

import logging
import math
import os
import subprocess
import sys
import time
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import isentrope
from isentrope.errors import ConfigurationError, InputError
from isentrope.statistics import token_ledger
from isentrope.transport.in_memory import InMemoryTransport
from isentrope_wire.messages import ControlSnapshot, OutcomeState, RunFinished, StepReport

VOCABULARY = 24
CLIP = isentrope.Control(method="clip_v", mu_low=1.0, mu_high=1.0)


class TinyLoop:
    """A policy of one linear layer and its on-policy updates, seeded."""

    def __init__(self, seed: int = 0) -> None:
        torch.manual_seed(seed)
        self.policy = nn.Linear(8, VOCABULARY)
        self.optimizer = torch.optim.AdamW(self.policy.parameters(), lr=1e-2)
        self.states = torch.randn(16, 5, 8)
        self.mask = torch.rand(16, 5) < 0.9

    def sample(self) -> tuple[Tensor, Tensor, Tensor]:
        logits = self.policy(self.states)
        token_ids = torch.distributions.Categorical(logits=logits.detach()).sample()
        return logits, token_ids, (token_ids % 3).float() - 1

    def update(self, logprobs: Tensor, advantages: Tensor) -> None:
        ratio = (logprobs - logprobs.detach()).exp()
        loss = -(ratio * advantages * self.mask).sum() / self.mask.sum()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

    def weights(self) -> Tensor:
        return torch.cat([parameter.detach().flatten() for parameter in self.policy.parameters()])


def probe_and_transport(**kwargs: Any) -> tuple[isentrope.Probe, InMemoryTransport]:
    transport = InMemoryTransport()
    return isentrope.Probe("test", transport=transport, **kwargs), transport


def reports(transport: InMemoryTransport) -> list[StepReport]:
    return [message for message in transport.messages if isinstance(message, StepReport)]


def run_steps(loop: TinyLoop, probe: isentrope.Probe, steps: int, first: int = 0) -> None:
    for step in range(first, first + steps):
        logits, token_ids, advantages = loop.sample()
        scores = probe.score(logits, token_ids)
        loop.update(probe.gate(scores, advantages, loop.mask), advantages)
        probe.step(step, loop.optimizer, lambda ids=token_ids: probe.score(loop.policy(loop.states), ids))  # type: ignore[misc]


def pushed(version: int, control: isentrope.Control = CLIP, expires_at: float | None = None) -> ControlSnapshot:
    return ControlSnapshot(version=version, control=control, author="ada", requested_at=0.0, expires_at=expires_at)


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
            probe.observe(probe.score(logits, token_ids), advantages, loop.mask)
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


def test_a_stale_or_impossible_control_is_refused_and_the_old_one_stays() -> None:
    loop = TinyLoop()
    probe, transport = probe_and_transport(control=CLIP)
    transport.set_control(pushed(1, expires_at=time.time() - 1))
    run_steps(loop, probe, 1)
    transport.set_control(pushed(2, isentrope.Control(method="kl_cov")))
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


@pytest.mark.parametrize(
    ("logits", "token_ids", "words"),
    [
        (torch.zeros(2, 5, 9), torch.zeros(2, 4, dtype=torch.long), r"pass logits\[:, :-1\]"),
        (torch.zeros(4, 9), torch.tensor([0, 1, 2, 9]), r"must lie in \[0, 9\).*got 9"),
        (torch.zeros(4, 9), torch.tensor([0, 1, 2, -100]), "got -100"),
        (torch.full((4, 9), math.nan), torch.tensor([0, 1, 2, 3]), "4 of 4 rows hold NaN"),
    ],
)
def test_the_first_call_names_what_is_wrong(logits: Tensor, token_ids: Tensor, words: str) -> None:
    probe, _ = probe_and_transport()
    with pytest.raises(InputError, match=words):
        probe.score(logits, token_ids)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"advantages": torch.zeros(3)}, r"one per token \[4, 5\] or one per sequence \[4\], got \[3\]"),
        ({"advantages": torch.zeros(4), "mask": torch.ones(4)}, "mask must have the tokens' shape"),
        ({"advantages": torch.zeros(4), "sampler_logprobs": torch.zeros(4, 4)}, "sampler_logprobs must have"),
    ],
)
def test_gate_names_the_argument_whose_shape_does_not_fit(arguments: dict[str, Tensor], words: str) -> None:
    probe, _ = probe_and_transport()
    scores = probe.score(torch.zeros(4, 5, 9), torch.zeros(4, 5, dtype=torch.long))
    with pytest.raises(InputError, match=words):
        probe.gate(scores, **arguments)


def test_rescore_of_other_tokens_is_refused() -> None:
    probe, _ = probe_and_transport()
    scores = probe.score(torch.zeros(4, 5, 9), torch.zeros(4, 5, dtype=torch.long))
    probe.gate(scores, torch.zeros(4))
    other = probe.score(torch.zeros(3, 5, 9), torch.zeros(3, 5, dtype=torch.long))
    with pytest.raises(InputError, match=r"shapes \[\[4, 5\]\], got \[\[3, 5\]\]"):
        probe.step(0, rescore=lambda: other)


@pytest.mark.parametrize("value", ["high", torch.zeros(2), torch.tensor(1j), 1j, None])
def test_only_numbers_can_be_logged(value: Any) -> None:
    probe, _ = probe_and_transport()
    with pytest.raises(InputError, match="reward must be"):
        probe.log({"reward": value})


@pytest.mark.parametrize("name", [1, None, "", "half a \ud800 character"])
def test_a_scalar_s_name_is_text(name: Any) -> None:
    probe, _ = probe_and_transport()
    with pytest.raises(InputError, match="name of a logged scalar"):
        probe.log({name: 1.0})


@pytest.mark.parametrize("step", [-1, 1.5, "7", None, 2**63])
def test_a_step_s_number_is_a_whole_one(step: Any) -> None:
    probe, transport = probe_and_transport()
    with pytest.raises(InputError, match="step must be a whole number from 0 on"):
        probe.step(step)
    assert transport.messages == []


def test_a_step_s_number_that_cannot_be_meant_costs_that_report_only(monkeypatch: pytest.MonkeyPatch) -> None:
    probe, transport = probe_and_transport()
    probe.step(torch.tensor(0))  # type: ignore[arg-type]
    monkeypatch.delenv("PYTEST_CURRENT_TEST")
    for step in ("1", "2", 3):
        probe.step(step)  # type: ignore[arg-type]
    assert [report.step for report in reports(transport)] == [0, 3]
    assert reports(transport)[1].scalars["probe/failures"] == 2.0


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


def test_a_loop_that_never_calls_step_does_not_fill_the_memory(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(token_ledger, "MAX_TOKENS", 1000)
    loop = TinyLoop()
    probe, transport = probe_and_transport()
    logits, token_ids, advantages = loop.sample()
    scores = probe.score(logits, token_ids)
    with caplog.at_level(logging.WARNING, logger="isentrope"):
        for _ in range(40):
            assert probe.gate(scores, advantages, loop.mask) is scores.logprobs
    assert len(caplog.records) == 1
    assert "probe.step" in caplog.text
    assert probe._ledger.batches == []
    probe.step(0, rescore=lambda: scores)
    run_steps(loop, probe, 1, first=1)
    first, second = reports(transport)
    assert "entropy/mean" not in first.scalars
    assert first.scalars["token/not_recorded"] == 40 * 80
    assert second.scalars["token/count"] == int(loop.mask.sum())
    assert "token/not_recorded" not in second.scalars


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


def test_after_the_first_step_a_failure_is_logged_once_counted_and_training_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    loop = TinyLoop()
    probe, transport = probe_and_transport()
    run_steps(loop, probe, 1)
    monkeypatch.delenv("PYTEST_CURRENT_TEST")
    with caplog.at_level(logging.ERROR, logger="isentrope"):
        for step in (1, 2):
            logits, token_ids, _ = loop.sample()
            scores = probe.score(logits, token_ids)
            assert probe.gate(scores, torch.zeros(99)) is scores.logprobs
            probe.step(step, rescore=lambda: 1 / 0)  # type: ignore[arg-type, return-value]
    assert len(caplog.records) == 1
    assert [report.scalars.get("probe/failures") for report in reports(transport)] == [None, 1.0, 2.0]


def test_a_later_batch_of_nan_is_counted_not_raised() -> None:
    loop = TinyLoop()
    probe, transport = probe_and_transport()
    run_steps(loop, probe, 1)
    logits, token_ids, advantages = loop.sample()
    probe.gate(probe.score(torch.full_like(logits, math.nan), token_ids), advantages, loop.mask)
    probe.step(1)
    assert reports(transport)[1].scalars["token/not_finite"] == int(loop.mask.sum())
    assert "entropy/mean" not in reports(transport)[1].scalars


def test_a_forked_child_does_not_report_in_its_parent_s_name() -> None:
    probe, transport = probe_and_transport()
    probe.step(0)
    child = os.fork()
    if child == 0:
        probe.log({"x": 1.0})
        probe.step(1)
        probe.finish()
        os._exit(len(transport.messages))
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 1


def test_leaving_the_block_finishes_the_run_with_how_it_ended() -> None:
    probe, transport = probe_and_transport()

    def train() -> None:
        with probe:
            probe.step(3)
            _ = 1 / 0

    with pytest.raises(ZeroDivisionError):
        train()
    finished = transport.messages[-1]
    assert isinstance(finished, RunFinished)
    assert (finished.status, finished.step, finished.error) == ("failed", 3, "ZeroDivisionError: division by zero")
    probe.finish()
    assert transport.messages[-1] is finished


@pytest.mark.parametrize(
    ("arguments", "environment", "words"),
    [
        ({"project": 5}, {}, "project must be text, got 5"),
        ({"control": {"method": "clip_v"}}, {}, "control must be an isentrope.Control"),
        ({"mode": "sometimes"}, {}, "mode must be one of online, offline, disabled"),
        ({"run_id": "a/b"}, {}, "run_id may hold letters"),
        ({"planned_steps": 0}, {}, "planned_steps must be at least 1"),
        ({"threshold_source": "guess"}, {}, "threshold_source must be one of batch, previous_step"),
        ({"control": isentrope.Control(method="kl_cov")}, {}, "asks for method:kl_cov"),
        ({}, {"WORLD_SIZE": "2", "RANK": "0"}, "must report under one run id"),
        ({"run_id": "a"}, {"WORLD_SIZE": "2", "RANK": "2"}, "rank must lie in"),
        ({}, {"WORLD_SIZE": "two"}, "WORLD_SIZE must be a whole number"),
    ],
)
def test_settings_that_cannot_work_are_named_where_the_probe_is_built(
    arguments: dict[str, Any], environment: dict[str, str], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigurationError, match=words):
        probe_and_transport(**arguments)


def test_names_come_from_arguments_before_environment_before_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ISENTROPE_RUN", "from-env")
    monkeypatch.setenv("ISENTROPE_PROJECT", "shared")
    transport = InMemoryTransport()
    assert isentrope.Probe(transport=transport).config.run == "from-env"
    named = isentrope.Probe("Countdown & co", transport=transport)
    assert (named.config.run, named.config.project) == ("Countdown & co", "shared")
    assert named.run_id.startswith("countdown-co-")


def test_importing_isentrope_and_the_command_line_s_help_need_no_torch() -> None:
    code = "import sys, isentrope; print('torch' in sys.modules, 'grpc' in sys.modules, 'httpx' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out == "False False False\n"
