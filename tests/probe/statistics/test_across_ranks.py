"""A rank without tokens, and one that failed, change nothing in what the others say together."""

from __future__ import annotations

from dataclasses import replace

from isentrope.statistics.global_step import THRESHOLD_COLUMNS, failed_rank_vector, rank_vector, read_ranks
from isentrope.statistics.tokens import TokenBatch
from tests.probe.statistics.test_step_summary import batch_of, summary_of


def test_empty_hands_are_as_long_as_full_ones_and_change_nothing() -> None:
    batch = batch_of(4, 6, 1)
    full, empty = rank_vector(3, 0, [batch], None, None), rank_vector(3, 2, [], None, None)
    failed = failed_rank_vector(1, None)
    assert full.shape == empty.shape == failed.shape
    together = read_ranks([empty.tolist(), full.tolist(), failed.tolist()])
    assert together.summary == summary_of(batch)
    assert (together.failures, together.failed_ranks, together.steps) == (3, 1, (3,))


def test_a_gate_call_without_a_single_token_is_a_step_of_no_tokens() -> None:
    empty = batch_of(0, 6, 1)
    assert summary_of(empty).tokens == 0
    batch = with_small_scores(batch_of(4, 6, 1))
    # Bins finer than 1: what has no tokens must not widen them.
    assert summary_of(batch).histograms["score/vocab_centered"].exponent < 0
    assert summary_of(empty, batch) == summary_of(batch)
    together = read_ranks([rank_vector(0, 0, [part], None, None).tolist() for part in (empty, batch)])
    assert together.summary == summary_of(batch)


def with_small_scores(batch: TokenBatch) -> TokenBatch:
    scores = replace(batch.scores, vocab_centered_scores=0.01 * batch.scores.vocab_centered_scores)
    return replace(batch, scores=scores)


def test_the_columns_for_the_thresholds_hold_the_moments_of_both_scores() -> None:
    batch = batch_of(4, 6, 2)
    count, mean, squares, count_again, centred_mean, centred_squares = rank_vector(0, 0, [batch], None, None)[
        THRESHOLD_COLUMNS
    ].tolist()
    summary = summary_of(batch)
    assert (count, mean, squares) == (
        summary.tokens,
        summary.discriminator_scores.mean,
        summary.discriminator_scores.sum_squares,
    )
    assert (count_again, centred_mean, centred_squares) == (
        summary.tokens,
        summary.vocab_centered_scores.mean,
        summary.vocab_centered_scores.sum_squares,
    )


def test_how_often_each_source_was_used_adds_up_over_the_ranks() -> None:
    def batch(source: str | None) -> TokenBatch:
        plain = batch_of(2, 3, 1)
        return TokenBatch(plain.scores, plain.advantages, plain.mask, plain.keep_mask, None, source)

    first = rank_vector(0, 0, [batch("first_pass"), batch("micro_batch")], None, None)
    second = rank_vector(0, 0, [batch("micro_batch"), batch(None)], None, None)
    together = read_ranks([first.tolist(), second.tolist()])
    assert together.summary is not None
    assert together.summary.threshold_sources == (1, 0, 2)
