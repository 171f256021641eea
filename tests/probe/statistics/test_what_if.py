"""What the sums of a step say of other thresholds is what those thresholds would have done to its
tokens."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from isentrope.methods.threshold import distance_beyond
from isentrope.methods.what_if import measure_what_if, read_what_if
from isentrope.scores import TokenScores, token_scores
from isentrope.statistics.moments import ThresholdStatistics, threshold_statistics
from isentrope.statistics.tokens import StepTokens, TokenBatch
from isentrope_wire.control import Control, Method, Scope
from isentrope_wire.what_if import EDGES, WhatIfCurve, WhatIfSums
from tests.probe.methods.tokens import keep_mask
from tests.probe.scores.exact_heads import FIELDS

METHODS = (Method.CLIP_B, Method.CLIP_V)


class Tokens:
    """A step's tokens, with padding that holds NaN and a few certain ones whose S_c is exactly
    0."""

    def __init__(self, count: int, seed: int) -> None:
        g = torch.Generator().manual_seed(seed)
        logits = torch.randn(count, 12, generator=g) * 3 * torch.rand(count, 1, generator=g)
        token_ids = torch.multinomial(logits.softmax(-1), 1, generator=g).squeeze(-1)
        logits[: count // 20] = -torch.inf
        logits[: count // 20].scatter_(1, token_ids[: count // 20, None], 1.0)
        scores = token_scores(logits, token_ids)
        self.mask = torch.rand(count, generator=g) < 0.9
        self.scores = TokenScores(
            *(torch.where(self.mask, getattr(scores, f), torch.nan) for f in FIELDS)
        )
        self.advantages = torch.randint(-1, 2, (count,), generator=g) * torch.rand(
            count, generator=g
        )
        self.ratios = torch.rand(count, generator=g) + 0.5

    def sums(self, statistics: ThresholdStatistics | None) -> Tensor:
        everything_dropped = torch.zeros_like(self.mask)
        batch = TokenBatch(self.scores, self.advantages, self.mask, self.ratios, everything_dropped)
        return torch.hstack(measure_what_if(StepTokens([batch], thresholds=statistics)))

    def by_force(self, control: Control, statistics: ThresholdStatistics) -> tuple[float, float]:
        """Clip fraction and unit prediction of the gate itself under this control."""
        keep = keep_mask(control, self.scores, self.advantages, statistics) & self.mask
        return 1 - int(keep.sum()) / int(self.mask.sum()), self.unit_prediction(keep)

    def unit_prediction(self, keep: Tensor) -> float:
        """-mean(keep r A S_c)"""
        changes = (
            self.ratios.double()
            * self.advantages.double()
            * self.scores.vocab_centered_scores.double()
        )
        return -float(changes[keep].sum()) / int(self.mask.sum())


def statistics_of(tokens: Tokens) -> ThresholdStatistics:
    return threshold_statistics([tokens.scores], [tokens.mask])


def statistics_like(statistics: ThresholdStatistics, value: float) -> ThresholdStatistics:
    one = torch.full_like(statistics.vocab_centered_std, value)
    return replace(
        statistics, discriminator_mean=one, discriminator_std=one, vocab_centered_std=one
    )


def read(vector: Tensor) -> WhatIfSums:
    sums = read_what_if(vector.tolist())
    assert sums is not None
    return sums


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("scope", list(Scope))
def test_at_the_edges_it_is_exactly_what_the_gate_would_have_done(
    method: Method, scope: Scope
) -> None:
    tokens = Tokens(4000, seed=1)
    statistics = statistics_of(tokens)
    sums = read(tokens.sums(statistics))
    draw = random.Random(5)
    clipped_some = 0
    for _ in range(60):
        mu_low, mu_high = draw.choice([*EDGES[:60], None]), draw.choice(EDGES[:60])
        control = Control(method=method, mu_low=mu_low, mu_high=mu_high, scope=scope)
        found = WhatIfCurve(sums, scope, method).evaluate(mu_low, mu_high)
        fraction, change = tokens.by_force(control, statistics)
        assert found.clip_fraction == pytest.approx(fraction, abs=1e-12)
        assert found.unit_predicted_change == pytest.approx(change, abs=1e-12)
        clipped_some += fraction > 0
    assert clipped_some > 40


@pytest.mark.parametrize("method", METHODS)
def test_between_the_edges_it_lies_within_the_bounds_it_states(method: Method) -> None:
    tokens = Tokens(4000, seed=2)
    statistics = statistics_of(tokens)
    sums = read(tokens.sums(statistics))
    draw = random.Random(6)
    errors = []
    for _ in range(200):
        mu_low, mu_high, scope = draw.uniform(0, 4), draw.uniform(0, 9), draw.choice(list(Scope))
        found = WhatIfCurve(sums, scope, method).evaluate(mu_low, mu_high)
        control = Control(method=method, mu_low=mu_low, mu_high=mu_high, scope=scope)
        fraction, change = tokens.by_force(control, statistics)
        assert abs(found.clip_fraction - fraction) <= found.clip_fraction_bound + 1e-12
        assert (
            abs(found.unit_predicted_change - change) <= found.unit_predicted_change_bound + 1e-12
        )
        errors.append(abs(found.clip_fraction - fraction))
    assert sum(errors) / len(errors) < 0.01


def furthest(
    tokens: Tokens, control: Control, statistics: ThresholdStatistics, fraction: float
) -> tuple[float, float]:
    """By force: sort what the gate would leave out by its distance beyond the threshold, and leave
    out the furthest."""
    outside = ~keep_mask(control, tokens.scores, tokens.advantages, statistics) & tokens.mask
    is_b = control.method == Method.CLIP_B
    scores = tokens.scores.discriminator_scores if is_b else tokens.scores.vocab_centered_scores
    centre = statistics.discriminator_mean if is_b else 0.0
    sigma = statistics.discriminator_std if is_b else statistics.vocab_centered_std
    standardised = (scores.double() - centre) / sigma
    distances = torch.where(outside, distance_beyond(control, standardised), -torch.inf)
    count = int(tokens.mask.sum())
    dropped = torch.zeros_like(outside)
    order = distances.argsort(descending=True)[
        : min(int(count * fraction + 1e-9), int(outside.sum()))
    ]
    dropped[order] = True
    return int(dropped.sum()) / count, tokens.unit_prediction(tokens.mask & ~dropped)


@pytest.mark.parametrize("method", METHODS)
def test_a_cap_leaves_the_furthest_tokens_within_the_bounds_stated(method: Method) -> None:
    tokens = Tokens(4000, seed=11)
    statistics = statistics_of(tokens)
    sums = read(tokens.sums(statistics))
    draw, binding, errors, sizes = random.Random(7), 0, [], []
    for _ in range(150):
        mu_low, mu_high = (
            draw.choice([None, draw.uniform(0, 3)]),
            draw.choice([0.0, 0.5, draw.uniform(0, 3)]),
        )
        scope, fraction = draw.choice(list(Scope)), draw.choice([0.001, 0.02, 0.1, 1.0])
        control = Control(method=method, mu_low=mu_low, mu_high=mu_high, scope=scope)
        found = WhatIfCurve(sums, scope, method).evaluate(mu_low, mu_high, max_fraction=fraction)
        share, change = furthest(tokens, control, statistics, fraction)
        assert abs(found.clip_fraction - share) <= found.clip_fraction_bound + 1e-9
        assert abs(found.unit_predicted_change - change) <= found.unit_predicted_change_bound + 1e-9
        uncapped = WhatIfCurve(sums, scope, method).evaluate(mu_low, mu_high)
        assert found.capped == (
            uncapped.clip_fraction * sums.tokens > int(sums.tokens * fraction + 1e-9)
        )
        if found.capped:
            binding += 1
            assert found.clip_fraction == pytest.approx(share, abs=1e-12)
            errors.append(abs(found.unit_predicted_change - change))
            sizes.append(abs(change - sums.change_sum / sums.tokens))
        else:
            assert found.unit_predicted_change == pytest.approx(
                uncapped.unit_predicted_change, abs=1e-12
            )
    assert binding > 60
    assert sum(errors) < 0.03 * sum(sizes)


def test_a_mean_over_the_kept_tokens_is_what_a_shrunken_denominator_makes_of_the_step() -> None:
    tokens = Tokens(2000, seed=12)
    statistics = statistics_of(tokens)
    sums, draw = read(tokens.sums(statistics)), random.Random(8)
    for _ in range(60):
        mu_low, mu_high, scope = (
            draw.uniform(0, 3),
            draw.choice(EDGES[:60]),
            draw.choice(list(Scope)),
        )
        control = Control(method=Method.CLIP_V, mu_low=mu_low, mu_high=mu_high, scope=scope)
        fraction, change = tokens.by_force(control, statistics)
        found = WhatIfCurve(sums, scope, Method.CLIP_V).evaluate(
            mu_low, mu_high, shrink_denominator=True
        )
        assert (
            abs(found.unit_predicted_change - change / (1 - fraction))
            <= found.unit_predicted_change_bound + 1e-9
        )


def test_micro_batches_and_ranks_add_up_to_the_step() -> None:
    parts = [Tokens(500, seed=3), Tokens(300, seed=4)]
    statistics = threshold_statistics([p.scores for p in parts], [p.mask for p in parts])
    first, second = (part.sums(statistics) for part in parts)
    together = read(first + second)
    merged = read(first).merge(read(second))
    assert together.tokens == merged.tokens == sum(int(p.mask.sum()) for p in parts)
    for method, bins in together.by_method.items():
        assert (bins.cells, bins.counts) == (
            merged.by_method[method].cells,
            merged.by_method[method].counts,
        )
        assert bins.change_sums == pytest.approx(merged.by_method[method].change_sums, abs=1e-12)


def test_thresholds_are_counted_from_the_tokens_themselves_where_none_are_given() -> None:
    tokens = Tokens(300, seed=10)
    own, given = tokens.sums(None), tokens.sums(statistics_of(tokens))
    assert torch.equal(own, given)


def test_thresholds_counted_from_nothing_clip_nothing() -> None:
    tokens = Tokens(100, seed=8)
    sums = read(tokens.sums(statistics_like(statistics_of(tokens), torch.nan)))
    assert WhatIfCurve(sums, Scope.ALL, Method.CLIP_V).evaluate(0.0, 0.0).clip_fraction == 0
    assert WhatIfCurve(sums, Scope.ALL, Method.CLIP_B).evaluate(0.0, 0.0).clip_fraction == 0


def test_without_spread_every_token_off_the_centre_lies_beyond_every_threshold() -> None:
    tokens = Tokens(100, seed=9)
    statistics = statistics_like(statistics_of(tokens), 0.0)
    control = Control(method="clip_v", mu_low=3.0, mu_high=3.0)
    fraction, _ = tokens.by_force(control, statistics)
    assert fraction > 0.5
    found = WhatIfCurve(read(tokens.sums(statistics)), Scope.ALL, Method.CLIP_V).evaluate(3.0, 3.0)
    assert found.clip_fraction == pytest.approx(fraction)
