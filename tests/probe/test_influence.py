"""The influence of each token on the entropy: autograd's exact value, or none."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

import isentrope
from isentrope.transport.transport import InMemoryTransport
from isentrope_wire.errors import ConfigurationError
from isentrope_wire.metrics import INFLUENCES
from isentrope_wire.reports import StepReport
from tests.probe.test_coupling import VOCABULARY, policy
from tests.probe.tiny_loop import CLIP, reports

ADAMW = partial(torch.optim.AdamW, lr=1e-2, weight_decay=0.1)
SGD = partial(torch.optim.SGD, lr=0.1)
BONUS = 0.2


class Loop:
    """A policy in float64 that has made one update, after which its entropy's gradient is known."""

    def __init__(
        self, optimizer_of: Any = ADAMW, control: Any = None, dtype: torch.dtype = torch.float64
    ) -> None:
        self.model, self.transport = policy().to(dtype).eval(), InMemoryTransport()
        self.weights, self.optimizer = (
            [*self.model.parameters()],
            optimizer_of(self.model.parameters()),
        )
        about: dict[str, Any] = {
            "coupling": "model",
            "influence_every": 1,
            "tokenizer": str,
            "control": control,
        }
        self.probe = isentrope.Probe(transport=self.transport, **about)
        generator = torch.Generator().manual_seed(3)
        self.ids, self.targets = torch.randint(0, VOCABULARY, (2, 4, 5), generator=generator)
        self.advantages = torch.randn(4, generator=generator, dtype=torch.float64)
        self.update(self.score)

    def score(self) -> isentrope.TokenScores:
        return self.probe.score(self.model(self.ids), self.targets, entropy_gradient=True)

    def update(self, rescore: Any, aside: float = 0.0, after: Any = lambda: None) -> Tensor:
        """g of the log-probs. `aside` weighs a loss that passes by the gate; `after` follows the
        optimiser."""
        scores = self.score()
        logprobs = self.probe.gate(scores, self.advantages)
        logprobs.retain_grad()
        self.optimizer.zero_grad()
        other = self.model(self.ids).square().mean()
        (
            aside * other - (self.advantages[:, None] * logprobs + BONUS * scores.entropies).mean()
        ).backward()
        self.optimizer.step()
        after()
        self.probe.step((self.probe.last_step or 0) + 1, self.optimizer, rescore)
        assert logprobs.grad is not None
        return -logprobs.grad

    def report(self) -> StepReport:
        self.probe.finish()
        return reports(self.transport)[-1]


@pytest.mark.parametrize("control", [None, CLIP], ids=["all kept", "some clipped"])
@pytest.mark.parametrize(
    "optimizer_of", [ADAMW, SGD, partial(SGD, momentum=0.9, weight_decay=0.1)], ids=str
)
def test_influences_are_those_of_autograd(optimizer_of: Any, control: Any) -> None:
    loop = Loop(optimizer_of, control)
    logs = loop.model(loop.ids).log_softmax(-1)
    chosen = logs.gather(-1, loop.targets[..., None]).flatten()
    entropies = -(logs.exp() * logs).sum(-1).flatten()
    h, *of_tokens = (
        torch.autograd.grad(one, loop.weights, retain_graph=True)
        for one in (entropies.mean(), *chosen, *entropies)
    )
    g = loop.update(loop.score)

    def preconditioned(weight: Tensor, part: Tensor) -> Any:
        (group,), state = loop.optimizer.param_groups, loop.optimizer.state[weight]
        if "exp_avg" not in state:
            return group["lr"] * part
        n = int(state["step"])
        return (
            group["lr"]
            * 0.1
            / (1 - 0.9**n)
            * part
            / ((state["exp_avg_sq"] / (1 - 0.999**n)).sqrt() + 1e-8)
        )

    v = [*map(preconditioned, loop.weights, h)]
    slopes = torch.stack(
        [sum((a * b).sum() for a, b in zip(one, v, strict=True)) for one in of_tokens]
    )
    of_logprobs, of_entropies = slopes.view(2, 4, 5)
    report = loop.report()
    assert report.scalars["entropy/influence_check"] == pytest.approx(1, rel=1e-5)
    assert len(report.rollouts) == 4
    parts = dict.fromkeys(INFLUENCES.values(), 0.0)
    for one in report.rollouts:
        by_loss, by_bonus = (
            (g * of_logprobs)[one.sequence],
            (BONUS / 20 * of_entropies)[one.sequence],
        )
        assert one.influences == pytest.approx((by_loss + by_bonus).tolist(), rel=1e-5, abs=1e-7)
        passed = by_loss * torch.tensor(one.kept) + by_bonus
        for score, influence in zip(one.vocab_centered_scores, passed.tolist(), strict=True):
            signs = (
                "positive" if (one.advantage or 0) > 0 else "negative",
                "high" if (score or 0) > 0 else "low",
            )
            parts[INFLUENCES["change/" + "_".join(signs)]] += influence
    assert {name: report.scalars[name] for name in parts} == pytest.approx(
        parts, rel=1e-5, abs=1e-7
    )
    assert (False in report.rollouts[0].kept) == (control is not None)


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_weights_come_back_whatever_rescore_raises(error: type[BaseException]) -> None:
    loop, kept, moved = Loop(), list[Tensor](), list[bool]()

    def rescore() -> isentrope.TokenScores:
        moved.append(not any(map(torch.equal, loop.weights, kept)))
        if len(moved) == 2:
            raise error
        return loop.score()

    with pytest.raises(error):
        loop.update(
            rescore, after=lambda: kept.extend(weight.detach().clone() for weight in loop.weights)
        )
    assert moved == [True, True]
    assert all(map(torch.equal, loop.weights, kept))


REFUSED = ["got Adafactor", "float32 or float64", "gradients were cleared", "rescore of all"]


@pytest.mark.parametrize("about", [*REFUSED, "they do not add up"])
def test_influences_that_cannot_be_had_are_left_out(
    about: str, caplog: pytest.LogCaptureFixture
) -> None:
    optimizer_of = torch.optim.Adafactor if "Adafactor" in about else ADAMW
    loop = Loop(optimizer_of, dtype=torch.bfloat16 if "float" in about else torch.float64)
    for _ in range(2):
        clear = loop.optimizer.zero_grad if "cleared" in about else lambda: None
        loop.update(
            None if "rescore" in about else loop.score,
            aside=10.0 * ("add up" in about),
            after=clear,
        )
    report = loop.report()
    assert {one.influences for one in report.rollouts} == {()}
    assert [about in record.getMessage() for record in caplog.records].count(True) == (
        about in REFUSED
    )
    assert ("entropy/influence_check" in report.scalars) == (about not in REFUSED)
    assert not INFLUENCES.values() & report.scalars.keys()


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"coupling": "last_block", "influence_every": 5}, 'coupling="model"'),
        ({"coupling_samples": 64}, "coupling="),
        ({"coupling": "model", "coupling_samples": 0}, "at least 1, got 0"),
    ],
)
def test_settings_without_effect_are_refused(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        isentrope.Probe(mode="disabled", **settings)
