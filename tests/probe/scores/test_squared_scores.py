"""sum_i S_i^2 is the squared length of T times the entropy's gradient, and what an entropy bonus
changes the entropy by."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from isentrope.integrations.trl_head import completion_scores
from isentrope.scores import TokenScores, head_tiles, linear_token_scores, token_scores
from isentrope.statistics.tokens import detached
from tests.probe.scores.exact_heads import Head, logits64

TEMPERATURES = [1.0, 0.6, torch.tensor([[0.5], [1.0], [1.7]])]


def by_autograd(logits: Tensor, temperature: float | Tensor) -> Tensor:
    """T^2 sum_i (dH / dz_i)^2 of every row, in float64."""
    divisor = temperature.double().unsqueeze(-1) if isinstance(temperature, Tensor) else temperature
    leaf = logits.detach().double().requires_grad_()
    logprobs = (leaf / divisor).log_softmax(-1).clamp(min=-1000.0)  # 0 * -inf
    (gradient,) = torch.autograd.grad(-(logprobs.exp() * logprobs).sum(), leaf)
    return (gradient * divisor).square().sum(-1)


def rows(vocabulary: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """[3, 4, vocabulary]: ordinary rows, nearly certain ones, uniform ones, and some with masked
    logits."""
    logits = torch.randn(3, 4, vocabulary, generator=torch.Generator().manual_seed(vocabulary)) * 3
    logits[0, 1, 0] = 30.0
    logits[1, 1] = 2.5
    logits[2, 1:3, 1:][
        torch.rand(2, vocabulary - 1, generator=torch.Generator().manual_seed(2)) < 0.5
    ] = -math.inf
    return logits.to(dtype)


@pytest.mark.parametrize("temperature", TEMPERATURES, ids=["1", "0.6", "of sequences"])
def test_a_bonus_step_changes_entropy_by_them(temperature: float | Tensor) -> None:
    """A step of size eta along the gradient of sum_t c_t H_t, at eta -> 0."""
    logits, token_ids = (
        rows(40, torch.float64).requires_grad_(),
        torch.zeros(3, 4, dtype=torch.int64),
    )
    strengths = torch.linspace(-1, 2, 12, dtype=torch.float64).reshape(3, 4)
    scores = token_scores(logits, token_ids, temperature, entropy_gradient=True)
    (scores.entropies * strengths).sum().backward()
    assert logits.grad is not None
    assert scores.squared_scores is not None
    eta = 1e-6
    with torch.no_grad():
        up, down = (
            token_scores(logits + s * eta * logits.grad, token_ids, temperature).entropies
            for s in (1, -1)
        )
    expected = strengths * scores.squared_scores / scores.temperature**2
    torch.testing.assert_close((up - down) / (2 * eta), expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(
    "rule",
    [
        {},
        {"temperature": 0.7},
        {"temperature": 0.7, "softcap": 5.0, "scale": 0.5},
        {"softcap": 30.0},
    ],
    ids=str,
)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("vocabulary", [2, 700])
def test_a_head_gives_those_of_its_logits(
    vocabulary: int, bias: bool, rule: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(head_tiles.ROWS_AT_A_TIME, "cpu", 16)
    monkeypatch.setitem(head_tiles.FORWARD_BYTES, "cpu", 1)  # several tiles each way
    head = Head.random((5, 7), vocabulary)
    scores = linear_token_scores(
        head.hidden,
        head.weight,
        head.token_ids,
        head.bias if bias else None,
        **rule,
        entropy_gradient=True,
    )
    temperature = rule.pop("temperature", 1.0)
    assert scores.squared_scores is not None
    assert scores.temperature == temperature
    expected = by_autograd(logits64(head, bias, **rule), temperature)
    torch.testing.assert_close(scores.squared_scores.double(), expected, rtol=0, atol=1e-6)


def scored(rows_of_chunk: Tensor) -> TokenScores:
    return token_scores(
        rows_of_chunk,
        torch.zeros(rows_of_chunk.shape[:2], dtype=torch.int64),
        0.7,
        entropy_gradient=True,
    )


def test_kept_and_joined_scores_keep_them() -> None:
    scores = scored(rows(9).requires_grad_())
    kept = detached(scores)
    assert kept.squared_scores is not None
    assert scores.squared_scores is not None
    assert torch.equal(kept.squared_scores, scores.squared_scores)
    assert kept.temperature == 0.7
    chunks = [scored(rows(9)[:1]), scored(rows(9)[1:])]
    joined = completion_scores(chunks, scores.logprobs[:, 2:])
    assert joined.squared_scores is not None
    assert torch.equal(joined.squared_scores, scores.squared_scores[:, 2:])
    assert joined.temperature == 0.7
