"""Scores with a look at what they are made from: the first calls of a run, when a person is watching, are checked."""

from __future__ import annotations

import torch
from torch import Tensor

from isentrope.gate_inputs import check_first_values, check_token_ids
from isentrope.scores import TokenScores, token_scores
from isentrope.scores.linear_heads import AdaptedWeight
from isentrope.scores.linear_token_scores import check_head_inputs, linear_token_scores
from isentrope.scores.token_scores import check_token_inputs


def checked_token_scores(
    logits: Tensor, token_ids: Tensor, temperature: float, *, entropy_gradient: bool, first: bool
) -> TokenScores:
    """`token_scores`; on a `first` call the values are looked at, which waits for the device."""
    check_token_inputs(logits, token_ids, temperature)
    check_token_ids(token_ids, logits.shape[-1], wait_for_device=first)
    scores = token_scores(logits, token_ids, temperature, entropy_gradient=entropy_gradient)
    if first:
        check_first_values(scores)
    return scores


def checked_linear_token_scores(
    hidden: Tensor,
    weight: Tensor | AdaptedWeight,
    token_ids: Tensor,
    bias: Tensor | None,
    temperature: float,
    softcap: float | None,
    scale: float,
    *,
    entropy_gradient: bool,
    logits_dtype: torch.dtype | None,
    first: bool,
) -> TokenScores:
    """`linear_token_scores`; on a `first` call the values are looked at, which waits for the device."""
    base = weight.base if isinstance(weight, AdaptedWeight) else weight
    check_head_inputs(hidden, base, token_ids, bias)
    check_token_ids(token_ids, base.shape[0], wait_for_device=first)
    scores = linear_token_scores(
        hidden,
        weight,
        token_ids,
        bias,
        temperature,
        softcap,
        scale,
        entropy_gradient=entropy_gradient,
        logits_dtype=logits_dtype,
    )
    if first:
        check_first_values(scores)
    return scores
