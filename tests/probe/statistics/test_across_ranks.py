"""A rank without tokens, and one that failed, change nothing in what the others say together."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from isentrope.global_step import (
    SUMS,
    failed_rank_vector,
    rank_vector,
    read_ranks,
    threshold_moments,
)
from isentrope.statistics.step import (
    DISCRIMINATOR,
    SOURCES,
    TOKEN_HISTOGRAMS,
    VOCAB_CENTERED,
    step_metrics,
)
from isentrope.statistics.sums import Layout, RankHeader, total
from isentrope.statistics.tokens import StepTokens, TokenBatch
from tests.probe.statistics.test_step_summary import batch_of, reported, sums_of


def test_empty_hands_are_as_long_as_full_ones_and_change_nothing() -> None:
    batch = batch_of(4, 6, 1)
    full, empty = rank_vector(3, 0, [batch], None, None), rank_vector(3, 2, [], None, None)
    failed = failed_rank_vector(1, None)
    assert full.shape == empty.shape == failed.shape
    together = read_ranks([empty.tolist(), full.tolist(), failed.tolist()])
    assert together.sums is not None
    assert reported(together.sums) == reported(sums_of([batch]))
    assert (together.failures, together.failed_ranks, together.steps) == (3, 1, (3,))


def test_a_gate_call_without_a_single_token_is_a_step_of_no_tokens() -> None:
    empty = batch_of(0, 6, 1)
    assert sums_of([empty]).tokens == 0
    batch = with_small_scores(batch_of(4, 6, 1))
    # Bins finer than 1: what has no tokens must not widen them.
    assert sums_of([batch])[TOKEN_HISTOGRAMS][0].exponent < 0
    assert (
        reported(sums_of([empty, batch]))
        == reported(sums_of([empty], [batch]))
        == reported(sums_of([batch]))
    )


def with_small_scores(batch: TokenBatch) -> TokenBatch:
    scores = replace(batch.scores, vocab_centered_scores=0.01 * batch.scores.vocab_centered_scores)
    return replace(batch, scores=scores)


def test_the_columns_for_the_thresholds_hold_the_moments_of_both_scores() -> None:
    batch = batch_of(4, 6, 2)
    (numbers,) = threshold_moments(rank_vector(0, 0, [batch], None, None).unsqueeze(0)).tolist()
    moments = [sums_of([batch])[one] for one in (DISCRIMINATOR, VOCAB_CENTERED)]
    assert numbers == [
        number for one in moments for number in (one.count, one.mean, one.sum_squares)
    ]


def test_how_often_each_source_was_used_adds_up_over_the_ranks() -> None:
    def batch(source: str | None) -> TokenBatch:
        plain = batch_of(2, 3, 1)
        return TokenBatch(plain.scores, plain.advantages, plain.mask, threshold_source=source)

    together = sums_of(
        [batch("first_pass"), batch("micro_batch")], [batch("micro_batch"), batch(None)]
    )
    assert together[SOURCES] == (1, 0, 2)


def test_a_new_statistic_is_one_declaration() -> None:
    surprise = total(
        lambda tokens: -tokens["log p"].sum(),
        metrics=lambda value, step: {"token/surprise": value / step.tokens},
    )
    layout, batches = Layout(*SUMS, surprise), [batch_of(4, 6, 3), batch_of(2, 5, 4)]
    rows = [
        layout.pack(RankHeader(0, 1, 0, 1), StepTokens([batch]), None).tolist() for batch in batches
    ]
    added = [
        sum(column) for column in zip(*(row[layout.additive_from :] for row in rows), strict=True)
    ]
    metrics = step_metrics(layout.read(dict(enumerate(rows)), added))
    expected = (
        -torch.cat([batch.scores.logprobs[batch.mask] for batch in batches]).double().mean().item()
    )
    assert metrics.pop("token/surprise") == pytest.approx(expected)
    assert metrics == step_metrics(sums_of(*([batch] for batch in batches)))
