"""Scores from hidden states are those of the logits, which never exist; so are the gradients."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import linear

from isentrope.scores import TokenScores, head_tiles, token_scores
from isentrope.scores.linear_token_scores import linear_token_scores
from isentrope_wire.errors import InputError
from tests.probe.scores import reference64
from tests.probe.scores.exact_heads import FIELDS, Head, NewTensors, logits64, scores64

RULES = [
    {},
    {"temperature": 0.7},
    {"scale": 0.25, "temperature": 1.3},
    {"softcap": 5.0},
    {"softcap": 30.0, "scale": 0.5, "temperature": 0.7},
]


@pytest.fixture(autouse=True)
def _small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles of 16 tokens x 128 columns, so that small heads have many."""
    monkeypatch.setitem(head_tiles.ROWS_AT_A_TIME, "cpu", 16)
    monkeypatch.setitem(head_tiles.FORWARD_BYTES, "cpu", 1)


def assert_close_to(scores: TokenScores, expected: dict[str, Tensor]) -> None:
    for field in FIELDS:
        # A float32 near -16 has a spacing of 1.9e-6, of which rounding costs half.
        torch.testing.assert_close(
            getattr(scores, field).double(),
            expected[field].detach(),
            rtol=1.2e-7,
            atol=1e-6,
            equal_nan=True,
        )


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("vocabulary", [2, 100, 128, 1500])
@pytest.mark.parametrize("bias", [False, True])
def test_scores_are_those_of_the_float64_logits(
    vocabulary: int, bias: bool, rule: dict[str, Any]
) -> None:
    head = Head.random((5, 7), vocabulary)
    scores = linear_token_scores(
        head.hidden, head.weight, head.token_ids, head.bias if bias else None, **rule
    )
    assert_close_to(scores, scores64(head, bias, **rule))


def test_a_temperature_per_sequence_reaches_every_tile() -> None:
    head = Head.random((2, 300), 1500)
    temperature = torch.tensor([[0.5], [1.7]])
    trained, exact = head.trained(), head.in64()
    scores = linear_token_scores(
        trained.hidden, trained.weight, trained.token_ids, trained.bias, temperature, scale=0.5
    )
    expected = reference64.scores64(
        logits64(exact, scale=0.5), exact.token_ids, temperature.unsqueeze(-1)
    )
    assert_close_to(scores, expected)
    scores.logprobs.sum().backward()
    expected["logprobs"].sum().backward()
    for got, want in (
        (trained.hidden.grad, exact.hidden.grad),
        (trained.weight.grad, exact.weight.grad),
    ):
        assert got is not None
        assert want is not None
        torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=2e-5)


def test_float64_stays_float64() -> None:
    head = Head.random((5,), 300, dtype=torch.float64)
    scores = linear_token_scores(
        head.hidden, head.weight, head.token_ids, temperature=0.7, softcap=7.0
    )
    expected = scores64(head, False, 0.7, 7.0)
    for field in FIELDS:
        torch.testing.assert_close(getattr(scores, field), expected[field], rtol=0, atol=1e-12)


def test_bfloat16_states_score_as_bfloat16_logits_do_unless_float32_tiles_are_asked_for() -> None:
    head = Head.random((33,), 1500, dtype=torch.bfloat16)
    plain = token_scores(linear(head.hidden, head.weight, head.bias), head.token_ids)
    scores = linear_token_scores(head.hidden, head.weight, head.token_ids, head.bias)
    for field in FIELDS:
        torch.testing.assert_close(
            getattr(scores, field), getattr(plain, field), rtol=1e-6, atol=1e-6
        )
    exact = linear_token_scores(
        head.hidden, head.weight, head.token_ids, head.bias, logits_dtype=torch.float32
    )
    assert_close_to(exact, scores64(head))


def test_a_float32_head_scores_bfloat16_states_in_float32() -> None:
    head = Head.random((33,), 1500)
    scores = linear_token_scores(head.hidden.bfloat16(), head.weight, head.token_ids, head.bias)
    assert_close_to(scores, scores64(head))


def test_a_soft_cap_of_bfloat16_products_is_applied_in_float32() -> None:
    head = Head.random((33,), 1500, dtype=torch.bfloat16)
    scores = linear_token_scores(head.hidden, head.weight, head.token_ids, softcap=30.0, scale=0.5)
    products = linear(head.hidden, head.weight).double()
    expected = token_scores(30 * torch.tanh(0.5 * products / 30), head.token_ids)
    assert_close_to(scores, {field: getattr(expected, field) for field in FIELDS})


