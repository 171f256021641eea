"""A method that reads the loss's gradient decides again in backward, once, and its report has that
decision."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from isentrope.methods.base import Selection
from isentrope.methods.covariance import _FirstBackward, covariance_scores
from isentrope_wire.control import Control
from isentrope_wire.reports import StepReport
from tests.probe.methods.tokens import own_centres, tokens
from tests.probe.tiny_loop import TinyLoop, probe_and_transport, reports

LOW, HIGH = 0.8, 1.2
"""The loop's own clip of the ratio."""


def clip_cov(ratio: float) -> Control:
    return Control(
        method="clip_cov", parameters={"ratio": ratio, "omega_low": 0.01, "omega_high": 100}
    )


def clipped_surrogate(logprobs: Tensor, old: Tensor, advantages: Tensor) -> Tensor:
    ratios = (logprobs - old).exp()
    return -torch.minimum(ratios * advantages, ratios.clamp(LOW, HIGH) * advantages)


class Step:
    """One step of a loop with a clip, all in one `gate` call, far off-policy."""

    def __init__(self, ratio: float = 0.2) -> None:
        loop = TinyLoop()
        self.probe, self.transport = probe_and_transport(control=clip_cov(ratio))
        logits, token_ids, self.advantages = loop.sample()
        self.mask = loop.mask
        self.scores = self.probe.score(logits, token_ids)
        noise = torch.randn(16, 5, generator=torch.Generator().manual_seed(3))
        self.old = self.scores.logprobs.detach() + 0.3 * noise
        self.gated = self.probe.gate(self.scores, self.advantages, self.mask, old_logprobs=self.old)
        self.loss = clipped_surrogate(self.gated, self.old, self.advantages)[self.mask].mean()

    def gradient(self, of: Tensor) -> Tensor:
        (found,) = torch.autograd.grad(of, self.scores.logprobs, retain_graph=True)
        return found

    @property
    def plain(self) -> Tensor:
        """The gradient that the loss has without a gate."""
        return self.gradient(
            clipped_surrogate(self.scores.logprobs, self.old, self.advantages)[self.mask].mean()
        )

    def close(self) -> StepReport:
        self.probe.step(0)
        return reports(self.transport)[-1]

    def candidates(self) -> Tensor:
        """As the authors have them: covariance within the bounds, and not silenced by the clip."""
        of = tokens(self.advantages, logprobs=self.scores.logprobs.detach(), mask=self.mask)
        covariances = covariance_scores(of, own_centres(of))
        ratios = (self.scores.logprobs.detach() - self.old).exp()
        silenced = -self.advantages * ratios.clamp(LOW, HIGH) > -self.advantages * ratios
        return (
            self.mask
            & (covariances > 0.01)
            & (covariances < 100)
            & ~silenced
            & (self.advantages != 0)
        )


def test_draws_among_the_authors_candidates() -> None:
    step = Step(ratio=1.0)
    plain, gated = step.plain, step.gradient(step.loss)
    dropped = (plain != 0) & (gated == 0)
    assert torch.equal(dropped, step.candidates())
    assert torch.equal(gated[~dropped], plain[~dropped])
    report = step.close()
    counted = int(step.mask.sum())
    assert report.scalars["clip/candidate_fraction"] == pytest.approx(int(dropped.sum()) / counted)
    assert report.scalars["clip/fraction"] == pytest.approx(int(dropped.sum()) / counted)


def test_no_draw_is_spent_on_silenced_tokens() -> None:
    spent = []
    for _ in range(2):
        step = Step(ratio=0.2)
        gated = step.gradient(step.loss)
        report = step.close()
        clipped = report.scalars["clip/fraction"] * int(step.mask.sum())
        spent.append(clipped)
        assert clipped == pytest.approx(int(((step.plain != 0) & (gated == 0)).sum()))
    assert spent[0] == spent[1] > 0


def test_without_backward_the_forward_decides() -> None:
    step = Step(ratio=1.0)
    report = step.close()
    assert report.scalars["clip/candidate_fraction"] * int(step.mask.sum()) > int(
        step.candidates().sum()
    )


def test_several_backwards_follow_the_first_with_a_gradient() -> None:
    step = Step(ratio=0.3)
    nothing = step.gradient(0.0 * step.loss)
    first, again = step.gradient(step.loss), step.gradient(2 * step.loss)
    assert not nothing.any()
    assert torch.equal(again, 2 * first)
    everywhere = step.gradient(step.gated.sum())
    assert torch.equal(everywhere == 0, (first == 0) & (step.plain != 0))


def test_failing_decision_leaves_that_of_the_forward(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(self: _FirstBackward, gradient: Tensor) -> Selection:
        raise RuntimeError("planted")

    monkeypatch.delenv("PYTEST_CURRENT_TEST")
    monkeypatch.setattr(_FirstBackward, "decide", failing)
    step = Step(ratio=1.0)
    gated = step.gradient(step.loss)
    assert (gated == 0).sum() > step.candidates().sum()
    report = step.close()
    assert report.labels["probe/failed"] == "selecting by the loss's gradient 1"
    assert report.scalars["clip/candidate_fraction"] > 0


def test_micro_batches_are_decided_each() -> None:
    probe, transport = probe_and_transport(control=clip_cov(1.0), threshold_source="micro_batch")
    loop = TinyLoop()
    logits, token_ids, advantages = loop.sample()
    for rows in (slice(0, 8), slice(8, 16)):
        scores = probe.score(logits[rows].detach().requires_grad_(), token_ids[rows])
        gated = probe.gate(scores, advantages[rows], loop.mask[rows])
        # The first half of the call has no gradient.
        (gated * (torch.arange(8) >= 4).unsqueeze(1)).sum().backward()
    probe.step(0)
    (report,) = reports(transport)
    assert 0 < report.scalars["clip/fraction"] <= 0.5
