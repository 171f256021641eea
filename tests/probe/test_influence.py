"""The influence of each token on the entropy: autograd's exact value, and a run that does not notice."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

import isentrope
from isentrope.transport.transport import InMemoryTransport
from isentrope_wire.errors import ConfigurationError
from isentrope_wire.reports import StepReport
from tests.probe.test_coupling import VOCABULARY, policy, train
from tests.probe.tiny_loop import CLIP, reports

SHAPE = (4, 5)
SGD = partial(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=0.1)
ADAMW = partial(torch.optim.AdamW, lr=1e-2, weight_decay=0.1)


class Loop:
    """A float64 policy and its updates; `spoil` is called between the optimiser and `probe.step`."""

    def __init__(self, optimizer_of: Callable[..., Any] = ADAMW, **settings: Any) -> None:
        self.model, self.transport = policy().double().eval(), InMemoryTransport()
        self.optimizer = optimizer_of(self.model.parameters())
        self.probe = isentrope.Probe(
            transport=self.transport, coupling="model", influence_every=1, tokenizer=str, **settings
        )
        generator = torch.Generator().manual_seed(3)
        self.ids, self.targets = torch.randint(0, VOCABULARY, (2, *SHAPE), generator=generator)
        self.advantages = torch.randn(SHAPE[0], generator=generator, dtype=torch.float64)

    def score(self) -> isentrope.TokenScores:
        return self.probe.score(self.model(self.ids), self.targets)

    def update(
        self, step: int, rescore: Any = None, aside: float = 0.0, spoil: Callable[[], None] = lambda: None
    ) -> Tensor:
        """g, the gradient that the log-probs receive before the gate;."""
        logprobs = self.probe.gate(self.score(), self.advantages)
        logprobs.retain_grad()
        self.optimizer.zero_grad()
        beside = aside * self.model(self.ids).square().mean()
        (beside - (self.advantages[:, None] * logprobs).mean()).backward()
        self.optimizer.step()
        spoil()
        self.probe.step(step, self.optimizer, rescore or self.score)
        assert logprobs.grad is not None
        return -logprobs.grad

    def reports(self) -> list[StepReport]:
        self.probe.finish()
        return reports(self.transport)


def by_autograd(loop: Loop) -> Callable[[Tensor], Tensor]:
    """Of the weights as they are now: what the influences are of a given g, after the update that is to come."""
    weights = [*loop.model.parameters()]
    logs = loop.model(loop.ids).log_softmax(-1)
    logprobs = logs.gather(-1, loop.targets[..., None]).flatten()
    h = torch.autograd.grad(-(logs.exp() * logs).sum(-1).mean(), weights, retain_graph=True)
    rows = [torch.autograd.grad(one, weights, retain_graph=True) for one in logprobs]

    def influences(g: Tensor) -> Tensor:
        (group,) = loop.optimizer.param_groups

        def preconditioner(weight: Tensor) -> Any:
            state = loop.optimizer.state[weight]
            if isinstance(loop.optimizer, torch.optim.SGD):
                return group["lr"]
            (first, second), n = group["betas"], int(state["step"])
            second_moment = state["exp_avg_sq"] / (1 - second**n)
            return group["lr"] * (1 - first) / (1 - first**n) / (second_moment.sqrt() + group["eps"])

        v = [preconditioner(weight) * gradient for weight, gradient in zip(weights, h, strict=True)]
        slopes = [sum((a * b).sum() for a, b in zip(row, v, strict=True)) for row in rows]
        return g * torch.stack(slopes).view(SHAPE)

    return influences


@pytest.mark.parametrize("control", [None, CLIP], ids=["all kept", "some clipped"])
@pytest.mark.parametrize(
    "optimizer_of", [ADAMW, SGD, partial(torch.optim.SGD, lr=0.1)], ids=["AdamW", "momentum", "SGD"]
)
def test_influences_are_those_of_autograd(optimizer_of: Any, control: Any) -> None:
    loop = Loop(optimizer_of, control=control)
    # One gradient of the entropy, from the first step: later ones are averaged with it.
    loop.update(0)
    expected = by_autograd(loop)
    influences = expected(loop.update(1))
    report = loop.reports()[1]
    assert report.scalars["entropy/influence_check"] == pytest.approx(1, rel=1e-5)
    assert len(report.rollouts) == SHAPE[0]
    for rollout in report.rollouts:
        assert rollout.influences == pytest.approx(influences[rollout.sequence].tolist(), rel=1e-5, abs=1e-7)
    assert (False in report.rollouts[0].kept) == (control is not None)


def test_a_run_with_influences_is_the_run_without() -> None:
    plain, _, plain_gradients = train()
    random = torch.get_rng_state()
    watched, found, gradients = train("model", influence_every=3)
    assert torch.equal(torch.get_rng_state(), random)
    assert all(map(torch.equal, plain.parameters(), watched.parameters()))
    assert all(map(torch.equal, plain_gradients, gradients))
    assert [one.step for one in found if "entropy/influence_check" in one.scalars] == [2, 5]


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_weights_come_back_whatever_rescore_raises(error: type[BaseException]) -> None:
    loop, kept, calls = Loop(), list[Tensor](), 0
    loop.update(0)

    def rescore() -> isentrope.TokenScores:
        nonlocal calls
        calls += 1
        assert not any(map(torch.equal, loop.model[1].parameters(), kept))
        if calls == 2:
            raise error
        return loop.score()

    with pytest.raises(error):
        loop.update(1, rescore, spoil=lambda: kept.extend(one.detach().clone() for one in loop.model[1].parameters()))
    assert calls == 2
    assert all(map(torch.equal, loop.model[1].parameters(), kept))


def test_influences_that_do_not_add_up_are_not_reported() -> None:
    loop = Loop()
    loop.update(0)
    loop.update(1, aside=10.0)
    report = loop.reports()[1]
    assert abs(report.scalars["entropy/influence_check"] - 1) > 0.1
    assert {one.influences for one in report.rollouts} == {()}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"optimizer_of": torch.optim.Adafactor}, "got Adafactor"),
        ({"type": torch.bfloat16}, "float32 or float64"),
        ({"cleared": True}, "gradients were cleared"),
        ({"no_rescore": True}, "rescore of all tokens"),
    ],
    ids=str,
)
def test_what_has_no_influences_is_named_once(
    settings: dict[str, Any], message: str, caplog: pytest.LogCaptureFixture
) -> None:
    loop = Loop(settings.get("optimizer_of", ADAMW))
    loop.model.to(settings.get("type", torch.float64))
    for step in range(3):
        rescore = "no_rescore" in settings and step
        if rescore:
            logprobs = loop.probe.gate(loop.score(), loop.advantages)
            logprobs.sum().backward()
            loop.probe.step(step, loop.optimizer)
        else:
            loop.update(step, spoil=loop.optimizer.zero_grad if "cleared" in settings else lambda: None)
    assert [message in record.getMessage() for record in caplog.records].count(True) == 1
    assert {one.influences for report in loop.reports() for one in report.rollouts} == {()}


def test_influences_need_a_coupling_by_the_whole_model() -> None:
    with pytest.raises(ConfigurationError, match='coupling="model"'):
        isentrope.Probe(mode="disabled", coupling="last_block", influence_every=5)
