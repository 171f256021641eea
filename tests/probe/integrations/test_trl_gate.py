"""The ratios and advantages that the probe is given are those of TRL's loss."""

from __future__ import annotations

import torch
from torch import Tensor

from isentrope.integrations.trl_head import old_logprobs, token_mask

LOGPROBS = torch.tensor([[-1.0, -2.0, -3.0], [-0.5, -1.5, -2.5]])
MASK = torch.tensor([[1, 1, 0], [1, 1, 1]])


def ratios(inputs: dict[str, Tensor], level: str = "token") -> Tensor:
    old = old_logprobs({"completion_mask": MASK, **inputs}, LOGPROBS, level)
    assert old is not None
    return (LOGPROBS - old).exp()


def test_without_old_log_probs_there_is_no_ratio() -> None:
    assert old_logprobs({"completion_mask": MASK}, LOGPROBS, "token") is None
    assert old_logprobs({"completion_mask": MASK}, LOGPROBS, "sequence") is None


def test_old_log_probs_give_the_ratio_of_each_token_or_its_mean_over_those_that_count() -> None:
    moved = torch.tensor([[0.1, -0.2, 9.0], [0.0, 0.3, 0.6]])
    assert torch.allclose(ratios({"old_per_token_logps": LOGPROBS - moved}), moved.exp())
    expected = torch.tensor([[-0.05], [0.3]]).expand(2, 3).exp()
    assert torch.allclose(ratios({"old_per_token_logps": LOGPROBS - moved}, "sequence"), expected)


def test_the_ratio_of_rloo_is_that_of_the_whole_sequence() -> None:
    expected = torch.tensor([[0.4], [-0.2]]).expand(2, 3).exp()
    assert torch.allclose(ratios({"old_logps": torch.tensor([-3.4, -4.3])}), expected)


def test_tool_tokens_do_not_count() -> None:
    tool_mask = torch.tensor([[1, 0, 1], [1, 1, 0]])
    assert token_mask({"completion_mask": MASK, "tool_mask": tool_mask}).tolist() == [
        [1, 0, 0],
        [1, 1, 0],
    ]
