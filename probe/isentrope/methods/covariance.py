"""Clip-Cov and KL-Cov: act on the tokens that add most to the covariance of log p and advantage,
which lowers entropy.

Clip-Cov removes the gradient of a random few of them; KL-Cov holds those with the highest
covariance near the policy they were sampled from. The random number of a token depends on seed,
step, rank and position alone: the run's own random numbers stay as they are, and the same step
decides the same again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from isentrope.methods.base import Centres, Intervention, Selection, top_share_cutoff
from isentrope.statistics.tokens import StepTokens, TokenBatch
from isentrope_wire.control import Control
from isentrope_wire.methods import RATIO_TOLERANCE

if TYPE_CHECKING:
    from jaxtyping import Bool, Float64, Int


def covariance_scores(tokens: TokenBatch, centres: Centres) -> Float64[Tensor, "*tokens"]:
    """c_t = (log p_t - mean_B(log p)) (A_t - mean_B(A))                    arXiv:2505.22617, eq. 10

    The means are those of the whole batch: over one micro-batch of one sequence with one advantage
    c_t would be 0 everywhere.

    Returns:
        In nats times the advantage's unit; NaN where log p or A is not finite.
    """
    logprobs, advantages = tokens.scores.logprobs.double(), tokens.advantages.double()
    return (logprobs - centres.mean_logprob) * (advantages - centres.mean_advantage)


def select_clip_cov(
    control: Control, tokens: TokenBatch, centres: Centres, cutoff: Tensor | None
) -> Selection:
    """Detach the tokens of

        I_clip ~ Uniform({t : omega_low < c_t < omega_high}),  |I_clip| = r N   2505.22617, eq. 11

    c_t of `covariance_scores`, N the tokens that count. Each candidate is drawn for itself with the
    probability r N / candidates, so that r N is what is detached on average, however small the
    micro-batch; the paper's code detaches at least one token of each micro-batch. The draw is
    `token_draw` of seed, step, rank and position.

    A token whose gradient is 0 is no candidate once backward shows it: its advantage is 0, or the
    loop's own clip silences it, and the authors draw no such token either. A loss with a KL term or
    an entropy bonus gives every token a gradient; then the clip can't be seen. When fewer than r N
    tokens are candidates, all of them are detached."""
    covariances = covariance_scores(tokens, centres)
    candidates = (covariances > control.number("omega_low")) & (
        covariances < control.number("omega_high")
    )
    candidates &= tokens.mask & tokens.is_in_scope(control.scope)
    wanted = tokens.mask.sum() * control.number("ratio")
    drawn = token_draw(
        int(control.number("seed")),
        tokens.step,
        tokens.rank,
        positions_of(tokens.mask, tokens.first_position),
    )

    def choose(candidates: Tensor) -> Selection:
        # Multiplied out: with no candidate there is nothing to divide by.
        return Selection(~(candidates & (drawn * candidates.sum() < wanted)), candidates)

    again = _FirstBackward(lambda gradient: choose(candidates & (gradient != 0)))
    return replace(choose(candidates), in_backward=again.decide)


class _FirstBackward:
    """The first backward with a non-zero gradient decides; later ones of the same graph reuse it.
    Which one that is stays on the device."""

    def __init__(self, select: Callable[[Tensor], Selection]) -> None:
        self._select = select
        self._decision: Selection | None = None
        self._decided: Tensor | None = None

    def decide(self, gradient: Tensor) -> Selection:
        now, any_gradient = self._select(gradient), (gradient != 0).any()
        if self._decision is not None and self._decided is not None:
            before, decided = self._decision, self._decided
            now = Selection(
                torch.where(decided, before.factors, now.factors),
                torch.where(decided, before.selected, now.selected),
            )
            any_gradient = decided | any_gradient
        self._decision, self._decided = now, any_gradient
        return now


def kl_cov_cutoff(control: Control, tokens: TokenBatch, centres: Centres) -> Tensor:
    """The c_t above which the top k share of the tokens lies: rounded down, but at least one token,
    as the authors do."""
    return top_share_cutoff(
        covariance_scores(tokens, centres), tokens.mask, control.number("k"), at_most=True
    )


def select_kl_cov(
    control: Control, tokens: TokenBatch, centres: Centres, cutoff: Tensor | None
) -> Selection:
    """On the tokens of the top share the loss becomes

        -A r + beta d(r),   I_KL = {t : Rank(c_t) <= k N}    arXiv:2505.22617, eq. 13, 14, listing 1

        d(r) = |log r|        estimator `abs`, the authors' code and all their results
        d(r) = r - 1 - log r  estimator `k3`, an unbiased estimate of KL(pi_old || pi)

    with r = p / p_old. The loop keeps its loss; the penalty enters through the gradient. By log p
    it has the slope sign(log r) or r - 1, and -A r has the slope -A r. The sum of both is the
    loop's own gradient times

        1 - beta sign(log r) / (r A)         or         1 - beta (r - 1) / (r A)

    however the loop averages, scales or accumulates. This holds for the surrogate -A r, and for -A
    log p to first order in r - 1. |log r| up to RATIO_TOLERANCE, the round-off of two forward
    passes of one policy, is taken as 0.

    There must be a gradient to multiply. A token with A = 0 has none and is not penalised, though
    the authors penalise it. Neither is a token that the loop's own clip silences: the authors' loss
    for KL-Cov has no clip, so let the loop clip so wide that it never does. Strictly on-policy r is
    1 and so is the factor: the method can't act. Nor can it when the loop passes no log-probs of
    the old policy: the slope has the size beta however small |log r| is, so that against a
    sampler's log-probs it would follow the sign of round-off."""
    assert cutoff is not None, "KL-Cov ranks tokens"
    chosen = (
        tokens.mask
        & (covariance_scores(tokens, centres) >= cutoff)
        & tokens.is_in_scope(control.scope)
    )
    factors = torch.ones_like(tokens.scores.logprobs)
    if tokens.importance_ratios is None or tokens.ratio_is_to_sampler:
        return Selection(factors, chosen)
    log_ratios = tokens.importance_ratios.double().log()
    log_ratios = torch.where(log_ratios.abs() <= RATIO_TOLERANCE, 0.0, log_ratios)
    if control.value("estimator") == "abs":
        slopes = log_ratios.sign()
    else:
        slopes = log_ratios.expm1()
    surrogate = log_ratios.exp() * tokens.advantages.double()
    penalised = (1 - control.number("beta") * slopes / surrogate).to(factors.dtype)
    return Selection(torch.where(chosen & penalised.isfinite(), penalised, factors), chosen)