def test_autocast_computes_tiles_in_its_type_and_nothing_else() -> None:
    head = Head.random((33,), 1500).trained()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        plain = token_scores(linear(head.hidden, head.weight), head.token_ids)
        scores = linear_token_scores(head.hidden, head.weight, head.token_ids)
        exact = linear_token_scores(
            head.hidden, head.weight, head.token_ids, logits_dtype=torch.float32
        )
        inside = torch.autograd.grad(
            scores.logprobs.sum(), [head.hidden, head.weight], retain_graph=True
        )
    for field in FIELDS:
        torch.testing.assert_close(
            getattr(scores, field), getattr(plain, field), rtol=1e-6, atol=1e-6
        )
    assert_close_to(exact, scores64(head, bias=False))
    outside = torch.autograd.grad(scores.logprobs.sum(), [head.hidden, head.weight])
    bfloat16_logits = (
        linear(head.hidden.bfloat16(), head.weight.bfloat16()).double().detach().requires_grad_()
    )
    (by_logits,) = torch.autograd.grad(
        token_scores(bfloat16_logits, head.token_ids).logprobs.sum(), bfloat16_logits
    )
    expected = (by_logits @ head.weight.double(), by_logits.T @ head.hidden.double())
    for before, after, want in zip(inside, outside, expected, strict=True):
        assert torch.equal(before, after)
        torch.testing.assert_close(after.double(), want, rtol=1e-5, atol=1e-5)


def gradients_of(scores: Any, head: Head, bias: bool) -> list[Tensor]:
    generator = torch.Generator().manual_seed(3)
    upstream = [
        torch.randn(head.token_ids.shape, generator=generator, dtype=torch.float64)
        for _ in range(2)
    ]
    loss = (scores["logprobs"].double() * upstream[0]).sum() + (
        scores["entropies"].double() * upstream[1]
    ).sum()
    return list(
        torch.autograd.grad(loss, [head.hidden, head.weight] + ([head.bias] if bias else []))
    )


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("bias", [False, True])
def test_gradients_are_those_of_the_float64_logits(bias: bool, rule: dict[str, Any]) -> None:
    head, head64 = Head.random((5, 7), 700).trained(), Head.random((5, 7), 700).in64()
    scores = linear_token_scores(
        head.hidden,
        head.weight,
        head.token_ids,
        head.bias if bias else None,
        **rule,
        entropy_gradient=True,
    )
    got = gradients_of({"logprobs": scores.logprobs, "entropies": scores.entropies}, head, bias)
    for gradient, expected in zip(
        got, gradients_of(scores64(head64, bias, **rule), head64, bias), strict=True
    ):
        scale = float(expected.abs().max())
        torch.testing.assert_close(gradient.double(), expected, rtol=0, atol=2e-6 * scale)


