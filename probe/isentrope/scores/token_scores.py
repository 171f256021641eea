"""Log-prob, entropy and entropy-change scores of sampled tokens, from the logits they were drawn
from.

The scores are differentiable once: a second derivative is refused.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from isentrope.kernels.dispatch import backend_for, row_scores
from isentrope.kernels.moments import Moments, RowScores, Temperature, Upstream, finish
from isentrope_wire.errors import InputError

if TYPE_CHECKING:
    from jaxtyping import Float, Int

Backward = Callable[..., tuple[Tensor | None, ...]]


def differentiable_once(backward: Backward) -> Backward:
    """A backward that raises InputError with `create_graph=True`. torch's own `once_differentiable`
    lets a second derivative pass as zero where the upstream gradient is a constant, as it is for
    any loss linear in the scores: a gradient penalty would silently do nothing."""

    @functools.wraps(backward)
    def checked(ctx: Any, *upstream: Tensor | None) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise InputError(
                "Token scores are differentiable once, and backward was called with"
                " create_graph=True. For second derivatives, compute log-probs with torch's own"
                " functions."
            )
        return backward(ctx, *upstream)

    return checked


@dataclass(frozen=True, slots=True)
class TokenScores:
    """Scores of sampled tokens; every field has the token ids' shape. Scores are in nats.

    float32, or float64 when the logits were float64.
    """

    logprobs: Float[Tensor, "*tokens"]
    """log p of the sampled tokens; differentiable with respect to the logits."""
    entropies: Float[Tensor, "*tokens"]
    """H of the distributions the tokens were drawn from; detached unless its gradient was asked
    for."""
    discriminator_scores: Float[Tensor, "*tokens"]
    """S* = p (H + log p) (detached)."""
    expected_scores: Float[Tensor, "*tokens"]
    """E_p[S] (detached)."""
    vocab_centered_scores: Float[Tensor, "*tokens"]
    """S_c = S* - E_p[S] (detached), subtracted in float64."""
    token_ids: Int[Tensor, ...] | None = None
    """Ids of the scored tokens, as they were given; None where only merged moments of them are
    known."""
    squared_scores: Float[Tensor, "*tokens"] | None = None
    """sum_i S_i^2 in nats^2 (detached): what an entropy bonus adds; None unless `entropy_gradient`
    was asked for."""
    temperature: float | Tensor = 1.0
    """T that the scores were computed with: a number, or a detached tensor that broadcasts to the
    tokens' shape."""
    gate_entropies: Float[Tensor, ...] | None = None
    """H with gradient, for what the gate adds to it; None: nothing is to be added. Not used where a
    loop that chose among the tokens has left it behind, of another shape."""


SCORE_FIELDS = (
    "logprobs",
    "entropies",
    "discriminator_scores",
    "expected_scores",
    "vocab_centered_scores",
)
"""The fields that every scoring computes."""
_with_entropy_gradient = ContextVar("with_entropy_gradient", default=False)


@contextmanager
def score_with_entropy_gradient() -> Iterator[None]:
    """Inside, all scores are made with `entropy_gradient`, asked for or not."""
    token = _with_entropy_gradient.set(True)
    try:
        yield
    finally:
        _with_entropy_gradient.reset(token)


def scores_for_gate(score: Callable[[], TokenScores], asked: bool) -> TokenScores:
    """What `score` gives, and the entropies with their gradient for the gate. The loop's own carry
    it where it asked for it: apart, so that what its loss makes of them is read alone."""
    if not torch.is_grad_enabled():
        return score()
    with score_with_entropy_gradient():
        scores = score()
    if wants_entropy_gradient(asked):
        own = scores.entropies.clone()
    else:
        own = scores.entropies.detach().clone()
    return replace(scores, entropies=own, gate_entropies=scores.entropies)


def wants_entropy_gradient(asked: bool) -> bool:
    """Whether scores are to be made with `entropy_gradient`."""
    return asked or _with_entropy_gradient.get()


