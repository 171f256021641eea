"""How much of the covariance of log p and advantage a few tokens carry.

    c_t = (log p_t - mean(log p)) (A_t - mean(A))        arXiv:2505.22617, eq. 10; its Table 1 is the mean of the top shares

The means are those of the whole step. Tokens of several ranks are not ranked here: `covariance_sketch.py`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from isentrope.statistics.step_tokens import StepTokens

TOP_SHARES = {
    "covariance/top_0_02": 0.0002,
    "covariance/top_0_2": 0.002,
    "covariance/top_2": 0.02,
    "covariance/top_20": 0.2,
    "covariance/top_50": 0.5,
    "covariance/top_100": 1.0,
}
"""Metric names, the share in per cent, and the share of the step's tokens."""


def top_means(tokens: StepTokens) -> Tensor:
    """Mean of the largest c_t, by TOP_SHARES; nats times the advantage's unit, float64, on the device.

    A share is rounded to whole tokens, but at least one.
    """
    valid = tokens.valid
    count = valid.sum().double()
    centred = [
        values - torch.where(valid, values, 0.0).sum() / count.clamp(min=1)
        for values in (tokens.logprobs, tokens.advantages)
    ]
    products = torch.where(valid, centred[0] * centred[1], -torch.inf).sort(descending=True).values
    sums = torch.where(products.isfinite(), products, 0.0).cumsum(0)
    # Fills on the device, and gathers: numbers copied there, or an index read from it, would wait for it.
    wanted = torch.stack([(count * share + 0.5).floor().clamp(min=1) for share in TOP_SHARES.values()])
    return sums.gather(0, wanted.long() - 1) / wanted
