"""The sums of a step are those of its valid tokens, in any split, and nothing else."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from isentrope.global_step import rank_vector, read_ranks
from isentrope.methods.what_if import WHAT_IF
from isentrope.scores import TokenScores, token_scores
from isentrope.statistics.step import NOT_FINITE, TOKEN_HISTOGRAMS, report_histograms, step_metrics
from isentrope.statistics.sums import StepSums
from isentrope.statistics.tokens import TokenBatch
from isentrope_wire.metrics import COVARIANCE_TOP
from tests.probe.scores.exact_heads import FIELDS


def batch_of(rows: int, tokens: int, seed: int) -> TokenBatch:
    g = torch.Generator().manual_seed(seed)
    logits = torch.randn(rows, tokens, 30, generator=g) * 2
    token_ids = torch.randint(0, 30, (rows, tokens), generator=g)
    return TokenBatch(
        scores=token_scores(logits, token_ids),
        advantages=torch.randint(-1, 2, (rows, tokens), generator=g).float(),
        mask=torch.rand(rows, tokens, generator=g) < 0.8,
        gradient_factors=torch.rand(rows, tokens, generator=g) < 0.7,
        importance_ratios=torch.rand(rows, tokens, generator=g) + 0.5,
    )


def sums_of(*ranks: list[TokenBatch], after: list[torch.Tensor] | None = None) -> StepSums:
    """Of all ranks together."""
    sums = read_ranks([rank_vector(0, 0, batches, after, None).tolist() for batches in ranks]).sums
    assert sums is not None
    return sums


def reported(sums: StepSums) -> tuple[object, ...]:
    """What does not name a rank."""
    return step_metrics(sums), report_histograms(sums), sums[WHAT_IF]


def test_scalars_are_what_numpy_says() -> None:
    batch = batch_of(6, 9, 0)
    after = batch.scores.entropies - 0.25 + 0.1 * torch.rand(6, 9)
    scalars = step_metrics(sums_of([batch], after=[after]))
    m = batch.mask.numpy()
    a, c, lp, h, s, r, k = (
        x.double().numpy()[m]
        for x in (
            batch.advantages,
            batch.scores.vocab_centered_scores,
            batch.scores.logprobs,
            batch.scores.entropies,
            batch.scores.discriminator_scores,
            batch.importance_ratios if batch.importance_ratios is not None else torch.empty(0),
            batch.keep_mask,
        )
    )
    contribution = -k * r * a * c
    expected = {
        "token/count": m.sum(),
        "entropy/mean": h.mean(),
        "entropy/observed_change": (after.double().numpy()[m] - h).mean(),
        "entropy/unit_predicted_change": contribution.mean(),
        "score/discriminator_mean": s.mean(),
        "score/discriminator_std": s.std(),
        "score/vocab_centered_mean": c.mean(),
        "score/vocab_centered_std": c.std(),
        "score/self_check_z": (r * c).mean() / ((r * c).std(ddof=1) / math.sqrt(m.sum())),
        "covariance/advantage_score": np.cov(a, r * c, bias=True)[0, 1],
        "covariance/advantage_discriminator": (a * s).mean(),
        "covariance/advantage_logprob": np.cov(a, lp, bias=True)[0, 1],
        "change/positive_high": contribution[(a > 0) & (c > 0)].sum() / m.sum(),
        "change/positive_low": contribution[(a > 0) & (c <= 0)].sum() / m.sum(),
        "change/negative_high": contribution[(a < 0) & (c > 0)].sum() / m.sum(),
        "change/negative_low": contribution[(a < 0) & (c <= 0)].sum() / m.sum(),
        "change/by_policy_loss": (-r * a * c).mean(),
        "entropy/bonus_effect": (r * c * (lp + h)).mean(),
        "clip/fraction": 1 - k.mean(),
        "clip/fraction_positive": 1 - k[a > 0].mean(),
        "clip/fraction_negative": 1 - k[a < 0].mean(),
        "ratio/mean": r.mean(),
        "token/effective_fraction": (a != 0).mean(),
    }
    # What else there is has tests of its own.
    others = ("ratio/", "covariance/top_")
    assert {name for name in set(scalars) - set(expected) if not name.startswith(others)} == set()
    assert {name: scalars[name] for name in expected} == pytest.approx(expected, rel=1e-6, abs=1e-9)


def test_mean_of_advantage_and_discriminator_is_covariance_of_theorem_1() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(12, generator=generator, dtype=torch.float64)
    advantages = torch.randn(12, generator=generator, dtype=torch.float64)
    scores = token_scores(logits.expand(12, 12), torch.arange(12))
    p, log_p = scores.logprobs.exp(), scores.logprobs
    pushes = p * advantages
    wanted = (p * (log_p - (p * log_p).sum()) * (pushes - (p * pushes).sum())).sum()
    assert (p * advantages * scores.discriminator_scores).sum().item() == pytest.approx(
        wanted.item()
    )


def without_shares(metrics: dict[str, float]) -> dict[str, float]:
    """All but the top shares of the covariance, whose bins lie about each rank's own means."""
    return {
        name: value for name, value in metrics.items() if not name.startswith("covariance/top_")
    }