def token_scores(
    logits: Tensor,
    token_ids: Tensor,
    temperature: float | Tensor = 1.0,
    *,
    entropy_gradient: bool = False,
) -> TokenScores:
    """Score sampled tokens in one pass over the logits.

        p = softmax(z / T)  H = -sum p log p  S* = p_k (H + log p_k)  S_c = S* - sum_i p_i S_i

    with S_i = p_i (H + log p_i) (arXiv:2602.03392). A step of strength c along the gradient of H by
    the logits changes H by c sum_i S_i^2 / T^2, to first order.

    The logits are neither written to nor copied whole. `logprobs` carries gradient to them,
    backward recomputes the probabilities and writes one tensor; everything else is detached. A row
    with NaN or +inf logits, or with -inf everywhere, gives NaN in every field of that row.

    Args:
        logits: [..., vocabulary], floating point; row t is the distribution token_ids[t] was drawn
            from.
        token_ids: [...], integer, each in [0, vocabulary). Not checked here: that would wait for
            the device (`Probe.score` checks its first call). An id outside has log p = -inf, so
            that log p times a mask of 0 is
            NaN: replace padding ids such as -100 by any real id.
        temperature: T of the sampler, positive: a number, or a tensor that broadcasts to the
            tokens' shape, such as [batch, 1], which gets no gradient.
        entropy_gradient: Let `entropies` carry gradient too, for a loss with an entropy term, and
            compute `squared_scores`.

    Returns:
        Scores of the token ids' shape.

    Raises:
        InputError: Shapes, types or a temperature that do not fit.
    """
    check_token_inputs(logits, token_ids, temperature)
    results = TokenScoresFunction.apply(  # type: ignore[no-untyped-call]
        logits,
        token_ids,
        temperature_of_rows(temperature, token_ids),
        wants_entropy_gradient(entropy_gradient),
    )
    return scores_of(results, token_ids, temperature)


def check_token_inputs(logits: Tensor, token_ids: Tensor, temperature: float | Tensor) -> None:
    """Everything about the arguments that can be checked without waiting for a device."""
    check_tensors({"logits": logits, "token_ids": token_ids}, "Pass the model's raw logits.")
    if logits.dim() == 0 or logits.shape[-1] == 0:
        raise InputError(f"logits must have shape [..., vocabulary], got {list(logits.shape)}.")
    if logits.shape[:-1] != token_ids.shape:
        raise InputError(
            f"logits [..., vocabulary] need one row per token: got logits {list(logits.shape)} and"
            f" token_ids {list(token_ids.shape)}.{_alignment_hint(logits, token_ids)}"
        )
    check_temperature(temperature, token_ids)


def check_tensors(tensors: Mapping[str, Tensor], not_floating: str) -> None:
    """That arguments, by their names, are plain tensors on one device, token ids integers and all
    others floating point."""
    first, *_ = tensors
    for name, value in tensors.items():
        if not isinstance(value, Tensor):
            raise InputError(f"{name} must be a torch.Tensor, got {type(value).__name__}.")
        check_not_nested(name, value)
        if name == "token_ids":
            if value.is_floating_point() or value.is_complex() or value.dtype == torch.bool:
                raise InputError(
                    f"token_ids must be integers, got {value.dtype}. Pass the sampled tokens' ids."
                )
        elif not value.is_floating_point():
            raise InputError(f"{name} must be floating point, got {value.dtype}. {not_floating}")
        device = tensors[first].device
        if value.device != device:
            raise InputError(
                f"{first} is on {device}, {name} on {value.device}. Move one to the other."
            )


def check_not_nested(name: str, tensor: Tensor) -> None:
    """Refuse a nested tensor, of which torch would complain in terms of its own."""
    if tensor.is_nested:
        raise InputError(
            f"{name} must be a plain tensor, got a nested one. Pass {name}.values(), its sequences"
            " end to end, here and in the other arguments, and to gate also cu_seqlens=, its"
            " offsets()."
        )


def check_temperature(temperature: float | Tensor, token_ids: Tensor) -> None:
    """That T is a positive number, or a tensor of them that broadcasts to the tokens' shape; on an
    accelerator its values are not looked at."""
    if isinstance(temperature, Tensor):
        check_not_nested("temperature", temperature)
        if temperature.is_complex() or temperature.dtype == torch.bool:
            raise InputError(
                f"temperature must be real numbers, got a tensor of {temperature.dtype}."
            )
        if not _broadcasts(temperature.shape, token_ids.shape):
            raise InputError(
                f"temperature must broadcast to the tokens' shape {list(token_ids.shape)}, got"
                f" {list(temperature.shape)}. One temperature per sequence has shape [batch, 1]."
            )
        if temperature.device != token_ids.device:
            raise InputError(
                f"temperature is on {temperature.device}, token_ids on {token_ids.device}. Move one"
                " to the other."
            )
        if temperature.device.type == "cpu":
            check_temperatures(temperature)
    elif isinstance(temperature, bool) or not isinstance(temperature, int | float):
        raise InputError(f"temperature must be a number or a tensor, got {temperature!r}.")
    elif not 0 < temperature < float("inf"):
        raise InputError(f"temperature must be positive and finite, got {temperature}.")


def check_temperatures(temperatures: Tensor) -> None:
    """That each is positive and finite. Waits for the device."""
    wrong = temperatures[~((temperatures > 0) & temperatures.isfinite())]
    if wrong.numel():
        raise InputError(f"temperature must be positive and finite, got {wrong[0].item():g}.")


def _broadcasts(shape: torch.Size, to: torch.Size) -> bool:
    padded = (1,) * (len(to) - len(shape)) + tuple(shape)
    return len(padded) == len(to) and all(
        one in (1, size) for one, size in zip(padded, to, strict=True)
    )


