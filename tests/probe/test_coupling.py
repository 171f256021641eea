"""The coupled prediction and the change of unseen tokens, against what came and against a gradient
taken by hand."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import isentrope
from isentrope.scores import token_scores
from isentrope.statistics.coupling import UnseenTokens, _change_sums
from isentrope.transport.transport import InMemoryTransport
from isentrope_wire.errors import ConfigurationError
from isentrope_wire.reports import StepReport
from tests.probe.tiny_loop import reports

VOCABULARY, WIDTH = 20, 16


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.dropout = (
            nn.Linear(WIDTH, 32),
            nn.Linear(32, WIDTH),
            nn.Dropout(0.1),
        )

    def forward(self, hidden: Tensor) -> Tensor:
        added: Tensor = self.dropout(self.down(torch.tanh(self.up(hidden))))
        return hidden + added


def policy() -> nn.Sequential:
    torch.manual_seed(0)
    blocks = [Block() for _ in range(3)]
    head = nn.Linear(WIDTH, VOCABULARY)
    nn.init.normal_(head.weight, std=0.5)
    return nn.Sequential(nn.Embedding(VOCABULARY, WIDTH), *blocks, nn.LayerNorm(WIDTH), head)


def train(
    coupling: Any = None,
    *,
    optimizer_of: Callable[..., Any] = torch.optim.AdamW,
    learning_rate: float = 1e-3,
    steps: int = 8,
    evaluates: bool = False,
    with_unseen: bool = False,
    idle_step: int | None = None,
    loss_scale: float | None = None,
    **settings: Any,
) -> tuple[nn.Sequential, list[StepReport], list[Tensor]]:
    """A policy after some steps, their reports, and each gradient that the loop finds after `step`.
    `evaluates`: without dropout."""
    model, transport, seen = policy().train(not evaluates), InMemoryTransport(), []
    optimizer: Any = optimizer_of([*model.parameters()], lr=learning_rate)
    probe = isentrope.Probe(transport=transport, coupling=coupling, **settings)
    scaler = torch.amp.GradScaler(
        "cpu", init_scale=loss_scale or 1.0, enabled=loss_scale is not None
    )
    generator = torch.Generator().manual_seed(5)
    panel = torch.randint(0, VOCABULARY, (300,), generator=generator)

    def scored(ids: Tensor, targets: Tensor) -> isentrope.TokenScores:
        return probe.score(model(ids), targets)

    for step in range(steps):
        ids, targets = torch.randint(0, VOCABULARY, (2, 8, 10), generator=generator)
        advantages = torch.randn(8, generator=generator)
        logprobs = probe.gate(scored(ids, targets), advantages)
        model.zero_grad()
        scaler.scale((step != idle_step) * -(advantages[:, None] * logprobs).mean()).backward()
        for one in optimizer if isinstance(optimizer, list) else [optimizer]:
            scaler.step(one)
        probe.step(
            step,
            optimizer,
            rescore=partial(scored, ids, targets),
            unseen=partial(scored, panel, panel) if with_unseen else None,
            loss_scale=scaler.get_scale(),
        )
        scaler.update()
        seen += [weight.grad.clone() for weight in model.parameters() if weight.grad is not None]
    probe.finish()
    return model, reports(transport), seen


SETTINGS: list[dict[str, Any]] = [{}, {"with_unseen": True}, {"coupling_every": 3}]
RUNS = [*product(["model", "last_block"], SETTINGS), ("model", {"influence_every": 3})]


@pytest.mark.parametrize(("coupling", "settings"), RUNS, ids=str)
def test_a_run_with_coupling_is_the_run_without(coupling: str, settings: dict[str, Any]) -> None:
    plain, _, plain_gradients = train()
    random = torch.get_rng_state()
    coupled, found, gradients = train(coupling, **settings)
    assert torch.equal(torch.get_rng_state(), random)
    assert all(map(torch.equal, plain.parameters(), coupled.parameters()))
    assert all(map(torch.equal, plain_gradients, gradients))
    assert {one.labels["entropy/prediction_basis"] for one in found[2:]} == {"entropy_gradient"}
    checked = [one.step for one in found if "entropy/influence_check" in one.scalars]
    assert checked == ([2, 5] if "influence_every" in settings else [])


def muon(weights: list[Tensor], lr: float) -> list[torch.optim.Optimizer]:
    """Of the matrices; AdamW has the rest."""
    return [
        torch.optim.AdamW([weight for weight in weights if weight.ndim < 2], lr=lr),
        torch.optim.Muon([weight for weight in weights if weight.ndim == 2], lr=lr),
    ]


OPTIMIZERS = [
    (lambda weights, lr: torch.optim.AdamW(weights, lr=lr, weight_decay=10.0), 1e-5),
    (lambda weights, lr: torch.optim.SGD(weights, lr=lr, momentum=0.9, nesterov=True), 1e-3),
    (torch.optim.Adafactor, 1e-4),
    (torch.optim.RMSprop, 1e-6),
    (muon, 1e-5),
]


@pytest.mark.parametrize(
    ("optimizer_of", "learning_rate"),
    OPTIMIZERS,
    ids=["AdamW", "SGD", "Adafactor", "RMSprop", "Muon and AdamW"],
)
def test_of_small_steps_the_prediction_is_the_change_of_unseen_tokens(
    optimizer_of: Any, learning_rate: float
) -> None:
    """To first order: momentum, weight decay and preconditioning are in it, and no factor is
    fitted."""
    _, found, _ = train(
        "model",
        optimizer_of=optimizer_of,
        learning_rate=learning_rate,
        evaluates=True,
        with_unseen=True,
    )
    for report in found[1:]:
        came = report.scalars["entropy/unseen_change"]
        assert abs(came) > 1e-6
        assert report.scalars["entropy/predicted_change"] == pytest.approx(came, rel=0.02, abs=2e-7)


@pytest.mark.parametrize("optimizer_of", [case[0] for case in OPTIMIZERS[:2]], ids=["AdamW", "SGD"])
def test_an_update_without_a_gradient_is_made_by_momentum_and_weight_decay(
    optimizer_of: Any,
) -> None:
    _, found, _ = train(
        "model", optimizer_of=optimizer_of, learning_rate=1e-3, idle_step=3, with_unseen=True
    )
    for report in found[1:]:
        parts = [
            report.scalars[f"entropy/predicted_by_{part}"]
            for part in ("batch", "momentum", "weight_decay")
        ]
        assert sum(parts) == pytest.approx(report.scalars["entropy/predicted_change"], rel=1e-9)
        assert abs(parts[1]) > 1e-6
        assert (abs(parts[0]) < 1e-4 * abs(sum(parts[1:]))) == (report.step == 3)


@pytest.mark.parametrize("coupling", ["model", "last_block"])
def test_a_scaled_loss_has_the_coupled_prediction_of_one_that_is_not(coupling: Any) -> None:
    (plain, expected, _), (scaled, found, _) = (
        train(coupling, loss_scale=scale) for scale in (None, 2.0**16)
    )
    assert all(map(torch.equal, plain.parameters(), scaled.parameters()))
    assert {one.labels["entropy/prediction_basis"] for one in found[2:]} == {"entropy_gradient"}
    for name in ("entropy/predicted_change", "entropy/unit_predicted_change"):
        numbers = [
            [one.scalars[name] for one in run if name in one.scalars] for run in (found, expected)
        ]
        assert numbers[0] == pytest.approx(numbers[1], rel=1e-5)
        assert numbers[0]


@pytest.mark.parametrize(("coupling", "judged"), [("last_block", [2]), ("model", [1, 2, 3, 4])])
def test_the_prediction_is_the_product_taken_by_hand(coupling: Any, judged: list[int]) -> None:
    """Of the last block until a factor is fitted to it; its first step serves to find it."""
    model, transport = policy().eval(), InMemoryTransport()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    probe = isentrope.Probe(transport=transport, coupling=coupling)
    ids = torch.randint(0, VOCABULARY, (6, 10), generator=torch.Generator().manual_seed(1))
    expected = []
    for step in range(5):
        weights = list((model[3] if coupling == "last_block" else model).parameters())
        logits = model(ids).log_softmax(-1)
        gradient = torch.autograd.grad(-(logits.exp() * logits).sum(-1).mean(), weights)
        before = [weight.detach().clone() for weight in weights]
        logprobs = probe.gate(probe.score(model(ids), ids), torch.ones(6))
        optimizer.zero_grad()
        (-logprobs.mean()).backward()
        optimizer.step()
        expected.append(
            sum(
                ((w - b) * g).sum().item()
                for w, b, g in zip(weights, before, gradient, strict=True)
            )
        )
        # With every step's own tokens as the unseen ones, its gradient is taken as it is.
        probe.step(step, optimizer, unseen=lambda: probe.score(model(ids), ids))
    probe.finish()
    found = [report.scalars.get("entropy/predicted_change") for report in reports(transport)]
    assert [found[step] for step in judged] == pytest.approx(
        # The level and the bend, which are fitted to what came, are small.
        [expected[step] for step in judged],
        rel=4e-2,
    )


@pytest.mark.parametrize(("every", "tolerance"), [(1, 0.006), (4, 0.04)])
def test_an_older_gradient_predicts_as_well(every: int, tolerance: float) -> None:
    """It is too steep, the more the older it is; what its tokens did tells by how much. Untold, the
    errors are more than twice as large."""
    model, transport = policy().eval(), InMemoryTransport()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.03)
    probe = isentrope.Probe(transport=transport, coupling="model", coupling_every=every)
    ids = torch.randint(0, VOCABULARY, (6, 10), generator=torch.Generator().manual_seed(1))
    for step in range(24):
        # An entropy that falls: each update goes down its gradient.
        scores = probe.score(model(ids), ids, entropy_gradient=True)
        probe.gate(scores, torch.zeros(6))
        optimizer.zero_grad()
        scores.entropies.mean().backward()
        optimizer.step()
        probe.step(step, optimizer, unseen=lambda: probe.score(model(ids), ids))
    probe.finish()
    for report in reports(transport)[16:]:
        came = report.scalars["entropy/unseen_change"]
        assert came < -0.02
        assert report.scalars["entropy/predicted_change"] == pytest.approx(came, rel=tolerance)


def test_the_unseen_change_is_of_the_tokens_that_were_scored_before() -> None:
    probe, transport = isentrope.Probe(transport=(sent := InMemoryTransport())), sent
    ids = torch.arange(4)
    logits = [
        torch.randn(4, VOCABULARY, generator=torch.Generator().manual_seed(seed))
        for seed in range(4)
    ]

    def entropy(step: int) -> float:
        logs = logits[step].log_softmax(-1)
        return float(-(logs.exp() * logs).sum(-1).mean())

    def scored(step: int, panel: list[Tensor]) -> list[isentrope.TokenScores]:
        return [probe.score(logits[step % 4], one) for one in panel]

    panels = [[ids], [ids], [ids, ids + 1], [ids + 1], [ids]]
    for step, panel in enumerate(panels):
        probe.gate(probe.score(logits[step % 4], ids), torch.ones(4))
        probe.step(step, unseen=partial(scored, step, panel))
    probe.finish()
    changes = [report.scalars.get("entropy/unseen_change") for report in reports(transport)]
    assert changes[0] is changes[4] is None
    assert changes[1:4] == pytest.approx(
        [entropy(step) - entropy(step - 1) for step in (1, 2, 3)], rel=1e-5
    )


def test_new_tokens_judge_before_they_give_gradient() -> None:
    """Until some have judged, the first ones give the gradient; what gave one judges no more."""
    unseen = UnseenTokens()

    def scored(step: int, names: str) -> list[isentrope.TokenScores]:
        generator = torch.Generator().manual_seed(step)
        return [
            token_scores(
                torch.randn(5, VOCABULARY, generator=generator), torch.arange(5) + ord(name) % 9
            )
            for name in names
        ]

    def learns(parts: list[isentrope.TokenScores]) -> list[bool]:
        return [bool(mask.all()) for mask in unseen.learn_from(parts)]

    def change_of(after: isentrope.TokenScores, before: isentrope.TokenScores) -> float:
        return (after.entropies - before.entropies).double().mean().item()

    first, second, third, fourth, fifth = (
        scored(step, names) for step, names in enumerate(("a", "ab", "abc", "c", "abc"))
    )
    assert learns(first) == [True]
    assert unseen.change(first, unseen.learn_from(first)) is None
    assert learns(second) == [True, False]
    unseen.change(second, unseen.learn_from(second))
    assert learns(third) == [True, True, False]
    change = unseen.change(third, unseen.learn_from(third))
    assert change is not None
    assert change[[1, 4]].tolist() == [5, 5]
    assert change[0].item() / 5 == pytest.approx(change_of(third[1], second[1]), rel=1e-6)
    assert change[3].item() / 5 == pytest.approx(change_of(third[0], second[0]), rel=1e-6)
    # What gave the gradient is remembered, though it is not scored after each update.
    assert unseen.change(fourth, None) is not None
    assert unseen.change(scored(7, "abc"), None) is not None
    change = unseen.change(fifth, unseen.learn_from(fifth))
    assert change is not None
    assert change[[1, 4]].tolist() == [5, 10]


def test_error_of_unseen_change_counts_completions() -> None:
    """Tokens of a completion that move together count as one: ten alike, and noise besides."""
    generator = torch.Generator().manual_seed(0)
    means, errors = [], []
    for _ in range(300):
        shared = torch.randn(64, generator=generator, dtype=torch.float64).repeat_interleave(10)
        noise = torch.randn(640, generator=generator, dtype=torch.float64)
        total, number, variance = _change_sums(shared + 0.3 * noise).tolist()
        means.append(total / number)
        errors.append(math.sqrt(variance) / number)
    assert statistics.fmean(errors) == pytest.approx(statistics.pstdev(means), rel=0.1)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        ({"optimizer": None}, "needs the optimiser"),
        ({"no_grad": True}, "carry no gradient"),
        ({"optimizer_module": "deepspeed.runtime"}, "DeepSpeed"),
        ({"hooked": True}, "while backward runs"),
        (
            {"coupling": "last_block", "model": nn.Embedding(VOCABULARY, VOCABULARY)},
            "several blocks",
        ),
    ],
    ids=lambda value: str(value)[:30],
)
def test_what_cannot_be_coupled_is_named_once_and_the_theory_goes_on(
    spoil: dict[str, Any], message: str, caplog: pytest.LogCaptureFixture
) -> None:
    model, transport = spoil.get("model") or policy(), InMemoryTransport()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if "optimizer_module" in spoil:
        optimizer.__class__ = type(
            "Stand in", (torch.optim.SGD,), {"__module__": spoil["optimizer_module"]}
        )
    if "hooked" in spoil:
        next(model.parameters()).register_post_accumulate_grad_hook(lambda _: None)
    probe = isentrope.Probe(transport=transport, coupling=spoil.get("coupling", "model"))
    ids = torch.arange(12).reshape(3, 4)
    for step in range(4):
        probe.gate(probe.score(model(ids), ids), torch.ones(3)).sum().backward()

        def rescore() -> isentrope.TokenScores:
            with torch.no_grad() if "no_grad" in spoil else nullcontext():
                return probe.score(model(ids), ids)

        probe.step(step, spoil.get("optimizer", optimizer), rescore)
    probe.finish()
    assert [message in record.getMessage() for record in caplog.records].count(True) == 1
    assert {one.labels["entropy/prediction_basis"] for one in reports(transport)} == {
        "loss_gradient"
    }


class ThawsAfterThreeUpdates(torch.optim.SGD):
    """At first of the head alone, then of all weights."""

    def __init__(self, weights: list[Tensor], lr: float) -> None:
        super().__init__(weights[-2:], lr=lr)
        self.frozen, self.updates = weights[:-2], 0

    def step(self, closure: Any = None) -> Any:
        result, self.updates = super().step(closure), self.updates + 1
        if self.updates == 3:
            self.add_param_group({"params": self.frozen})
        return result


def test_weights_that_are_thawed_are_in_the_prediction() -> None:
    settings: dict[str, Any] = {"optimizer_of": ThawsAfterThreeUpdates, "learning_rate": 1e-3}
    _, found, _ = train("model", evaluates=True, with_unseen=True, **settings)
    for report in found[3:]:
        came = report.scalars["entropy/unseen_change"]
        assert report.scalars["entropy/predicted_change"] == pytest.approx(came, rel=0.02, abs=2e-7)


class EvaluatesAfterFourUpdates(torch.optim.SGD):
    """As schedule-free optimisers do, whose averages then are the model's weights."""

    updates = 0

    def step(self, closure: Any = None) -> Any:
        self.updates += 1
        for group in self.param_groups:
            group["train_mode"] = self.updates != 4
        return super().step(closure)


def test_a_step_closed_over_averaged_weights_is_not_measured(
    caplog: pytest.LogCaptureFixture,
) -> None:
    settings: dict[str, Any] = {"optimizer_of": EvaluatesAfterFourUpdates, "with_unseen": True}
    _, found, _ = train("model", **settings)
    observed = ["entropy/observed_change" in report.scalars for report in found]
    assert observed == [step != 3 for step in range(8)]
    # Of two updates no change is that of one.
    measured = [
        "entropy/unseen_change" in report.scalars
        and report.labels["entropy/prediction_basis"] == "entropy_gradient"
        for report in found
    ]
    assert measured == [step not in (0, 3, 4) for step in range(8)]
    assert [record.message.partition(" (")[0] for record in caplog.records] == [
        "A step was closed while the optimiser had averaged weights in place"
    ]


def test_a_coupling_that_does_not_exist_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ISENTROPE_COUPLING", "everything")
    with pytest.raises(ConfigurationError, match="last_block, model"):
        isentrope.Probe(mode="disabled")
