"""What the loop's clip, the intervention and the KL term do to the prediction adds up to it, and what is not known is absent."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

import isentrope
from isentrope.scores import inside_clip, kl_strengths, token_scores
from isentrope.statistics.step import step_metrics
from isentrope.statistics.tokens import TokenBatch
from tests.probe.statistics.test_step_summary import batch_of, sums_of
from tests.probe.tiny_loop import CLIP, TinyLoop, probe_and_transport, reports

PARTS = ("change/with_nothing_in_force", "change/by_ratio_clip", "change/by_intervention")


def told(seed: int, rows: int = 6) -> TokenBatch:
    """Tokens of which the loop said everything, under an intervention that drops and weighs."""
    batch = batch_of(rows, 9, seed)
    g = torch.Generator().manual_seed(100 + seed)
    shape = batch.mask.shape
    return replace(
        batch,
        gradient_factors=torch.where(batch.keep_mask, 1 + torch.rand(shape, generator=g), 0.0),
        loss_weights=(torch.rand(shape, generator=g) < 0.6).float(),
        kl_strengths=torch.randn(shape, generator=g),
    )


def test_the_parts_are_what_brute_force_says_and_sum_to_the_unit_prediction() -> None:
    batch = told(0)
    scalars = step_metrics(sums_of([batch]), intervening=True)
    assert batch.importance_ratios is not None
    assert batch.gradient_factors is not None
    assert batch.loss_weights is not None
    assert batch.kl_strengths is not None
    plain = (-batch.importance_ratios * batch.advantages * batch.scores.vocab_centered_scores).double()
    weights, factors = batch.loss_weights, batch.gradient_factors

    def mean(of: Tensor) -> float:
        return of[batch.mask].mean().item()

    assert scalars[PARTS[0]] == pytest.approx(mean(plain), rel=1e-6)
    assert scalars[PARTS[1]] == pytest.approx(mean((weights - 1) * plain), rel=1e-6)
    assert scalars[PARTS[2]] == pytest.approx(mean((factors - 1) * weights * plain), rel=1e-6)
    kl = -factors * batch.kl_strengths * batch.scores.vocab_centered_scores
    assert scalars["change/by_kl_penalty"] == pytest.approx(mean(kl), rel=1e-6)
    assert sum(scalars[part] for part in PARTS) == pytest.approx(scalars["entropy/unit_predicted_change"], rel=1e-12)


def test_they_merge_exactly_over_micro_batches_and_ranks() -> None:
    batches = [told(1), told(2, rows=3), told(3, rows=1)]
    whole = step_metrics(sums_of(batches), intervening=True)
    first, second, third = batches
    for merged in (sums_of([first], [second], [third]), sums_of([third], [second, first])):
        found = step_metrics(merged, intervening=True)
        for part in (*PARTS, "change/by_kl_penalty"):
            assert found[part] == pytest.approx(whole[part], rel=1e-12)


def test_what_the_loop_did_not_say_is_absent_and_never_zero() -> None:
    batch = told(4)
    silent = replace(batch, loss_weights=None, kl_strengths=None)
    scalars = step_metrics(sums_of([silent]), intervening=True)
    assert {"change/by_ratio_clip", "change/by_kl_penalty"}.isdisjoint(scalars)
    known = scalars["change/with_nothing_in_force"] + scalars["change/by_intervention"]
    assert known == pytest.approx(scalars["entropy/unit_predicted_change"], rel=1e-12)
    # Said of one micro-batch and not of the other: neither what it took nor what there was before is known.
    partly = step_metrics(sums_of([batch, replace(told(5), loss_weights=None, kl_strengths=None)]))
    assert set(partly) & {*PARTS, "change/by_kl_penalty"} == set()


def test_without_an_intervention_nothing_is_said_of_one() -> None:
    probe, transport = probe_and_transport()
    loop = TinyLoop()
    logits, token_ids, advantages = loop.sample()
    probe.gate(probe.score(logits, token_ids), advantages, loop.mask)
    probe.step(0)
    scalars = reports(transport)[0].scalars
    assert scalars["change/with_nothing_in_force"] == scalars["entropy/unit_predicted_change"]
    assert "change/by_intervention" not in scalars


def test_a_token_that_the_loops_clip_silences_is_predicted_silent() -> None:
    loop = TinyLoop()
    logits, token_ids, advantages = loop.sample()
    probe, transport = probe_and_transport(control=CLIP)
    scores = probe.score(logits, token_ids)
    old = scores.logprobs.detach() + 0.3 * torch.sin(torch.arange(80.0)).view(16, 5)
    ratios = (scores.logprobs.detach() - old).exp()
    gated = probe.gate(
        scores, advantages, loop.mask, old, loss_weights=inside_clip(advantages, ratios, 0.2, 0.2), groups=4
    )
    surrogate = torch.minimum(
        (gated - old).exp() * advantages, (gated - old).exp().clamp(0.8, 1.2) * advantages
    )[loop.mask].mean()  # fmt: skip
    (pushed,) = torch.autograd.grad(surrogate, scores.logprobs)
    probe.step(0)
    scalars = reports(transport)[0].scalars
    # What the loss itself pushes each log-prob by is r A where nothing silences it.
    expected = -(pushed * scores.vocab_centered_scores).sum().item()
    assert scalars["entropy/unit_predicted_change"] == pytest.approx(expected, rel=1e-5)
    assert scalars["change/by_ratio_clip"] != 0
    assert scalars["change/by_intervention"] != 0
    assert sum(scalars[part] for part in PARTS) == pytest.approx(expected, rel=1e-5)


def test_the_kl_strength_is_the_gradient_of_the_estimator_grpo_adds() -> None:
    logprobs = torch.linspace(-4, -0.1, 7, dtype=torch.float64, requires_grad=True)
    reference = logprobs.detach().flip(0)
    log_ratio = reference - logprobs
    (gradient,) = torch.autograd.grad(0.3 * (log_ratio.exp() - log_ratio - 1).sum(), logprobs)
    torch.testing.assert_close(kl_strengths(logprobs.detach(), reference, 0.3), -gradient)


def test_a_kl_term_that_holds_a_token_back_raises_the_entropy_where_rewarding_it_lowers_it() -> None:
    """By hand: one token of S_c > 0 that has become likelier than under the reference."""
    logits = torch.tensor([[[2.0, 0.0, 0.0]]])
    ids = torch.zeros(1, 1, dtype=torch.long)
    scores = token_scores(logits, ids)
    probe, transport = probe_and_transport()
    pull = kl_strengths(scores.logprobs, scores.logprobs - 0.5, 0.1)
    probe.gate(scores, torch.zeros(1, 1), kl_strengths=pull)
    probe.step(0)
    expected = 0.1 * (1 - torch.tensor(-0.5).exp().item()) * scores.vocab_centered_scores.item()
    assert expected > 0
    assert reports(transport)[0].scalars["change/by_kl_penalty"] == pytest.approx(expected, rel=1e-5)
    assert reports(transport)[0].scalars["entropy/unit_predicted_change"] == 0


@pytest.mark.parametrize("name", ["loss_weights", "kl_strengths"])
def test_what_does_not_have_the_tokens_shape_is_refused(name: str) -> None:
    loop = TinyLoop()
    logits, token_ids, advantages = loop.sample()
    probe, _ = probe_and_transport()
    with pytest.raises(isentrope.errors.InputError, match=rf"{name} must have the tokens' shape \[16, 5\]"):
        probe.gate(probe.score(logits, token_ids), advantages, loop.mask, **{name: torch.ones(3)})
