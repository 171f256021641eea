"""Shards of a vocabulary give the scores of the whole, on every rank of a real process group."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed
from torch import Tensor

from isentrope.scores.vocabulary_shards import merge, shard_moments, sharded_token_scores
from isentrope_wire.errors import InputError
from tests.probe.kernels.numerics import Case, exact_gradient
from tests.probe.ranks.gang import run_ranks
from tests.probe.scores import reference64
from tests.probe.scores.exact_heads import ALL_FIELDS, FIELDS

BOUNDARIES = {1: [0, 101], 2: [0, 1, 101], 4: [0, 40, 47, 80, 101]}
"""Uneven shards of 101 tokens."""
SPOILT = slice(7, 11)
"""Rows of `special_logits` that no score can be made of."""


def special_logits(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Twelve rows of 101 logits: ordinary, offset, partly and wholly masked, and spoilt ones."""
    generator = torch.Generator().manual_seed(0)
    logits = (torch.randn(12, 101, generator=generator) * 3).to(dtype)
    token_ids = torch.randint(0, 101, (12,), generator=generator)
    token_ids[:3] = torch.tensor([0, 40, 100])
    logits[3] += 10000.0
    logits[4, 40:] = -torch.inf  # masked in the last shards
    logits[5, :80] = -torch.inf  # masked in the first ones
    token_ids[4], token_ids[5] = 90, 90
    logits[6, token_ids[6]] = -torch.inf
    logits[7] = -torch.inf
    logits[8, 60] = torch.nan
    logits[9, 60] = torch.inf
    logits[10, 0], logits[10, 100] = torch.nan, torch.inf
    return logits, token_ids


def upstream() -> Tensor:
    """Gradients of log-probs and entropies; none where the scores are NaN or a log-prob is -inf."""
    gradients = torch.randn(2, 12, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    gradients[:, SPOILT] = 0.0
    gradients[0, [4, 6]] = 0.0
    return gradients


def special_scores(
    logits: Tensor, token_ids: Tensor, temperature: float | Tensor
) -> dict[str, Tensor]:
    """In float64, of the whole rows; spoilt rows are NaN in every field."""
    expected = reference64.scores64(logits, token_ids, temperature)
    for field in ALL_FIELDS:
        expected[field][SPOILT] = torch.nan
    return expected


def ordinary(logits: Tensor) -> Tensor:
    return torch.cat([logits[: SPOILT.start], logits[SPOILT.stop :]])


def shard_of(rank: int, ranks: int, logits: Tensor) -> tuple[Tensor, int]:
    start, end = BOUNDARIES[ranks][rank : rank + 2]
    return logits[:, start:end], start


def score_own_shard(rank: int, temperature: float, dtype: torch.dtype) -> dict[str, Any]:
    """What one rank sees of it all."""
    logits, token_ids = special_logits(dtype)
    shard, start = shard_of(rank, torch.distributed.get_world_size(), logits)
    shard = shard.clone().requires_grad_()
    collectives: list[Any] = []
    all_reduce = torch.distributed.all_reduce

    def counted(tensor: Tensor, op: Any, group: Any = None) -> None:
        collectives.append((str(op), tensor.numel()))
        all_reduce(tensor, op, group)

    torch.distributed.all_reduce = counted  # type: ignore[assignment]
    scores = sharded_token_scores(shard, token_ids, start, temperature, entropy_gradient=True)
    logprob_gradient, entropy_gradient = upstream().to(scores.logprobs.dtype)
    torch.autograd.backward(
        [scores.logprobs, scores.entropies], [logprob_gradient, entropy_gradient]
    )
    part = shard_moments(shard, token_ids, start, temperature, squared_scores=True)
    merged = merge(part, temperature=temperature, group=torch.distributed.group.WORLD)
    assert scores.temperature == merged.temperature == temperature
    return {
        "scores": {field: getattr(scores, field).detach() for field in ALL_FIELDS},
        "merged": {field: getattr(merged, field) for field in ALL_FIELDS},
        "gradient": shard.grad,
        "collectives": collectives,
    }


def assert_scores_equal(
    scores: dict[str, Tensor], expected: dict[str, Tensor], atol: float
) -> None:
    for field, values in scores.items():
        torch.testing.assert_close(
            values.double(), expected[field], rtol=1.2e-7, atol=atol, equal_nan=True
        )


@pytest.mark.parametrize(
    ("ranks", "dtype", "temperature"), [(2, torch.float64, 0.7), (4, torch.float32, 1.3)]
)
def test_every_rank_gets_the_scores_and_its_gradient_of_the_whole(
    ranks: int, dtype: torch.dtype, temperature: float
) -> None:
    results = run_ranks(ranks, score_own_shard, temperature, dtype)
    logits, token_ids = special_logits(dtype)
    expected = special_scores(logits, token_ids, temperature)
    atol = 1e-12 if dtype == torch.float64 else 1e-6
    for result in results:
        assert_scores_equal(result["scores"], expected, atol)
        assert_scores_equal(result["merged"], expected, atol)
        assert result["collectives"] == [
            ("RedOpType.MAX", 12),
            ("RedOpType.SUM", 84),
            ("RedOpType.MAX", 12),
            ("RedOpType.SUM", 84),
        ]
    got = torch.cat([result["gradient"] for result in results], 1).double()
    by_whole = exact_gradient(Case("whole", logits, token_ids, temperature), *upstream())
    torch.testing.assert_close(ordinary(got), ordinary(by_whole), rtol=0, atol=10 * atol)


def test_shards_take_a_temperature_of_each_token() -> None:
    logits, token_ids = special_logits(torch.float64)
    temperature = torch.linspace(0.5, 1.7, 12, dtype=torch.float64)
    shards = [
        shard_moments(logits[:, :40], token_ids, 0, temperature),
        shard_moments(logits[:, 40:], token_ids, 40, temperature),
    ]
    expected = special_scores(logits, token_ids, temperature.unsqueeze(1))
    assert_scores_equal(
        {field: getattr(merge(*shards), field) for field in FIELDS}, expected, 1e-12
    )


def test_a_token_that_no_shard_holds_has_probability_zero() -> None:
    logits, _ = special_logits()
    scores = merge(shard_moments(logits[:1], torch.tensor([101]), 0))
    assert scores.logprobs.item() == -torch.inf
    assert scores.discriminator_scores.item() == 0.0


def test_shards_that_do_not_belong_together_are_refused() -> None:
    logits, token_ids = special_logits()
    with pytest.raises(InputError, match="shard"):
        merge()
    with pytest.raises(InputError, match=r"\[6, 12\]"):
        merge(shard_moments(logits, token_ids, 0), shard_moments(logits[:6], token_ids[:6], 0))
    with pytest.raises(InputError, match=r"^start .*-1"):
        shard_moments(logits, token_ids, -1)
    with pytest.raises(InputError, match=r"\[12, 101\].*\[11\]"):
        sharded_token_scores(logits, token_ids[:-1], 0)


@pytest.mark.parametrize("wrong", [[], [torch.zeros(3)], "moments"])
def test_merge_names_what_it_takes(wrong: Any) -> None:
    with pytest.raises(InputError, match=r"merge\(\*shards\)"):
        merge(wrong)
