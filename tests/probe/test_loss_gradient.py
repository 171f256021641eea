"""The prediction is that of the very loss that is used: predicted over true change is 1 for one
step on a table of logits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import isentrope
from isentrope.global_step import rank_vector, read_ranks
from isentrope.scores import token_scores
from isentrope.statistics.alerts import gradient_alert
from isentrope.statistics.step import GRADIENT_FAULT
from isentrope_wire.errors import InputError
from isentrope_wire.reports import StepReport
from tests.probe.statistics.test_step_summary import batch_of
from tests.probe.tiny_loop import CLIP, TinyLoop, probe_and_transport, reports

BATCH, TOKENS, VOCABULARY, RATE = 6, 12, 40, 1e-6
UNIT = "entropy/unit_predicted_change"


class Table:
    """A policy that is a table of independent logits, float64, with tokens drawn from it."""

    def __init__(self, temperature: float | Tensor = 1.0) -> None:
        g = torch.Generator().manual_seed(0)
        self.temperature = temperature
        self.logits = nn.Parameter(
            1.5 * torch.randn(BATCH, TOKENS, VOCABULARY, generator=g, dtype=torch.float64)
        )
        per_row = temperature.unsqueeze(-1) if isinstance(temperature, Tensor) else temperature
        plain = self.logits.detach() / per_row
        weights = plain.softmax(-1).reshape(-1, VOCABULARY)
        self.ids = torch.multinomial(weights, 1, generator=g).reshape(BATCH, TOKENS)
        self.advantages = torch.randn(BATCH, 1, generator=g).double().expand(BATCH, TOKENS)
        lengths = torch.randint(3, TOKENS + 1, (BATCH,), generator=g)
        self.mask = torch.arange(TOKENS)[None] < lengths[:, None]
        self.old = self._logprobs(plain + 0.3 * torch.randn(plain.shape, generator=g))
        self.reference = self._logprobs(torch.randn(plain.shape, generator=g)).requires_grad_()

    def _logprobs(self, logits: Tensor) -> Tensor:
        return logits.double().log_softmax(-1).gather(-1, self.ids[..., None])[..., 0]

    def entropy(self) -> Tensor:
        return (
            token_scores(self.logits.detach(), self.ids, self.temperature)
            .entropies[self.mask]
            .mean()
        )

    def true_change(self) -> float:
        """Of the mean entropy, by a step of plain gradient descent."""
        assert self.logits.grad is not None
        before = self.entropy()
        with torch.no_grad():
            self.logits.sub_(RATE * self.logits.grad)
            change = self.entropy() - before
            self.logits.add_(RATE * self.logits.grad)
        return float(change)

    def surrogate(self, logprobs: Tensor) -> Tensor:
        ratios = (logprobs - self.old).exp()
        return torch.minimum(ratios * self.advantages, ratios.clamp(0.8, 1.2) * self.advantages)

    def on_policy(self, logprobs: Tensor) -> Tensor:
        return (logprobs - logprobs.detach()).exp() * self.advantages

    def k3(self, logprobs: Tensor) -> Tensor:
        return (self.reference - logprobs).exp() - (self.reference - logprobs) - 1

    def expand_by_token(self, per_token: Tensor) -> Tensor:
        return per_token[self.mask].mean()

    def by_sequence(self, per_token: Tensor) -> Tensor:
        return ((per_token * self.mask).sum(1) / self.mask.sum(1)).mean()

    def sequence_ratio(self, logprobs: Tensor) -> Tensor:
        mean = ((logprobs - self.old) * self.mask).sum(1) / self.mask.sum(1)
        return mean.exp()[:, None].expand(BATCH, TOKENS)


Loss = Callable[[Table, Tensor, Tensor], Tensor]
LOSSES: dict[str, Loss] = {
    "on-policy, mean over tokens": lambda t, lp, H: -t.expand_by_token(t.on_policy(lp)),
    "PPO's clip": lambda t, lp, H: -t.expand_by_token(t.surrogate(lp)),
    "GRPO: clip, mean over sequences": lambda t, lp, H: -t.by_sequence(t.surrogate(lp)),
    "Dr. GRPO: constant denominator": lambda t, lp, H: (
        -(t.surrogate(lp) * t.mask).sum() / (BATCH * TOKENS)
    ),
    "GSPO: ratio of the sequence": lambda t, lp, H: (
        -t.by_sequence(t.sequence_ratio(lp) * t.advantages)
    ),
    "CISPO: detached bounded weight": lambda t, lp, H: (
        -t.expand_by_token((lp - t.old).exp().clamp(max=1.2).detach() * t.advantages * lp)
    ),
    "clip and k3, beta 0.05": lambda t, lp, H: (
        -t.expand_by_token(t.surrogate(lp) - 0.05 * t.k3(lp))
    ),
    "clip and k3, beta 0.5": lambda t, lp, H: -t.expand_by_token(t.surrogate(lp) - 0.5 * t.k3(lp)),
    "KL-Cov's |log r| on some tokens": lambda t, lp, H: (
        -t.expand_by_token(
            (lp - t.old).exp() * t.advantages
            - (lp - t.old).abs() * (t.advantages * lp.detach() > 1)
        )
    ),
    "top entropy quantile": lambda t, lp, H: (
        -t.expand_by_token(t.surrogate(lp) * (H.detach() > H.detach()[t.mask].quantile(0.8)))
    ),
    "mean of micro-batch means": lambda t, lp, H: (
        -torch.stack(
            [t.on_policy(lp)[i : i + 2][t.mask[i : i + 2]].mean() for i in (0, 2, 4)]
        ).mean()
    ),
    "entropy bonus 0.01": lambda t, lp, H: (
        -t.expand_by_token(t.on_policy(lp)) - 0.01 * t.expand_by_token(H)
    ),
    "entropy bonus 0.1": lambda t, lp, H: (
        -t.expand_by_token(t.on_policy(lp)) - 0.1 * t.expand_by_token(H)
    ),
    "clip, k3 and bonus": lambda t, lp, H: (
        -t.by_sequence(t.surrogate(lp) - 0.5 * t.k3(lp) + 0.1 * H)
    ),
}
CONTROLS = {
    "none": isentrope.Control(),
    "clip_v": isentrope.Control(method="clip_v", mu_low=0.5, mu_high=0.5, scope="all"),
    "clip_v shrink": isentrope.Control(
        method="clip_v",
        mu_low=0.5,
        mu_high=0.5,
        scope="negative",
        parameters={"denominator": "shrink"},
    ),
    "unlikely": isentrope.Control(method="unlikely", parameters={"strength": 1.0, "below": 0.2}),
    "clip_cov": isentrope.Control(method="clip_cov", parameters={"ratio": 0.2, "omega_low": 0.1}),
    "kl_cov": isentrope.Control(method="kl_cov", parameters={"k": 0.2, "beta": 0.5}),
    "rank_reward": isentrope.Control(method="rank_reward", parameters={"normalise": "none"}),
    "entropy_bonus": isentrope.Control(method="entropy_bonus", parameters={"coefficient": 0.3}),
    "exact bonus": isentrope.Control(
        method="entropy_bonus", parameters={"coefficient": 0.3, "estimate": "exact"}
    ),
    "steer": isentrope.Control(method="steer", parameters={"minimum_weight": 0.5}),
}


def closed(table: Table, loss: Loss, control: isentrope.Control, **step: Any) -> StepReport:
    """The report of one step with this loss."""
    probe, transport = probe_and_transport(control=control, threshold_source="micro_batch")
    scores = probe.score(
        table.logits, table.ids, temperature=table.temperature, entropy_gradient=True
    )
    logprobs = probe.gate(
        scores,
        table.advantages,
        table.mask,
        old_logprobs=table.old,
        ref_logprobs=table.reference,
        groups=3,
    )
    table.logits.grad = None
    loss(table, logprobs, scores.entropies).backward()
    probe.step(0, **step)
    return reports(transport)[0]


def predicted(report: StepReport) -> float:
    return RATE * report.scalars["entropy/unit_predicted_change"] / report.scalars["token/count"]


@pytest.mark.parametrize("control", CONTROLS)
@pytest.mark.parametrize("loss", LOSSES)
def test_predicted_over_true_is_one(loss: str, control: str) -> None:
    table = Table()
    report = closed(table, LOSSES[loss], CONTROLS[control])
    assert predicted(report) / table.true_change() == pytest.approx(1, abs=1e-3)
    assert report.labels["entropy/prediction_basis"] == "loss_gradient"
    scalars = report.scalars
    unit = pytest.approx(scalars["entropy/unit_predicted_change"], rel=1e-9, abs=1e-15)
    quadrants = ("positive_high", "positive_low", "negative_high", "negative_low")
    assert sum(scalars[f"change/{name}"] for name in quadrants) == unit
    mechanisms = {name for name in scalars if name.startswith("change/by_")}
    assert sum(scalars[name] for name in mechanisms) == unit
    assert ("change/by_kl_penalty" in mechanisms) == ("k3" in loss)
    assert ("change/by_entropy_bonus" in mechanisms) == ("bonus" in loss)
    assert ("change/by_intervention" in mechanisms) == (control != "none")
    if report.what_if is not None and control == "none":
        assert report.what_if.change_sum / report.what_if.tokens == unit


@pytest.mark.parametrize("bonus", ["entropy_bonus", "exact bonus"])
def test_bonus_reaches_tokens_without_an_advantage(bonus: str) -> None:
    """As a bonus over all sampled tokens in the loss itself does, and as the report has it."""

    def loss(table: Table, logprobs: Tensor, entropies: Tensor) -> Tensor:
        return -table.expand_by_token(table.surrogate(logprobs))

    def with_bonus(table: Table, logprobs: Tensor, entropies: Tensor) -> Tensor:
        added = (logprobs + entropies).detach() * logprobs
        if bonus == "exact bonus":
            added = -entropies
        return loss(table, logprobs, entropies) + 0.3 * table.expand_by_token(added)

    gradients, predictions = [], []
    for of, control in ((loss, bonus), (with_bonus, "none")):
        table = Table()
        table.old, table.advantages = table._logprobs(table.logits.detach()), table.advantages + 0
        table.advantages[::2] = 0
        scalars = closed(table, of, CONTROLS[control]).scalars
        assert table.logits.grad is not None
        gradients.append(table.logits.grad)
        predictions.append(scalars["entropy/unit_predicted_change"])
        if control == "entropy_bonus":
            added = pytest.approx(0.3 * scalars["entropy/bonus_effect"])
            assert scalars["change/by_intervention"] == added
    assert torch.allclose(gradients[0], gradients[1], rtol=1e-6, atol=1e-9)
    assert predictions[0] == pytest.approx(predictions[1])


@pytest.mark.parametrize("scored", ["elsewhere", "of detached logits", "of other tokens"])
def test_bonus_is_estimated_where_scores_lack_gradient(scored: str) -> None:
    gradients: list[Tensor] = []
    for control in (CONTROLS["entropy_bonus"], CONTROLS["exact bonus"]):
        table = Table()
        probe, _ = probe_and_transport(control=control)
        own = token_scores(table.logits, table.ids)
        scores = own
        if scored == "of detached logits":
            scores = probe.score(table.logits.detach(), table.ids)
        if scored == "of other tokens":
            more = probe.score(table.logits[:, :-1], table.ids[:, :-1]).gate_entropies
            scores = replace(own, gate_entropies=more)
        gated = probe.gate(scores, table.advantages, table.mask, logprobs=own.logprobs)
        table.logits.grad = None
        (-table.expand_by_token(table.on_policy(gated))).backward()
        assert table.logits.grad is not None
        gradients.append(table.logits.grad)
        assert not probe.score(table.logits, table.ids).entropies.requires_grad
    assert torch.equal(*gradients)


@pytest.mark.parametrize("temperature", [0.7, torch.linspace(0.5, 2.0, BATCH)[:, None]])
@pytest.mark.parametrize("loss", ["clip, k3 and bonus", "PPO's clip"])
def test_a_temperature_enters_by_its_square(loss: str, temperature: float | Tensor) -> None:
    table = Table(temperature)
    report = closed(table, LOSSES[loss], CONTROLS["clip_v"])
    assert predicted(report) / table.true_change() == pytest.approx(1, abs=1e-3)


def test_what_each_mechanism_does_is_the_change_it_makes_alone() -> None:
    table = Table()
    whole = closed(table, LOSSES["clip, k3 and bonus"], CONTROLS["none"]).scalars
    kl = closed(table, lambda t, lp, H: t.by_sequence(0.5 * t.k3(lp)), CONTROLS["none"]).scalars
    bonus = closed(table, lambda t, lp, H: -t.by_sequence(0.1 * H), CONTROLS["none"]).scalars
    policy = closed(
        table, lambda t, lp, H: -t.by_sequence(t.surrogate(lp)), CONTROLS["none"]
    ).scalars
    for part, alone in (("kl_penalty", kl), ("entropy_bonus", bonus), ("policy_loss", policy)):
        assert whole[f"change/by_{part}"] == pytest.approx(
            alone["entropy/unit_predicted_change"], rel=1e-9
        )


def test_log_probs_that_did_not_pass_the_gate_are_read_too() -> None:
    """A KL term of the ungated log-probs: the intervention does not act on it, the prediction has
    it."""
    table = Table()
    probe, transport = probe_and_transport(
        control=CONTROLS["clip_v"], threshold_source="micro_batch"
    )
    scores = probe.score(table.logits, table.ids)
    gated = probe.gate(scores, table.advantages, table.mask)
    (
        -table.expand_by_token(table.on_policy(gated))
        + 0.5 * table.expand_by_token(table.k3(scores.logprobs))
    ).backward()
    probe.step(0)
    assert predicted(reports(transport)[0]) / table.true_change() == pytest.approx(1, abs=1e-3)


def test_several_backward_calls_and_gate_calls_add_up() -> None:
    table = Table()
    probe, transport = probe_and_transport()
    for rows in (slice(0, 2), slice(2, 6)):
        scores = probe.score(table.logits[rows], table.ids[rows])
        logprobs = probe.gate(scores, table.advantages[rows], table.mask[rows])
        tokens = table.mask[rows]
        policy = -(table.advantages[rows] * logprobs)[tokens].mean() / 2
        kl = (0.5 * (table.reference[rows] - logprobs).square())[tokens].mean() / 2
        policy.backward(retain_graph=True)
        kl.backward()
    probe.step(0)
    assert predicted(reports(transport)[0]) / table.true_change() == pytest.approx(1, abs=1e-3)


def test_without_a_backward_the_prediction_is_that_of_the_advantages() -> None:
    table = Table(0.5)
    probe, transport = probe_and_transport()
    scores = probe.score(table.logits, table.ids, temperature=0.5)
    probe.gate(scores, table.advantages, table.mask, old_logprobs=table.old)
    probe.step(0)
    (report,) = reports(transport)
    ratios = (scores.logprobs.detach() - table.old).exp()
    expected = -(ratios * table.advantages * scores.vocab_centered_scores)[table.mask].mean() / 0.25
    assert report.scalars["entropy/unit_predicted_change"] == pytest.approx(float(expected))
    assert report.labels["entropy/prediction_basis"] == "advantages"
    assert "change/by_kl_penalty" not in report.scalars


def test_a_scaled_loss_is_read_without_its_scale() -> None:
    """As a GradScaler has it: a scale for backward, taken off before the update."""
    table = Table()
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    plain = closed(table, LOSSES["PPO's clip"], CONTROLS["none"])
    scaled = closed(
        table,
        lambda t, lp, H: scaler.scale(LOSSES["PPO's clip"](t, lp, H)),
        CONTROLS["none"],
        loss_scale=torch.tensor(scaler.get_scale()),
    )
    assert predicted(scaled) == pytest.approx(predicted(plain), rel=1e-6)


@pytest.mark.parametrize("factor", [torch.inf, torch.nan])
def test_nothing_is_predicted_from_a_gradient_that_is_not_finite(factor: float) -> None:
    table = Table()
    report = closed(table, lambda t, lp, H: t.expand_by_token(lp) * factor, CONTROLS["none"])
    scalars = report.scalars
    assert scalars["token/gradient_not_finite"] == scalars["token/count"] == float(table.mask.sum())
    assert not [name for name in scalars if name.startswith("change/") or "predicted" in name]
    assert "entropy/prediction_basis" not in report.labels
    assert (report.what_if, report.tokens) == (None, ())


def test_temperatures_of_calls_may_be_a_number_and_a_tensor() -> None:
    table = Table(torch.linspace(0.5, 2.0, BATCH)[:, None])
    probe, transport = probe_and_transport()
    for rows, temperature in ((slice(0, 3), 1.0), (slice(3, 6), torch.full((3, 1), 1.0))):
        scores = probe.score(table.logits[rows], table.ids[rows], temperature=temperature)
        logprobs = probe.gate(scores, table.advantages[rows], table.mask[rows])
        (-(table.advantages[rows] * logprobs)[table.mask[rows]].sum() / table.mask.sum()).backward()
    table.temperature = 1.0
    probe.step(0)
    assert predicted(reports(transport)[0]) / table.true_change() == pytest.approx(1, abs=1e-3)


def test_reference_log_probs_that_are_used_again_are_not_watched_for_ever() -> None:
    table = Table()
    for _ in range(3):
        closed(table, LOSSES["clip and k3, beta 0.5"], CONTROLS["none"])
    assert not table.reference._backward_hooks


def test_a_loss_beside_the_gate_is_named(caplog: pytest.LogCaptureFixture) -> None:
    table = Table()
    probe, _ = probe_and_transport(control=CONTROLS["clip_v"], threshold_source="micro_batch")
    scores = probe.score(table.logits, table.ids)
    probe.gate(scores, table.advantages, table.mask)
    (-table.expand_by_token(table.on_policy(scores.logprobs))).backward()
    probe.step(0)
    assert "Compute the loss from the tensor that gate returns" in caplog.text


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_own_log_probs_are_returned_themselves_and_read(dtype: torch.dtype) -> None:
    table = Table()
    own = table.logits.to(dtype).log_softmax(-1).gather(-1, table.ids[..., None])[..., 0]
    probe, transport = probe_and_transport()
    with torch.no_grad():
        scores = probe.score(table.logits, table.ids)
    gated = probe.gate(scores, table.advantages, table.mask, logprobs=own)
    assert gated is own
    own.retain_grad()
    (-(table.advantages * gated)[table.mask].mean()).backward()
    probe.step(0)
    (report,) = reports(transport)
    assert report.labels["entropy/prediction_basis"] == "loss_gradient"
    assert own.grad is not None
    unit = (own.grad.double() * scores.vocab_centered_scores)[table.mask].sum()
    assert report.scalars["entropy/unit_predicted_change"] == pytest.approx(float(unit), rel=1e-9)
    if dtype == torch.float32:
        assert predicted(report) / table.true_change() == pytest.approx(1, abs=1e-3)


def trained(
    observed: bool, control: isentrope.Control, how: str
) -> tuple[Tensor, list[StepReport]]:
    """Weights after some steps whose forward, or whose loss, is made in a way of its own."""
    loop = TinyLoop()
    probe, transport = probe_and_transport(control=control)
    forward = (
        torch.compile(loop.policy, backend="aot_eager")
        if how == "compiled forward"
        else loop.policy
    )

    def loss_of(logprobs: Tensor, advantages: Tensor) -> Tensor:
        ratio = (logprobs - logprobs.detach()).exp()
        return -(ratio * advantages * loop.mask).sum() / loop.mask.sum()

    loss = torch.compile(loss_of, backend="aot_eager") if how == "compiled loss" else loss_of
    for step in range(3):
        logits = (
            checkpoint(forward, loop.states, use_reentrant=False)
            if how == "checkpoint"
            else forward(loop.states)
        )
        token_ids = torch.distributions.Categorical(logits=logits.detach()).sample()
        advantages = (token_ids % 3).float() - 1
        scores = probe.score(logits, token_ids)
        logprobs = probe.gate(scores, advantages, loop.mask) if observed else scores.logprobs
        loop.optimizer.zero_grad()
        loss(logprobs, advantages).backward()
        loop.optimizer.step()
        probe.step(step)
    return loop.weights(), reports(transport)


@pytest.mark.parametrize("how", ["plain", "checkpoint", "compiled loss", "compiled forward"])
def test_reading_the_gradient_changes_no_bit_of_the_training(how: str) -> None:
    observed, found = trained(True, isentrope.Control(), how)
    alone, _ = trained(False, isentrope.Control(), how)
    assert torch.equal(observed, alone)
    assert {report.labels["entropy/prediction_basis"] for report in found} == {"loss_gradient"}
    clipped, found = trained(True, CLIP, how)
    assert not torch.equal(clipped, alone)
    assert all(report.scalars["change/by_intervention"] != 0 for report in found)


def overflow_at_padding(table: Table, logprobs: Tensor, rows: slice) -> Tensor:
    """exp overflows where the mask leaves the token out: the loss is finite, its gradient NaN."""
    mask = table.mask[rows]
    difference = logprobs - torch.where(mask, logprobs.detach(), -2000.0)
    return -torch.where(mask, difference.exp() * table.advantages[rows], 0.0).mean()


def overflow_times_mask(table: Table, logprobs: Tensor, rows: slice) -> Tensor:
    mask = table.mask[rows]
    difference = logprobs - torch.where(mask, logprobs.detach(), -2000.0)
    return -(difference.exp() * table.advantages[rows] * mask).mean()


def mean_of_no_token(table: Table, logprobs: Tensor, rows: slice) -> Tensor:
    return (logprobs * 0).sum() / torch.zeros(())


def nan_advantage(table: Table, logprobs: Tensor, rows: slice) -> Tensor:
    advantages = table.advantages[rows].clone()
    advantages[0, 0] = torch.nan
    return -(advantages * logprobs)[table.mask[rows]].mean()


@pytest.mark.parametrize(
    ("loss", "inside", "outside", "is_finite", "words"),
    [
        (overflow_at_padding, 0, 1, 1.0, "outside the mask; the loss itself is finite"),
        (overflow_times_mask, 0, 1, 0.0, "outside the mask; the loss itself is NaN"),
        (mean_of_no_token, 1, 1, 0.0, "inside and"),
        (nan_advantage, 1, 0, 0.0, "1 tokens inside the mask"),
    ],
)
@pytest.mark.parametrize("control", ["none", "clip_v"])
def test_a_gradient_of_nan_is_named_wherever(
    loss: Any, inside: int, outside: int, is_finite: float, words: str, control: str
) -> None:
    """In the second of three micro-batches; never taken for a wrong mask, and nothing predicted."""
    table = Table()
    probe, transport = probe_and_transport(control=CONTROLS[control])
    for number, rows in enumerate((slice(0, 2), slice(2, 4), slice(4, 6)), 1):
        scores = probe.score(table.logits[rows], table.ids[rows])
        logprobs = probe.gate(scores, table.advantages[rows], table.mask[rows])
        if number == 2:
            loss(table, logprobs, rows).backward()
        else:
            (-(table.advantages[rows] * logprobs)[table.mask[rows]].mean()).backward()
    probe.step(0)
    report = reports(transport)[0]
    assert table.logits.grad is not None
    wrong = table.logits.grad.isnan().any(-1)
    kept = wrong & table.mask
    assert report.scalars["token/gradient_not_finite"] >= wrong.sum() > 0
    (alert,) = [one for one in report.alerts if one.kind == "gradient"]
    assert (alert.level, alert.evidence["micro_batch"], alert.evidence["micro_batches"]) == (
        "act",
        2,
        3,
    )
    assert bool(alert.evidence["inside_mask"]) == bool(inside)
    assert bool(alert.evidence["outside_mask"]) == bool(outside)
    if control == "none":
        assert alert.evidence["inside_mask"] == kept.sum()
    assert alert.evidence["loss_finite"] == is_finite
    assert words in alert.message
    assert "sampler/likely_cause" not in report.labels
    named = [name for name in report.scalars if name.startswith("change/") or "predict" in name]
    assert named == []
    assert "token/gradient_outside_mask" not in report.scalars


def test_of_two_ranks_the_one_with_nan_is_named() -> None:
    sums = {True: torch.tensor([0.0, 1.0]), False: torch.tensor([0.0, torch.nan])}
    vectors = []
    for is_finite in (True, False):
        batch = batch_of(1, 2, 0)
        gradient = {"gated": sums[is_finite].reshape(1, 2), "loss": torch.tensor(1.0)}
        vectors.append(rank_vector(0, 0, [replace(batch, gradient=gradient)], None, None).tolist())
    together = read_ranks(vectors).sums
    assert together is not None
    alert = gradient_alert(together[GRADIENT_FAULT], 1)
    assert alert is not None
    assert (alert.evidence["rank"], alert.evidence["loss_finite"]) == (1, 1)
    assert "of rank 1" in alert.message


def skipped(kind: str, control: str) -> tuple[StepReport, StepReport]:
    """The report of a batch after one that was given up, and of the same batch alone."""
    found = []
    for gives_up in (True, False):
        table = Table()
        probe, transport = probe_and_transport(control=CONTROLS[control])
        rows = (slice(0, 3), slice(3, 6)) if gives_up else (slice(3, 6),)
        for part in rows:
            scores = probe.score(table.logits[part], table.ids[part])
            logprobs = probe.gate(scores, table.advantages[part], table.mask[part])
            loss = -(table.advantages[part] * logprobs)[table.mask[part]].mean()
            if part == slice(0, 3) and kind == "no backward":
                continue
            (loss * torch.nan if part == slice(0, 3) else loss).backward()
            if part == slice(0, 3):
                table.logits.grad = None
                probe.discard()
        probe.step(0, rescore=partial(probe.score, table.logits[3:] * 1.1, table.ids[3:]))
        found.append(reports(transport)[0])
    return found[0], found[1]


@pytest.mark.parametrize("kind", ["NaN gradient", "no backward"])
@pytest.mark.parametrize("control", ["none", "clip_v"])
def test_a_batch_given_up_is_in_no_step(kind: str, control: str) -> None:
    report, alone = skipped(kind, control)
    mixed = report.scalars.keys() - alone.scalars.keys()
    assert mixed - {"time/step_seconds"} == {"token/discarded"}
    assert report.scalars["token/discarded"] == 3 * TOKENS
    for name in ("token/count", "entropy/mean", "entropy/observed_change", UNIT):
        assert report.scalars[name] == alone.scalars[name], name


def test_accumulated_parts_without_backward_are_left_out() -> None:
    """Also where `rescore` scores all of them again: the parts are found by their call."""
    table = Table()
    probe, transport = probe_and_transport()
    parts = (slice(0, 2), slice(2, 4), slice(4, 6))
    for part in parts:
        scores = probe.score(table.logits[part], table.ids[part])
        logprobs = probe.gate(scores, table.advantages[part], table.mask[part])
        if part != slice(2, 4):
            (-(table.advantages[part] * logprobs)[table.mask[part]].mean()).backward()
    probe.step(0, rescore=lambda: [probe.score(table.logits[p] * 1.1, table.ids[p]) for p in parts])
    kept = torch.tensor([True, True, False, False, True, True])
    mask = table.mask & kept[:, None]
    change = (
        token_scores(table.logits * 1.1, table.ids).entropies
        - token_scores(table.logits, table.ids).entropies
    )
    scalars = reports(transport)[0].scalars
    assert scalars["token/count"] == mask.sum()
    assert scalars["token/discarded"] == 2 * TOKENS
    assert scalars["entropy/observed_change"] == pytest.approx(float(change[mask].mean()))


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_a_gate_that_is_computed_again_is_refused(use_reentrant: bool) -> None:
    table = Table()
    probe, _ = probe_and_transport()

    def loss(logits: Tensor) -> Tensor:
        gated = probe.gate(probe.score(logits, table.ids), table.advantages, table.mask)
        return -(table.advantages * gated)[table.mask].mean()

    value = checkpoint(loss, table.logits, use_reentrant=use_reentrant)
    with pytest.raises(InputError, match="checkpointed"):
        value.backward()


@pytest.mark.parametrize("returned", [1, 3])
def test_rescore_of_another_number_of_parts(returned: int) -> None:
    table = Table()
    probe, _ = probe_and_transport()
    for part in (slice(0, 3), slice(3, 6)):
        scores = probe.score(table.logits[part], table.ids[part])
        probe.gate(scores, table.advantages[part], table.mask[part]).sum().backward()
    again = [probe.score(table.logits[:3] * 1.1, table.ids[:3])] * returned
    with pytest.raises(InputError, match=f"each of the 2 gate calls.*got {returned}"):
        probe.step(0, rescore=lambda: again)
