"""Ratio clip takes the gradient from exactly the tokens that PPO's asymmetric clip takes it from."""

from __future__ import annotations

import torch

from isentrope_wire.control import Control
from tests.probe.methods.tokens import kept, many, selected, tokens


def test_the_tokens_worked_by_hand_are_left_out() -> None:
    of = tokens([1.0, 1.0, 1.0, -1.0, -1.0, -1.0, 0.0], ratios=[1.25, 1.3, 0.5, 0.9, 0.7, 1.5, 9.0])
    assert kept(selected(Control(method="ratio_clip"), of)) == [0, 2, 3, 5, 6]
    narrow = Control(method="ratio_clip", parameters={"epsilon_low": 0.05, "epsilon_high": 0.2})
    assert kept(selected(narrow, of)) == [2, 5, 6]
    assert kept(selected(Control(method="ratio_clip", scope="positive"), of)) == [0, 2, 3, 4, 5, 6]


def test_it_silences_the_tokens_the_clipped_surrogate_silences() -> None:
    of = many(400)
    assert of.importance_ratios is not None
    ratios = of.importance_ratios.clone().requires_grad_()
    surrogate = torch.minimum(ratios * of.advantages, ratios.clamp(1 - 0.1, 1 + 0.25) * of.advantages)
    (gradient,) = torch.autograd.grad(surrogate.sum(), ratios)
    control = Control(method="ratio_clip", parameters={"epsilon_low": 0.1, "epsilon_high": 0.25})
    assert torch.equal(selected(control, of).factors, gradient != 0)


def test_without_sampler_log_probs_every_token_is_kept() -> None:
    assert kept(selected(Control(method="ratio_clip"), tokens([1.0, -1.0]))) == [0, 1]
