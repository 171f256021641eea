"""What a loop knows of its sequences beside their tokens: rewards and their parts, prompts, expected answers.

`gate` keeps a bounded part of it, one row of numbers per sequence on the tokens' device, so that it is chosen, gathered and
merged over ranks as the tokens are (`contributions.py`): the last tokens of a prompt, the first bytes of an answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import pad

from isentrope.statistics.tokens import TokenBatch

if TYPE_CHECKING:
    from jaxtyping import Int, Int32, UInt8

REWARD, PROMPT_IDS, ANSWER = "reward", "prompt_ids", "answer"
"""Names under which `gate` takes them; parts of the reward are `reward/NAME`."""

REWARD_PARTS = 4
PROMPT_TOKENS = 96
ANSWER_BYTES = 48


def reward_parts(batches: Sequence[TokenBatch]) -> tuple[str, ...]:
    """Names of the parts of the reward that every `gate` call was given, at most REWARD_PARTS; the same on every rank."""
    names = [{name for name in batch.completions if name.startswith(f"{REWARD}/")} for batch in batches]
    return tuple(sorted(set.intersection(*names)))[:REWARD_PARTS] if names else ()


def prompt_ends(ids: Int[Tensor, "batch tokens"]) -> Int32[Tensor, "batch numbers"]:
    """How many tokens each prompt has, and its last PROMPT_TOKENS ids counted from 1; 0 before a shorter one.

    Args:
        ids: Negative on padding, wherever that is.
    """
    known = ids >= 0
    padding_first = known.int().argsort(dim=1, stable=True)
    ends = (ids + 1).masked_fill(~known, 0).gather(1, padding_first)[:, -PROMPT_TOKENS:]
    return torch.cat([known.sum(1, keepdim=True), pad(ends, (PROMPT_TOKENS - ends.shape[1], 0))], dim=1).int()


def text_bytes(texts: Sequence[object], device: torch.device) -> UInt8[Tensor, "batch bytes"]:
    """The first ANSWER_BYTES of each text; 0 behind a shorter one, and all 0 in the place of None."""
    rows = [b"" if text is None else str(text)[:ANSWER_BYTES].encode(errors="replace")[:ANSWER_BYTES] for text in texts]
    packed = bytearray(b"".join(row.ljust(ANSWER_BYTES, b"\0") for row in rows))
    return torch.frombuffer(packed, dtype=torch.uint8).view(len(rows), ANSWER_BYTES).to(device, non_blocking=True)
