"""The ratios and advantages the probe is told are those of TRL's loss."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from isentrope.integrations.trl_gate import RatioClip, sampler_logprobs, token_mask

LOGPROBS = torch.tensor([[-1.0, -2.0, -3.0], [-0.5, -1.5, -2.5]])
MASK = torch.tensor([[1, 1, 0], [1, 1, 1]])


def ratios(inputs: dict[str, Tensor], level: str = "token") -> Tensor:
    old = sampler_logprobs({"completion_mask": MASK, **inputs}, LOGPROBS, level)
    assert old is not None
    return (LOGPROBS - old).exp()


def test_without_old_log_probs_there_is_no_ratio() -> None:
    assert sampler_logprobs({"completion_mask": MASK}, LOGPROBS, "token") is None
    assert sampler_logprobs({"completion_mask": MASK}, LOGPROBS, "sequence") is None


def test_old_log_probs_give_the_ratio_of_each_token() -> None:
    moved = torch.tensor([[0.1, -0.2, 9.0], [0.0, 0.3, 0.6]])
    assert torch.allclose(ratios({"old_per_token_logps": LOGPROBS - moved}), moved.exp())


def test_a_sequence_level_ratio_is_the_mean_over_the_tokens_that_count() -> None:
    moved = torch.tensor([[0.1, -0.2, 9.0], [0.0, 0.3, 0.6]])
    expected = torch.tensor([[-0.05], [0.3]]).expand(2, 3).exp()
    assert torch.allclose(ratios({"old_per_token_logps": LOGPROBS - moved}, "sequence"), expected)


def test_the_ratio_of_rloo_is_that_of_the_whole_sequence() -> None:
    expected = torch.tensor([[0.4], [-0.2]]).expand(2, 3).exp()
    assert torch.allclose(ratios({"old_logps": torch.tensor([-3.4, -4.3])}), expected)


def test_tool_tokens_do_not_count() -> None:
    tool_mask = torch.tensor([[1, 0, 1], [1, 1, 0]])
    assert token_mask({"completion_mask": MASK, "tool_mask": tool_mask}).tolist() == [[1, 0, 0], [1, 1, 0]]


# r from far below to far above the clip's range, epsilon 0.2 and 0.3
MOVED = torch.tensor([[0.5, 0.9, 1.0, 1.25, 1.4, 3.0]])


@pytest.mark.parametrize(
    ("advantage", "delta", "pushed"),
    [
        (1.0, None, [1, 1, 1, 1, 0, 0]),
        (-1.0, None, [0, 1, 1, 1, 1, 1]),
        (-1.0, 2.0, [0, 1, 1, 1, 1, 0]),
        (0.0, None, [0, 0, 0, 0, 0, 0]),
    ],
)
def test_a_token_beyond_the_clip_has_no_advantage_left(
    advantage: float, delta: float | None, pushed: list[int]
) -> None:
    clip = RatioClip(low=0.2, high=0.3, either=delta)
    expected = (advantage * torch.tensor(pushed)).tolist()
    assert clip.effective_advantages(torch.tensor([advantage]), MOVED).tolist() == [expected]
    assert clip.effective_advantages(torch.full_like(MOVED, advantage), MOVED).tolist() == [expected]


@pytest.mark.parametrize("advantage", [1.0, -1.0])
@pytest.mark.parametrize("delta", [None, 2.0])
def test_silenced_tokens_are_those_without_gradient_in_trls_surrogate(advantage: float, delta: float | None) -> None:
    logprobs = MOVED.log().requires_grad_()
    ratio = logprobs.exp()
    bounded = ratio if delta is None else ratio.clamp(max=delta)
    torch.min(bounded * advantage, ratio.clamp(0.8, 1.3) * advantage).sum().backward()
    effective = RatioClip(0.2, 0.3, delta).effective_advantages(torch.tensor([advantage]), MOVED)
    assert logprobs.grad is not None
    assert ((effective != 0) == (logprobs.grad != 0)).all()


def test_only_losses_with_a_clip_silence_tokens() -> None:
    grpo = SimpleNamespace(loss_type="dapo", epsilon_low=0.1, epsilon_high=0.3, args=SimpleNamespace(delta=None))
    assert RatioClip.of(grpo) == RatioClip(0.1, 0.3, None)
    rloo = SimpleNamespace(epsilon_low=0.2, epsilon_high=0.2, args=SimpleNamespace())
    assert RatioClip.of(rloo) == RatioClip(0.2, 0.2, None)
    assert RatioClip.of(SimpleNamespace(loss_type="cispo")) is None
