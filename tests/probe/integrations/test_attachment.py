"""The core of all adapters, in a plain loop that computes its own log-probs."""

from __future__ import annotations

import functools
from types import SimpleNamespace

import pytest
import torch

from isentrope.config import switched_on
from isentrope.integrations.attachment import (
    Attachment,
    Versions,
    check_parameters,
    in_worker,
    refuse,
)
from isentrope.scores import each_field, token_scores
from isentrope.transport.transport import InMemoryTransport
from isentrope_wire.errors import ConfigurationError, InputError
from isentrope_wire.metrics import PROBE_FAILURES
from tests.probe.tiny_loop import TinyLoop, probe_and_transport, reports

MICRO_BATCHES = (slice(0, 6), slice(6, 16))


def train(attachment: Attachment | None, steps: int) -> torch.Tensor:
    """Updates from two micro-batches each, from log-probs of torch's own log-softmax."""
    loop = TinyLoop()
    for _ in range(steps):
        loop.optimizer.zero_grad()
        for rows in MICRO_BATCHES:
            logits, ids, advantages = (whole[rows] for whole in loop.sample())
            own, mask = (
                logits.log_softmax(-1).gather(-1, ids.unsqueeze(-1)).squeeze(-1),
                loop.mask[rows],
            )
            if attachment is not None:
                attachment.hold(functools.partial(attachment.probe.score, logits, ids))
                own = attachment.gate(
                    own, advantages, mask, attachment.take(), old_logprobs=own.detach()
                )
            (-(own * advantages)[mask].sum() / 80).backward()
        loop.optimizer.step()
        if attachment is not None:
            attachment.close(loop.optimizer)
    return loop.weights()


def test_a_change_reaches_every_tensor_of_scores() -> None:
    scores = token_scores(
        torch.randn(2, 3, 7), torch.randint(0, 7, (2, 3)), torch.tensor([[0.5], [2.0]])
    )
    turned = each_field(scores, lambda field: field.flip(0))
    assert turned.temperature.tolist() == [[2.0] * 3, [0.5] * 3]  # type: ignore[union-attr]
    assert turned.token_ids is not None
    assert torch.equal(turned.token_ids, scores.token_ids.flip(0))  # type: ignore[union-attr]
    assert torch.equal(turned.expected_scores, scores.expected_scores.flip(0))


def test_a_failure_leaves_the_loop_its_own_log_probs(monkeypatch: pytest.MonkeyPatch) -> None:
    probe, transport = probe_and_transport()
    attachment = Attachment(probe)
    own = torch.randn(4, requires_grad=True)
    with pytest.raises(InputError):  # in the first step a person is watching
        attachment.hold(lambda: probe.score(torch.randn(4, 7), torch.zeros(3, dtype=torch.int64)))
    train(attachment, 1)
    monkeypatch.delenv("PYTEST_CURRENT_TEST")
    attachment.hold(lambda: probe.score(torch.randn(4, 7), torch.zeros(3, dtype=torch.int64)))
    assert attachment.gate(own, torch.ones(4), None, attachment.take()) is own
    attachment.close(None)
    # The bad batch is scored as NaN, and gating it is the second failure.
    assert reports(transport)[-1].scalars[PROBE_FAILURES] == 2


def test_scalars_of_a_report_are_handed_out_once() -> None:
    probe, _ = probe_and_transport()
    attachment = Attachment(probe)
    assert attachment.newly_reported() == {}
    train(attachment, 1)
    assert attachment.newly_reported()["token/count"] > 0
    assert attachment.newly_reported() == {}


def test_a_probe_in_a_worker_takes_its_settings_from_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ISENTROPE_NAME", "nightly")
    monkeypatch.setenv("ISENTROPE_PROJECT", "maths")
    probe = in_worker(config={}, name="not this", transport=InMemoryTransport())
    assert (probe.config.name, probe.config.project) == ("nightly", "maths")


@pytest.mark.parametrize(("text", "on"), [("1", True), ("true", True), ("0", False), ("", False)])
def test_a_variable_says_yes_or_no(monkeypatch: pytest.MonkeyPatch, text: str, on: bool) -> None:
    monkeypatch.setenv("ISENTROPE_SOMETHING", text)
    assert switched_on("ISENTROPE_SOMETHING") is on
    monkeypatch.setenv("ISENTROPE_SOMETHING", "maybe")
    with pytest.raises(ConfigurationError, match="maybe"):
        switched_on("ISENTROPE_SOMETHING")


@pytest.mark.parametrize(
    ("at_least", "below", "accepted"),
    [("2.4", "3", True), ("2.13.0", "2.13.1", True), ("2.14", "3", False), ("1", "2.13", False)],
)
def test_versions_outside_the_range_are_refused(
    monkeypatch: pytest.MonkeyPatch, at_least: str, below: str, accepted: bool
) -> None:
    monkeypatch.setattr("isentrope.integrations.attachment.version", lambda _: "2.13.0+cpu")
    versions = Versions("Frame", "frame", at_least, below)
    if accepted:
        assert versions.check() == "2.13.0+cpu"
    else:
        with pytest.raises(ConfigurationError, match="installed"):
            versions.check()


def test_a_framework_that_is_not_installed_is_named() -> None:
    with pytest.raises(ConfigurationError, match="no-such-frame>=1"):
        Versions("Frame", "no-such-frame", "1", "2").check()


def test_the_first_reason_refuses() -> None:
    refuse("Frame", [])
    with pytest.raises(ConfigurationError, match="no logits"):
        refuse("Frame", ["it has no logits.", "it is closed."])


def test_a_method_of_another_layout_is_refused() -> None:
    owner = SimpleNamespace(step=lambda batch, loss: None, pass_on=lambda *_, **__: None)
    check_parameters(owner, "step", ("batch", "loss"), "Frame 1")
    check_parameters(owner, "pass_on", ("batch",), "Frame 1")
    for name, expected in (("step", ("temperature",)), ("missing", ())):
        with pytest.raises(ConfigurationError, match=f"{name} lacks"):
            check_parameters(owner, name, expected, "Frame 1")


def test_completions_of_all_micro_batches_make_the_means_of_a_step() -> None:
    probe, transport = probe_and_transport()
    attachment = Attachment(probe)
    attachment.count_completions(torch.tensor([1.0, 0.0]), torch.ones(6))
    attachment.count_completions(torch.tensor([1.0]), torch.tensor(3))
    attachment.close(None)
    attachment.count_completions(None, torch.ones(6))
    attachment.close(None)
    first, second = (report.scalars for report in reports(transport))
    assert first["reward/mean"] == pytest.approx(2 / 3)
    assert first["completion/length_mean"] == 3.0
    assert "reward/mean" not in second
