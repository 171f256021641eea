"""Scores obey the papers' laws, agree with float64, and leave the logits alone."""

from __future__ import annotations

import math

import jaxtyping
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from isentrope.kernels import reference
from isentrope.scores import (
    TokenScores,
    linear_token_scores,
    token_scores,
)
from isentrope_wire.errors import InputError
from tests.probe.scores import reference64
from tests.probe.scores.exact_heads import FIELDS, NewTensors


def all_scores(logits: Tensor) -> Tensor:
    """S_i of every vocabulary entry of one distribution [vocabulary]."""
    vocabulary = logits.shape[-1]
    return token_scores(
        logits.expand(vocabulary, vocabulary), torch.arange(vocabulary)
    ).discriminator_scores


def random_case(
    shape: tuple[int, ...], vocabulary: int, scale: float = 3.0
) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(vocabulary)
    return (
        torch.randn(*shape, vocabulary, generator=generator) * scale,
        torch.randint(0, vocabulary, shape, generator=generator),
    )


def assert_close_to_float64(
    scores: TokenScores, logits: Tensor, token_ids: Tensor, temperature: float | Tensor = 1.0
) -> None:
    expected = reference64.scores64(logits, token_ids, temperature)
    for field in FIELDS:
        # log-probs near -80 have a float32 spacing of 8e-6: allow two of them.
        torch.testing.assert_close(
            getattr(scores, field).double(), expected[field], rtol=1.2e-7, atol=2e-6, equal_nan=True
        )


def test_autocast_around_the_loss_costs_no_accuracy() -> None:
    logits, token_ids = random_case((33,), 5000)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        scores = token_scores(logits, token_ids)
    assert_close_to_float64(scores, logits, token_ids)


TEMPERATURES = torch.tensor([[0.5], [1.0], [1.7]])


@pytest.mark.parametrize(
    "temperature", [TEMPERATURES, TEMPERATURES.expand(3, 4), torch.tensor(0.7)]
)
def test_a_temperature_broadcasts_over_the_tokens(temperature: Tensor) -> None:
    logits, token_ids = random_case((3, 4), 500)
    scores = token_scores(logits.requires_grad_(), token_ids, temperature)
    assert_close_to_float64(scores, logits.detach(), token_ids, temperature.unsqueeze(-1))
    (gradient,) = torch.autograd.grad(scores.logprobs.sum(), logits)
    leaf = logits.detach().double().requires_grad_()
    reference64.scores64(leaf, token_ids, temperature.unsqueeze(-1))["logprobs"].sum().backward()
    torch.testing.assert_close(gradient.double(), leaf.grad, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    "temperature",
    [
        torch.ones(3),
        torch.ones(2, 1),
        torch.ones(1, 3, 4),
        torch.tensor([[1.0], [0.0], [1.0]]),
        torch.tensor(True),
    ],
)
def test_a_temperature_that_cannot_be_meant_is_refused(temperature: Tensor) -> None:
    logits, token_ids = random_case((3, 4), 50)
    with pytest.raises(InputError, match="temperature"):
        token_scores(logits, token_ids, temperature)


@pytest.mark.parametrize("block_elements", [1, 40, 1 << 19])
def test_strided_and_deep_logits_are_scored_in_order(
    block_elements: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reference, "BLOCK_ELEMENTS", block_elements)
    logits, token_ids = random_case((3, 5, 6), 10)
    assert_close_to_float64(
        token_scores(logits[:, :, :-1], token_ids[:, :, 1:]), logits[:, :, :-1], token_ids[:, :, 1:]
    )
    turned, turned_ids = logits[0].transpose(0, 1), token_ids[0].transpose(0, 1)
    assert_close_to_float64(token_scores(turned, turned_ids), turned, turned_ids)


def test_the_logits_are_never_copied_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference, "BLOCK_ELEMENTS", 1000)
    logits, token_ids = random_case((8, 51), 100)
    with NewTensors() as made:  # type: ignore[no-untyped-call]
        token_scores(logits[:, :-1], token_ids[:, 1:])
    assert 0 < made.largest <= logits.nbytes / 5  # a tenth of its numbers, in float64


def test_only_logprobs_carry_gradient() -> None:
    logits, token_ids = random_case((4,), 7)
    scores = token_scores(logits.requires_grad_(), token_ids)
    assert [getattr(scores, field).requires_grad for field in FIELDS] == [
        True,
        False,
        False,
        False,
        False,
    ]