def temperature_of_rows(temperature: float | Tensor, token_ids: Tensor) -> Temperature:
    """T as the kernels take it: a float, or float64 [rows] of their own."""
    if isinstance(temperature, Tensor):
        return temperature.detach().double().expand(token_ids.shape).clone().reshape(-1)
    return float(temperature)


def _alignment_hint(logits: Tensor, token_ids: Tensor) -> str:
    shifted_by_one = (
        token_ids.dim() >= 1
        and logits.dim() == token_ids.dim() + 1
        and logits.shape[:-2] == token_ids.shape[:-1]
        and abs(logits.shape[-2] - token_ids.shape[-1]) == 1
    )
    if not shifted_by_one:
        return ""
    return (
        " Row t must be the distribution token t was drawn from: pass logits[:, :-1] with"
        " token_ids[:, 1:]."
    )


def build_token_scores(rows: RowScores, shape: torch.Size, dtype: torch.dtype) -> TokenScores:
    """Row scores, float64, in the token ids' shape; S_c is subtracted before rounding to `dtype`.
    Every field is a tensor of its own and no view, so that a loop may change its log-probs in
    place."""

    def rounded(values: Tensor) -> Tensor:
        return values.new_empty(shape, dtype=dtype).copy_(values.view(shape))

    _, *computed, squared = rows
    centred = rows.discriminator_scores - rows.expected_scores
    scores = TokenScores(*map(rounded, (*computed, centred)))
    if squared is None:
        return scores
    return replace(scores, squared_scores=rounded(squared))


def marked_outputs(ctx: Any, scores: TokenScores, entropy_gradient: bool) -> tuple[Tensor, ...]:
    """What the forward of an autograd function returns, and `scores_of` reads; only log-probs and,
    where asked for, entropies are differentiable."""
    computed = (scores.discriminator_scores, scores.expected_scores, scores.vocab_centered_scores)
    squared = () if scores.squared_scores is None else (scores.squared_scores,)
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(
        *(() if entropy_gradient else (scores.entropies,)), *computed, *squared
    )
    return scores.logprobs, scores.entropies, *computed, *squared


def scores_of(
    outputs: tuple[Tensor, ...], token_ids: Tensor, temperature: float | Tensor
) -> TokenScores:
    """The scores from `marked_outputs`, with what they were computed from."""
    squared_scores = None
    if len(outputs) > 5:
        squared_scores = outputs[5]
    if isinstance(temperature, Tensor):
        temperature = temperature.detach()
    return replace(
        TokenScores(*outputs[:5]),
        token_ids=token_ids,
        squared_scores=squared_scores,
        temperature=temperature,
    )


def savable_ids(token_ids: Int[Tensor, "*tokens"]) -> Int[Tensor, "*tokens"]:
    """The ids as backward keeps them: int64, and a copy where they were made in inference mode."""
    if token_ids.is_inference():
        return token_ids.clone().long()
    return token_ids.long()


def scores_dtype(logits_dtype: torch.dtype) -> torch.dtype:
    """float64 logits give float64 scores, everything narrower float32."""
    if logits_dtype == torch.float64:
        return torch.float64
    return torch.float32


class TokenScoresFunction(torch.autograd.Function):
    """`marked_outputs` of logits, or of a slice of them whose first column is token `start`:
    `whole` then makes the moments of whole rows of the slice's."""

    @staticmethod
    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def forward(
        ctx: Any,
        logits: Tensor,
        token_ids: Tensor,
        temperature: Temperature,
        entropy_gradient: bool,
        start: int = 0,
        whole: Callable[[Moments], Moments] | None = None,
    ) -> tuple[Tensor, ...]:
        token_ids = savable_ids(token_ids)
        backend = backend_for(logits)
        if whole is None:
            rows = row_scores(backend, logits, token_ids, temperature, squared=entropy_gradient)
        else:
            rows = finish(
                whole(
                    backend.row_moments(
                        logits, token_ids, temperature, start, squared=entropy_gradient
                    )
                )
            )
        scores = build_token_scores(rows, token_ids.shape, scores_dtype(logits.dtype))
        ctx.save_for_backward(
            logits, token_ids, rows.log_normalizer, rows.entropies if entropy_gradient else None
        )
        ctx.start, ctx.temperature, ctx.backend = start, temperature, backend
        return marked_outputs(ctx, scores, entropy_gradient)

    @staticmethod
    @differentiable_once
    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def backward(
        ctx: Any, logprob_gradient: Tensor | None, entropy_gradient: Tensor | None, *_: None
    ) -> tuple[Tensor | None, ...]:
        logits, *kept = ctx.saved_tensors
        if logprob_gradient is None and entropy_gradient is None:
            return (None,) * 6
        upstream = Upstream._make((*kept, logprob_gradient, entropy_gradient))
        return (
            ctx.backend.logit_gradient(logits, upstream, ctx.temperature, ctx.start),
            *(None,) * 5,
        )
