"""Token scores from hidden states and the head's weight: the logits never exist, only one tile of
them at a time."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from isentrope.kernels.dispatch import backend_for
from isentrope.kernels.moments import Moments, RowScores, Upstream, concatenated, finish, merge
from isentrope.scores import token_scores
from isentrope.scores.head_tiles import (
    HeadOperands,
    HeadTiles,
    LogitRule,
    disable_autocast,
    head_gradients,
    product_dtype,
)
from isentrope.scores.linear_heads import AdaptedWeight, adapter_operands, whole
from isentrope_wire.errors import InputError

TILES_PER_MERGE = 8
"""Moments kept apart before they are merged: 6 or 7 float64 a token each."""


def linear_token_scores(
    hidden: Tensor,
    weight: Tensor | AdaptedWeight,
    token_ids: Tensor,
    bias: Tensor | None = None,
    temperature: float | Tensor = 1.0,
    softcap: float | None = None,
    scale: float = 1.0,
    *,
    entropy_gradient: bool = False,
    logits_dtype: torch.dtype | None = None,
) -> token_scores.TokenScores:
    """Score sampled tokens of a language-model head without ever holding its logits.

        y = hidden W^T + bias    z = c tanh(a y / c) with a soft cap c, else a y  p = softmax(z / T)

    then as `token_scores`. Forward folds each tile of logits into six or seven numbers a token;
    backward computes the tiles again. Gradient goes to hidden states, weight and bias, each only
    where it is needed, and is summed over the tiles in float32 (float64 for float64 inputs).
    Differentiable once.

    Args:
        hidden: [..., width], floating point; row t is the state that token_ids[t] was predicted
            from.
        weight: W [vocabulary, width], or the result of `linear_head_parts` for a head with
            adapters. A sharded one (DTensor) is gathered, which every rank of its mesh must take
            part in.
        token_ids: [...], integer, each in [0, vocabulary). Not checked here: that would wait for
            the device. Replace ignored ids (-100) by any real id and exclude these positions by the
            mask of the loss.
        bias: [vocabulary].
        temperature: As for `token_scores`.
        softcap: c, positive; a model's `final_logit_softcapping`.
        scale: a, positive; a model's `logit_scale`, or 1 / `logits_scaling`.
        entropy_gradient: As for `token_scores`.
        logits_dtype: The type the tiles are computed in. By default the type `nn.functional.linear`
            would compute in, autocast respected. bfloat16 tiles put up to 7e-2 nats into an
            entropy; torch.float32 does not.

    Returns:
        Scores of the token ids' shape.

    Raises:
        InputError: Shapes, types or numbers that do not fit.
    """
    if isinstance(weight, AdaptedWeight):
        base, adapters = (weight.base, weight.adapters)
    else:
        base, adapters = (weight, ())
    check_head_inputs(hidden, base, token_ids, bias)
    rule = _checked_rule(temperature, token_ids, softcap, scale)
    if logits_dtype is not None and not logits_dtype.is_floating_point:
        raise InputError(f"logits_dtype must be a floating-point type, got {logits_dtype}.")
    hidden, base = whole(hidden), whole(base)
    adapter_inputs, adapter_up = adapter_operands(hidden, adapters)
    results = _LinearTokenScoresFunction.apply(  # type: ignore[no-untyped-call]
        hidden.reshape(-1, hidden.shape[-1]),
        base,
        None if bias is None else whole(bias),
        None if adapter_inputs is None else adapter_inputs.reshape(-1, adapter_inputs.shape[-1]),
        adapter_up,
        token_ids,
        rule,
        logits_dtype or product_dtype(hidden, base),
        token_scores.wants_entropy_gradient(entropy_gradient),
    )
    return token_scores.scores_of(results, token_ids, temperature)


def check_head_inputs(
    hidden: Tensor, weight: Tensor, token_ids: Tensor, bias: Tensor | None
) -> None:
    """Everything about the tensors that can be checked without looking at values."""
    tensors = {"hidden": hidden, "weight": weight, "token_ids": token_ids} | (
        {} if bias is None else {"bias": bias}
    )
    token_scores.check_tensors(tensors, "A quantised head has to be dequantised first.")
    if weight.dim() != 2 or weight.shape[0] == 0:
        raise InputError(f"weight must have shape [vocabulary, width], got {list(weight.shape)}.")
    if hidden.dim() == 0 or hidden.shape[-1] != weight.shape[1]:
        raise InputError(
            "hidden [..., width] must fit weight [vocabulary, width]: got hidden"
            f" {list(hidden.shape)} and weight {list(weight.shape)}. Pass the states the head"
            " itself is given, and its weight as nn.Linear keeps it."
        )
    if hidden.shape[:-1] != token_ids.shape:
        raise InputError(
            f"hidden [..., width] needs one row per token: got hidden {list(hidden.shape)} and"
            f" token_ids {list(token_ids.shape)}. Row t must be the state token t was predicted"
            " from: hidden[:, :-1] goes with token_ids[:, 1:]."
        )
    if bias is not None and bias.shape != weight.shape[:1]:
        raise InputError(
            f"bias must have shape [vocabulary] = [{weight.shape[0]}], got {list(bias.shape)}."
        )


def _checked_rule(
    temperature: float | Tensor, token_ids: Tensor, softcap: float | None, scale: float
) -> LogitRule:
    token_scores.check_temperature(temperature, token_ids)
    numbers = {"scale": scale} | ({} if softcap is None else {"softcap": softcap})
    for name, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InputError(f"{name} must be a number, got {value!r}.")
        if not 0 < value < float("inf"):
            raise InputError(f"{name} must be positive and finite, got {value}.")
    return LogitRule(
        token_scores.temperature_of_rows(temperature, token_ids),
        float(scale),
        None if softcap is None else float(softcap),
    )


class _LinearTokenScoresFunction(torch.autograd.Function):
    @staticmethod
    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        adapter_inputs: Tensor | None,
        adapter_up: Tensor | None,
        token_ids: Tensor,
        rule: LogitRule,
        logits_dtype: torch.dtype,
        entropy_gradient: bool,
    ) -> tuple[Tensor, ...]:
        operands = HeadOperands(hidden, weight, bias, adapter_inputs, adapter_up)
        flat_ids = token_scores.savable_ids(token_ids).reshape(-1)
        with disable_autocast(hidden.device.type):
            tiles = HeadTiles(operands, rule, logits_dtype, widen=False)
            rows = _score_tiles(tiles, flat_ids, squared=entropy_gradient)
        scores = token_scores.build_token_scores(
            rows, token_ids.shape, token_scores.scores_dtype(logits_dtype)
        )
        ctx.save_for_backward(
            hidden,
            weight,
            bias,
            adapter_inputs,
            adapter_up,
            flat_ids,
            rows.log_normalizer,
            rows.entropies,
        )
        ctx.rule, ctx.logits_dtype = rule, logits_dtype
        return token_scores.marked_outputs(ctx, scores, entropy_gradient)

    @staticmethod
    @token_scores.differentiable_once
    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def backward(
        ctx: Any, logprob_gradient: Tensor | None, entropy_gradient: Tensor | None, *_: None
    ) -> tuple[Tensor | None, ...]:
        if logprob_gradient is None and entropy_gradient is None:
            return (None,) * 9
        *operands, token_ids, log_normalizer, entropies = ctx.saved_tensors
        slope = ctx.rule.tile_slope
        upstream = Upstream(
            token_ids,
            log_normalizer,
            entropies,
            None if logprob_gradient is None else logprob_gradient.reshape(-1) * slope,
            None if entropy_gradient is None else entropy_gradient.reshape(-1) * slope,
        )
        with disable_autocast(token_ids.device.type):
            tiles = HeadTiles(
                HeadOperands(*operands),
                ctx.rule,
                ctx.logits_dtype,
                widen=token_ids.device.type == "cpu",
            )
            gradients = head_gradients(tiles, upstream, ctx.needs_input_grad[:5])
        return (*gradients, None, None, None, None)


def _score_tiles(tiles: HeadTiles, token_ids: Tensor, *, squared: bool) -> RowScores:
    """Fold every tile into six numbers a token, seven where `squared`."""
    rows = list(tiles.rows())
    moments: list[list[Moments]] = [[] for _ in rows]
    for columns in tiles.columns():
        weight = tiles.weight(columns)
        for index, block in enumerate(rows):
            tile = tiles.tile(block, columns, weight)
            temperature = tiles.rule.tile_temperature(block)
            backend = backend_for(tile)
            part = backend.row_moments(
                tile, token_ids[block], temperature, columns.start, squared=squared
            )
            moments[index].append(part)
            if len(moments[index]) == TILES_PER_MERGE:
                moments[index] = [merge(moments[index])]
    merged = [merge(parts) for parts in moments]
    if not merged:
        return finish(Moments(*token_ids.new_empty(7 if squared else 6, 0, dtype=torch.float64)))
    return finish(concatenated(merged))