def test_raising_a_logit_changes_entropy_by_minus_its_score() -> None:
    logits = torch.randn(12, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    step = 1e-6
    raised = torch.stack([logits + step * row for row in torch.eye(12, dtype=torch.float64)])
    lowered = torch.stack([logits - step * row for row in torch.eye(12, dtype=torch.float64)])
    slope = (reference64.entropy(raised) - reference64.entropy(lowered)) / (2 * step)
    torch.testing.assert_close(slope, -all_scores(logits), rtol=0, atol=1e-9)


def test_a_policy_gradient_step_changes_entropy_by_minus_its_centred_score() -> None:
    logits = torch.randn(12, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    p = logits.softmax(-1)
    strength = 1e-6
    for token in range(12):
        direction = torch.nn.functional.one_hot(torch.tensor(token), 12) - p
        forward, backward = (
            reference64.entropy(logits + sign * strength * direction) for sign in (1, -1)
        )
        centred = token_scores(
            logits.unsqueeze(0), torch.tensor([token])
        ).vocab_centered_scores.item()
        assert (forward - backward).item() / (2 * strength) == pytest.approx(-centred, abs=1e-9)


@settings(max_examples=50, deadline=None)
@given(st.integers(2, 60), st.floats(0.1, 30), st.integers(0, 2**31))
def test_laws_over_the_whole_vocabulary(vocabulary: int, scale: float, seed: int) -> None:
    logits = (
        torch.randn(vocabulary, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        * scale
    )
    every, p = all_scores(logits), logits.softmax(-1)
    centred = token_scores(
        logits.expand(vocabulary, vocabulary), torch.arange(vocabulary)
    ).vocab_centered_scores
    assert every.sum().item() == pytest.approx(0, abs=1e-12)
    assert (p * centred).sum().item() == pytest.approx(0, abs=1e-12)
    assert every.min().item() >= -0.22389


@pytest.mark.parametrize(
    ("logits", "token_ids", "temperature", "words"),
    [
        (torch.zeros(2, 5, 9), torch.zeros(2, 4, dtype=torch.long), 1.0, r"logits\[:, :-1\]"),
        (torch.zeros(2, 5, 9), torch.zeros(3, 5, dtype=torch.long), 1.0, r"\[2, 5, 9\].*\[3, 5\]"),
        (torch.zeros(2, 9), torch.zeros(2), 1.0, "^token_ids .*float32"),
        (
            torch.zeros(2, 9, dtype=torch.long),
            torch.zeros(2, dtype=torch.long),
            1.0,
            "^logits .*int64",
        ),
        (torch.zeros(2, 0), torch.zeros(2, dtype=torch.long), 1.0, r"\[\.\.\., vocabulary\]"),
        (torch.zeros(2, 9), torch.zeros(2, dtype=torch.long), 0.0, "^temperature .*0.0"),
        (torch.zeros(2, 9), torch.zeros(2, dtype=torch.long), math.nan, "^temperature .*nan"),
    ],
)
def test_inputs_that_cannot_be_meant_are_named(
    logits: Tensor, token_ids: Tensor, temperature: float, words: str
) -> None:
    with pytest.raises(InputError, match=words):
        token_scores(logits, token_ids, temperature)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_entropies_carry_gradient_when_asked(temperature: float) -> None:
    logits, token_ids = random_case((4, 3), 7)
    leaf = logits.double().requires_grad_()

    def both(z: Tensor) -> tuple[Tensor, Tensor]:
        scores = token_scores(z, token_ids, temperature, entropy_gradient=True)
        return scores.logprobs, scores.entropies

    assert torch.autograd.gradcheck(both, (leaf,))
    assert torch.autograd.gradcheck(lambda z: both(z)[1], (leaf,))


def test_scores_can_be_taken_inside_a_compiled_function(monkeypatch: pytest.MonkeyPatch) -> None:
    # The compiler can't trace what checks the shapes.
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    logits, token_ids = random_case((3,), 9)

    @torch.compile(backend="eager")
    def loss(z: Tensor) -> Tensor:
        return token_scores(z * 2, token_ids).logprobs.sum() * 3

    compiled, plain = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    loss(compiled).backward()
    (token_scores(plain * 2, token_ids).logprobs.sum() * 3).backward()
    torch.testing.assert_close(compiled.grad, plain.grad)


def test_second_derivatives_are_refused_even_where_the_loss_is_linear_in_the_scores() -> None:
    logits, token_ids = random_case((3,), 9)
    leaf = logits.requires_grad_()
    with pytest.raises(InputError):
        torch.autograd.grad(token_scores(leaf, token_ids).logprobs.sum(), leaf, create_graph=True)


def test_scores_may_be_changed_in_place_as_a_loop_changes_its_own() -> None:
    logits, token_ids = random_case((3, 4), 9)
    leaf, same = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    changed = token_scores(leaf, token_ids).logprobs
    changed -= 0.5
    changed[:, 2:] = 0
    changed.exp().sum().backward()
    (token_scores(same, token_ids).logprobs[:, :2] - 0.5).exp().sum().backward()
    torch.testing.assert_close(leaf.grad, same.grad)


def test_token_ids_made_in_inference_mode_can_be_trained_on() -> None:
    with torch.inference_mode():
        token_ids = torch.randint(0, 9, (3,))
    logits = torch.randn(3, 9, requires_grad=True)
    token_scores(logits, token_ids).logprobs.sum().backward()
    hidden = torch.randn(3, 4, requires_grad=True)
    linear_token_scores(hidden, torch.randn(9, 4), token_ids).logprobs.sum().backward()
    assert logits.grad is not None
    assert hidden.grad is not None
