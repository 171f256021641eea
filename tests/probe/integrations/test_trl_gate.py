"""The ratios and advantages that the probe is given are those of TRL's loss."""

from __future__ import annotations

import torch
from torch import Tensor

from isentrope.integrations.trl_head import old_logprobs, prompt_groups, token_mask

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


def test_a_prompt_has_one_number_however_far_it_is_padded_and_another_has_another() -> None:
    ids = torch.tensor([[0, 0, 5, 6], [0, 0, 6, 5], [0, 5, 6, 7], [0, 0, 0, 5]])
    mask = torch.tensor([[0, 0, 1, 1], [0, 0, 1, 1], [0, 1, 1, 1], [0, 0, 0, 1]])
    numbers = prompt_groups({"prompt_ids": ids, "prompt_mask": mask})
    assert len(set(numbers.tolist())) == 4
    assert all(0 <= number < 1 << 52 for number in numbers.tolist())
    less = prompt_groups(
        {"prompt_ids": ids[:2, 1:] + 9 * (1 - mask[:2, 1:]), "prompt_mask": mask[:2, 1:]}
    )
    assert less.tolist() == numbers[:2].tolist()
    many = torch.randint(0, 50_000, (4000, 20), generator=torch.Generator().manual_seed(0))
    assert (
        len(set(prompt_groups({"prompt_ids": many, "prompt_mask": torch.ones_like(many)}).tolist()))
        == 4000
    )
