"""How much of the covariance of log p and advantage a few tokens carry.

    c_t = (log p_t - mean(log p)) (A_t - mean(A))        arXiv:2505.22617, eq. 10; its Table 1 is the mean of the top shares

The means are those of the whole step. Tokens of several ranks are not ranked here: `covariance_sketch.py`.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from isentrope.statistics.host_copy import constant
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
    """Minus the mean of the largest c_t, by TOP_SHARES; nats times the advantage's unit, float64, on the device.

    A share is rounded to whole tokens, but at least one. Without a token what it says is of no use.
    """
    rising = _sorted(tokens.behind_all - tokens.covariances)
    wanted = (tokens.count * _shares(rising.device) + 0.5).long().clamp(min=1)
    # Gathered: an index read from the device would wait for it.
    return rising.cumsum(0).gather(0, wanted - 1) / wanted


def _sorted(values: Tensor) -> Tensor:
    """Rising. On the CPU by keys of whole numbers, which torch sorts five times as fast as floating point."""
    if values.device.type != "cpu":
        return values.sort().values
    bits = values.view(torch.int64)
    # The order of the bits is that of the numbers; of negative ones, whose highest bit is the sign, it is turned round.
    keys = bits ^ ((bits >> 63) & torch.iinfo(torch.int64).max)
    return values.gather(0, keys.sort().indices)


@cache
def _shares(device: torch.device) -> Tensor:
    return constant(tuple(TOP_SHARES.values()), device)