def test_summaries_of_micro_batches_merge_to_the_summary_of_the_step() -> None:
    first, second, third = batches = [batch_of(3, 7, 2), batch_of(5, 4, 3), batch_of(1, 9, 4)]
    whole = sums_of(batches)
    expected = without_shares(step_metrics(whole))
    for merged in (sums_of([first], [second], [third]), sums_of([third], [first, second])):
        assert without_shares(step_metrics(merged)) == pytest.approx(expected, rel=1e-9, abs=1e-12)
        assert {sum(histogram.counts) for histogram in merged[TOKEN_HISTOGRAMS]} == {whole.tokens}


def test_whatever_stands_on_padding_never_enters_a_sum() -> None:
    batch = batch_of(4, 6, 5)
    poison = torch.where(batch.mask, 0.0, math.nan)
    poisoned = TokenBatch(
        TokenScores(*(getattr(batch.scores, field) + poison for field in FIELDS)),
        batch.advantages + poison,
        batch.mask,
        batch.importance_ratios,
        batch.gradient_factors,
    )
    assert step_metrics(sums_of([poisoned])) == step_metrics(sums_of([batch]))


def test_tokens_that_are_not_finite_are_counted_apart() -> None:
    batch = batch_of(4, 6, 6)
    valid = batch.mask.nonzero()[0]
    batch.scores.entropies[tuple(valid)] = math.nan
    sums = sums_of([batch])
    assert sums[NOT_FINITE] == 1
    assert sums.tokens == int(batch.mask.sum()) - 1
    assert math.isfinite(step_metrics(sums)["entropy/mean"])


def test_what_was_not_measured_is_absent() -> None:
    batch = batch_of(4, 6, 7)
    on_policy = TokenBatch(
        batch.scores, batch.advantages.abs(), batch.mask, None, batch.gradient_factors
    )
    scalars = step_metrics(sums_of([on_policy]))
    assert not {
        "ratio/mean",
        "entropy/observed_change",
        "clip/fraction_negative",
        "token/not_finite",
    } & set(scalars)


def test_a_step_whose_mask_is_empty_says_so_and_nothing_more() -> None:
    batch = batch_of(4, 6, 8)
    empty = TokenBatch(
        batch.scores, batch.advantages, torch.zeros_like(batch.mask), None, batch.gradient_factors
    )
    assert step_metrics(sums_of([empty])) == {"token/count": 0.0, "token/not_finite": 0.0}


def test_a_rank_without_tokens_changes_no_share() -> None:
    batch = batch_of(30, 40, 9)
    scalars = step_metrics(sums_of([batch]))
    assert scalars["covariance/top_100"] == pytest.approx(
        scalars["covariance/advantage_logprob"], rel=1e-9
    )
    tops = [scalars[name] for name in COVARIANCE_TOP]
    assert tops == sorted(tops, reverse=True)
    assert (
        reported(sums_of([batch], []))
        == reported(sums_of([], [batch]))
        == reported(sums_of([batch]))
    )
