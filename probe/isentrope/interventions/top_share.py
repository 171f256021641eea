"""The value above which a share of the tokens lies, found without waiting for the device."""

from __future__ import annotations

import torch
from torch import Tensor


def top_share_cutoff(
    values: Tensor, mask: Tensor, fraction: float, *, among: Tensor | None = None, at_most: bool = False
) -> Tensor:
    """The least value that belongs to the top share: `values >= cutoff` holds on so many tokens, ties apart.

    Args:
        values: to rank by, any shape; those that are not finite count as the least.
        mask: bool, the tokens whose share is meant.
        fraction: of the tokens in `mask`, rounded to the nearest whole number of tokens.
        among: bool, the tokens that are ranked, where they are fewer than those counted. When they are fewer than the
            share too, all of them belong to it: the cutoff is -inf.
        at_most: round down instead.
    Returns: float64 scalar; +inf when the share is less than a token.
    """
    if not values.numel():
        return torch.full((), torch.inf, dtype=torch.float64, device=values.device)
    values = values.double()
    ranked = mask & values.isfinite()
    if among is not None:
        ranked &= among
    # 0.29 of 100 tokens is 28.999999999999996.
    wanted = (mask.sum().double() * fraction + (1e-9 if at_most else 0.5)).floor()
    ordered = torch.where(ranked, values, -torch.inf).flatten().sort(descending=True).values
    # Gathered, for indexing with a number on the device waits for it.
    last = ordered.gather(0, (wanted.long() - 1).clamp(0, values.numel() - 1).reshape(1))
    return torch.where(wanted > 0, last, torch.inf).squeeze(0)