def test_gradients_pass_finite_differences_in_float64() -> None:
    head = Head.random((2,), 5, width=2, dtype=torch.float64).trained()

    def both(hidden: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        scores = linear_token_scores(
            hidden, weight, head.token_ids, bias, 0.7, 3.0, 0.5, entropy_gradient=True
        )
        return scores.logprobs, scores.entropies

    assert torch.autograd.gradcheck(both, (head.hidden, head.weight, head.bias))


def test_narrow_gradients_are_summed_wide_and_rounded_once() -> None:
    head = Head.random((40,), 2000, dtype=torch.bfloat16)
    trained, head64 = head.trained(), head.in64()
    scores = linear_token_scores(
        trained.hidden,
        trained.weight,
        head.token_ids,
        trained.bias,
        logits_dtype=torch.float32,
        entropy_gradient=True,
    )
    got = gradients_of({"logprobs": scores.logprobs, "entropies": scores.entropies}, trained, True)
    for gradient, expected in zip(got, gradients_of(scores64(head64), head64, True), strict=True):
        assert gradient.dtype == torch.bfloat16
        torch.testing.assert_close(
            gradient.double(), expected, rtol=2**-8, atol=1e-6 * float(expected.abs().max())
        )


def test_entropies_carry_gradient_only_when_asked() -> None:
    head = Head.random((5,), 100).trained()
    scores = linear_token_scores(head.hidden, head.weight, head.token_ids)
    assert scores.logprobs.requires_grad
    assert not any(getattr(scores, field).requires_grad for field in FIELDS[1:])
    asked = linear_token_scores(head.hidden, head.weight, head.token_ids, entropy_gradient=True)
    assert asked.entropies.requires_grad
    assert not any(getattr(asked, field).requires_grad for field in FIELDS[2:])


def test_each_part_gets_its_gradient_without_the_others() -> None:
    head = Head.random((20,), 300)
    whole = head.trained()
    scores = linear_token_scores(whole.hidden, whole.weight, whole.token_ids, whole.bias)
    expected = torch.autograd.grad(scores.logprobs.sum(), [whole.hidden, whole.weight, whole.bias])
    for index in range(3):
        parts = [head.hidden.clone(), head.weight.clone(), head.bias.clone()]
        parts[index].requires_grad_()
        alone = linear_token_scores(parts[0], parts[1], head.token_ids, parts[2])
        alone.logprobs.sum().backward()
        assert torch.equal(parts[index].grad, expected[index])  # type: ignore[arg-type]


def test_neither_the_logits_nor_a_gradient_nobody_needs_is_ever_made() -> None:
    head = Head.random((64,), 4000, width=64)
    hidden = head.hidden.clone().requires_grad_()
    with NewTensors() as made:  # type: ignore[no-untyped-call]
        linear_token_scores(hidden, head.weight, head.token_ids).logprobs.sum().backward()
    assert made.largest <= 4 * 64 * 64  # hidden's own gradient; a tile is 4 * 16 * 128
    assert hidden.grad is not None


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_scores_without_gradient_are_the_same(mode: Any) -> None:
    head = Head.random((20,), 300).trained()
    with mode():
        scores = linear_token_scores(head.hidden, head.weight, head.token_ids, head.bias)
        of_results = linear_token_scores(head.hidden * 1, head.weight, head.token_ids, head.bias)
    expected = linear_token_scores(head.hidden, head.weight, head.token_ids, head.bias)
    for field in FIELDS:
        assert torch.equal(getattr(scores, field), getattr(expected, field))
        assert torch.equal(getattr(of_results, field), getattr(expected, field))
    assert not scores.logprobs.requires_grad


def test_no_rows_give_no_scores_and_zero_gradient() -> None:
    head = Head.random((0,), 300).trained()
    scores = linear_token_scores(head.hidden, head.weight, head.token_ids, head.bias)
    assert all(getattr(scores, field).shape == (0,) for field in FIELDS)
    scores.logprobs.sum().backward()
    assert head.weight.grad is not None
    assert not head.weight.grad.any()


def test_shifted_views_and_single_tokens_are_scored_in_place() -> None:
    head = Head.random((3, 9), 300)
    shifted = linear_token_scores(head.hidden[:, :-1], head.weight, head.token_ids[:, 1:])
    expected = scores64(
        Head(head.hidden[:, :-1], head.weight, head.bias, head.token_ids[:, 1:]), bias=False
    )
    assert_close_to(shifted, expected)
    one = linear_token_scores(head.hidden[1, 2], head.weight, head.token_ids[1, 3])
    torch.testing.assert_close(one.logprobs, shifted.logprobs[1, 2], rtol=0, atol=1e-6)


def test_masked_vocabulary_contributes_nothing() -> None:
    head = Head.random((20,), 700)
    bias = head.bias.clone()
    bias[torch.arange(700) % 3 == 0] = -torch.inf
    bias[:256] = -torch.inf  # whole tiles
    masked = Head(head.hidden, head.weight, bias, head.token_ids).trained()
    scores = linear_token_scores(
        masked.hidden, masked.weight, masked.token_ids, masked.bias, entropy_gradient=True
    )
    assert_close_to(scores, scores64(masked))
    scores.entropies.sum().backward()
    assert masked.weight.grad is not None
    assert masked.hidden.grad is not None
    assert masked.hidden.grad.isfinite().all()
    assert not masked.weight.grad[:256].any()


def test_a_state_that_is_nan_spoils_its_own_row_alone() -> None:
    head = Head.random((20,), 300)
    hidden = head.hidden.clone()
    hidden[7] = torch.nan
    scores = linear_token_scores(hidden, head.weight, head.token_ids)
    expected = scores64(head, bias=False)
    for field in FIELDS:
        expected[field][7] = torch.nan
    assert_close_to(scores, expected)


def test_a_second_derivative_is_refused() -> None:
    head = Head.random((5,), 100).trained()
    logprobs = linear_token_scores(head.hidden, head.weight, head.token_ids).logprobs
    with pytest.raises(InputError):
        torch.autograd.grad(logprobs.sum(), head.hidden, create_graph=True)


def wrong_inputs() -> Iterator[Any]:
    head = Head.random((4, 5), 30)
    good = {
        "hidden": head.hidden,
        "weight": head.weight,
        "token_ids": head.token_ids,
        "bias": head.bias,
    }
    for change, message in (
        ({"hidden": [1.0]}, r"^hidden .*list"),
        ({"weight": head.weight.T}, r"hidden \[4, 5, 24\] and weight \[24, 30\]"),
        ({"weight": head.weight[None]}, r"^weight .*\[1, 30, 24\]"),
        ({"weight": head.weight.to(torch.int8)}, r"^weight .*torch.int8"),
        ({"token_ids": head.token_ids[:, 1:]}, r"hidden\[:, :-1\].*token_ids\[:, 1:\]"),
        ({"token_ids": head.token_ids.float()}, r"^token_ids .*torch.float32"),
        ({"bias": head.bias[:-1]}, r"^bias .*\[30\].*\[29\]"),
        ({"token_ids": head.token_ids.to("meta")}, r"^hidden .*cpu.*token_ids .*meta"),
        ({"temperature": 0.0}, r"^temperature .*0.0"),
        ({"temperature": True}, r"^temperature .*True"),
        ({"softcap": -30.0}, r"^softcap .*-30.0"),
        ({"scale": float("nan")}, r"^scale .*nan"),
        ({"scale": "1"}, r"^scale .*'1'"),
        ({"logits_dtype": torch.int32}, r"^logits_dtype .*torch.int32"),
    ):
        yield pytest.param(good | change, message, id=message[:30])


@pytest.mark.parametrize(("arguments", "message"), list(wrong_inputs()))
def test_inputs_that_cannot_be_meant_are_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        linear_token_scores(**arguments)