_WORD = 1 << 64
_ODD = 0x9E3779B97F4A7C15
_MIXERS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1))
"""The rounds of splitmix64: shift right, exclusive or, multiply."""


def token_draw(
    seed: int, step: int, rank: int, positions: Int[Tensor, "*tokens"]
) -> Float64[Tensor, "*tokens"]:
    """Uniform in [0, 1), one per position of a token within the step on this rank."""
    key = 0
    for number in (seed, step, rank):
        key = _mixed((key + number + 1) * _ODD % _WORD)
    words = positions.long() * _signed(_ODD) + _signed(key)
    for shift, multiplier in _MIXERS:
        # `>>` copies the sign bit down; the mask removes the copies.
        words = (words ^ ((words >> shift) & ((1 << (64 - shift)) - 1))) * _signed(multiplier)
    return ((words >> 11) & ((1 << 53) - 1)).double() / float(1 << 53)


def positions_of(mask: Bool[Tensor, "*tokens"], first: int) -> Int[Tensor, "*tokens"]:
    """0, 1, 2 ... in the order of the tokens from `first` on, of the mask's shape."""
    return torch.arange(first, first + mask.numel(), device=mask.device).reshape(mask.shape)


def _mixed(word: int) -> int:
    for shift, multiplier in _MIXERS:
        word = (word ^ (word >> shift)) * multiplier % _WORD
    return word


def _signed(word: int) -> int:
    if word >= _WORD // 2:
        return word - _WORD
    return word


def clip_cov_effects(
    tokens: StepTokens,
) -> tuple[Bool[Tensor, " tokens"], Float64[Tensor, " tokens"]]:
    """The tokens that the loss moves, and their g S_c."""
    return tokens["g"] != 0, tokens.effects


def kl_cov_effects(
    tokens: StepTokens,
) -> tuple[Bool[Tensor, " tokens"], Float64[Tensor, " tokens"]]:
    """All tokens, and (f - 1) g S_c, f the factor of `select_kl_cov` with estimator `abs` and beta
    1."""
    if "r" not in tokens or any(batch.ratio_is_to_sampler for batch in tokens.batches):
        return tokens.valid, torch.zeros_like(tokens.ones)
    ratios = tokens["r"]
    moved = (ratios.log().abs() > RATIO_TOLERANCE) & (tokens["A"] != 0) & tokens.valid
    taken = -(ratios - 1).sign() / (ratios * tokens["A"]) * tokens.effects
    return tokens.valid, torch.where(moved, taken, 0.0)


CLIP_COV = Intervention(
    select=select_clip_cov, uses_means=True, covariance_effects=clip_cov_effects
)
KL_COV = Intervention(
    select=select_kl_cov,
    count_cutoff=kl_cov_cutoff,
    uses_means=True,
    covariance_effects=kl_cov_effects,
)
