"""Methods that look at the entropy itself: which samples are trained on (Entrocraft), what unlikely
tokens count (STARE), how strong an entropy bonus is (TRL's adaptive coefficient).

The entropy is the mean over the batch's tokens, or over those of the step before where a step has
several `gate` calls, on this rank, in nats.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from isentrope.methods.base import Centres, Intervention, Selection
from isentrope.statistics.tokens import TokenBatch, weight_of_loss
from isentrope_wire.control import Control
from isentrope_wire.methods import Method

if TYPE_CHECKING:
    from jaxtyping import Bool, Float64


def mean_entropy(tokens: TokenBatch) -> Float64[Tensor, ""]:
    """Mean H over the tokens that count, nats; NaN where there is none."""
    entropies = tokens.scores.entropies.double()
    valid = tokens.mask & entropies.isfinite()
    return torch.where(valid, entropies, 0.0).sum() / valid.sum()


def entrocraft_band(control: Control, step: int) -> tuple[float, float]:
    """The band of a step, nats: from `low` and `high` straight to `low_end` and `high_end`."""
    passed = min(step / float(control.value("steps") or 1), 1.0)
    low, high = control.number("low"), control.number("high")
    low_end, high_end = control.value("low_end") or low, control.value("high_end") or high
    return low + passed * (float(low_end) - low), high + passed * (float(high_end) - high)


def select_entrocraft(
    control: Control, tokens: TokenBatch, centres: Centres, cutoff: Tensor | None
) -> Selection:
    """Train on the samples with

        m A >= 0,     m = 1{H > high} - 1{H < low}                     arXiv:2604.26326, algorithm 1

    alone: below the band on those with A < 0, above it on those with A > 0; inside it on all. A is
    the loop's own. (The authors' code has the rewards themselves in its place while m is not 0.)
    The paper's mean is over the samples kept (eq. 5), which `denominator=shrink` gives; the
    authors' code divides by all tokens, as `keep` does.
    """
    assert cutoff is not None, "Entrocraft counts the entropy"
    low, high = entrocraft_band(control, tokens.step)
    side = (cutoff > high).double() - (cutoff < low).double()
    clipped = tokens.mask & tokens.is_in_scope(control.scope) & (side * tokens.advantages < 0)
    return Selection(~clipped, clipped)


def batch_entropy(control: Control, tokens: TokenBatch, centres: Centres) -> Float64[Tensor, ""]:
    """H of the batch, nats."""
    return mean_entropy(tokens)


ENTROCRAFT = Intervention(select=select_entrocraft, count_cutoff=batch_entropy)


def least_likely(tokens: TokenBatch, among: Bool[Tensor, "*tokens"], share: float) -> Tensor:
    """The log-prob up to which a token is among the share that is least likely: of so many tokens,
    rounded up. -inf where there is none."""
    logprobs = tokens.scores.logprobs.double()
    ranked = among & tokens.mask & logprobs.isfinite()
    if not logprobs.numel():
        return torch.full((), -torch.inf, dtype=torch.float64, device=logprobs.device)
    count = ranked.sum()
    wanted = (count.double() * share - 1e-9).ceil().clamp(min=1)
    ordered = torch.where(ranked, logprobs, torch.inf).flatten().sort().values
    last = ordered.gather(0, (wanted.long() - 1).clamp(0, logprobs.numel() - 1).reshape(1))
    return torch.where(count > 0, last.squeeze(0), -torch.inf)


def stare_cutoffs(
    control: Control, tokens: TokenBatch, centres: Centres
) -> Float64[Tensor, " three"]:
    """H of the batch, and the log-probs up to which tokens with A > 0, and with A < 0, are chosen;
    nats."""
    share = control.number("share")
    positive = least_likely(tokens, tokens.advantages > 0, share)
    negative = least_likely(tokens, tokens.advantages < 0, share)
    return torch.stack([mean_entropy(tokens), positive, negative])


def select_stare(
    control: Control, tokens: TokenBatch, centres: Centres, cutoff: Tensor | None
) -> Selection:
    """Multiply the gradient by

        W on L+,  M on L-,  1 elsewhere,    while H < H_target           arXiv:2606.19236, section 4

    L+ and L- are the share of the tokens with A > 0, and with A < 0, whose surprisal -log p is
    largest. W is `amplify`, M `attenuate`; the authors' variant O1 has M = 1, C2 has M = 0.9. At or
    above the target nothing is changed. Read from the authors' code; their schedule of W and M
    (section 4.4, off by default) is not offered: push another weight.
    """
    assert cutoff is not None, "STARE ranks tokens"
    entropy, positive, negative = cutoff.unbind()
    logprobs, advantages = tokens.scores.logprobs.double(), tokens.advantages
    may = tokens.mask & tokens.is_in_scope(control.scope)
    may = may & (entropy < control.number("target_entropy"))
    amplified = may & (advantages > 0) & (logprobs <= positive)
    attenuated = may & (advantages < 0) & (logprobs <= negative)
    factors = torch.ones_like(tokens.scores.logprobs)
    factors = torch.where(amplified, control.number("amplify"), factors)
    factors = torch.where(attenuated, control.number("attenuate"), factors)
    return Selection(factors, amplified | attenuated)


STARE = Intervention(select=select_stare, count_cutoff=stare_cutoffs)


def follow_entropy(
    control: Control, tokens: TokenBatch, before: Float64[Tensor, " two"] | None
) -> Float64[Tensor, " two"]:
    """The bonus's coefficient after a step, and the H that the step had:

        alpha_(t+1) = alpha_t + delta where H_t <= H_target, else alpha_t - delta   arXiv:2505.22312

    between 0 and `largest`, as TRL's GRPO trainer has it with `use_adaptive_entropy`. Where H is
    not known the coefficient stays."""
    entropy = mean_entropy(tokens)
    coefficient = torch.full_like(entropy, control.number("coefficient"))
    if before is not None:
        coefficient = before[0].to(entropy)
    delta = control.number("change_per_step")
    moved = torch.where(entropy <= control.number("target_entropy"), delta, -delta)
    after = (coefficient + moved).clamp(0.0, control.number("largest"))
    return torch.stack([torch.where(entropy.isfinite(), after, coefficient), entropy])


def bonus_slopes(tokens: TokenBatch) -> Float64[Tensor, "*tokens"]:
    """(log p + H) / A of each token: what a bonus of 1 takes from its factor; 0 where A is 0 or a
    number is not finite."""
    scores = tokens.scores
    surprise = scores.logprobs.double() + scores.entropies.double()
    slopes = surprise / tokens.advantages.double()
    return torch.where(slopes.isfinite(), slopes, 0.0)


def select_entropy_bonus(
    control: Control, tokens: TokenBatch, centres: Centres, cutoff: Tensor | None
) -> Selection:
    """Multiply the gradient by

        1 - alpha (log p + H) / A

    which adds an estimate, from the sampled token alone, of the gradient of an entropy bonus: a
    loss -r A with the factor has the gradient of

        -r A - alpha H,    for grad H = -E[(log p + H) grad log p],   E over the policy

    on average over what is sampled; r makes up for a batch of an older policy. To first order it
    raises a token's entropy by alpha sum_i S_i^2, as the bonus does. A loss that is a mean over
    tokens takes alpha in the units of TRL's `entropy_coef`; a negative one lowers the entropy.

    A token with A = 0 has no gradient to multiply. It is given alpha w r (log p + H), with the w
    that the loss has on the other tokens of its `gate` call (`weight_of_loss`). So an entropy can
    be moved where most groups have one reward, but not in a call without any gradient. A token that
    the loop's clip silences gets nothing.

    With `estimate` exact the bonus is the gradient of the entropies themselves, in place of its
    estimate: dL/dH = -alpha w r, with w r of each token's own loss. Scores that were not made by
    `Probe.score` under such a control don't carry it: then it is estimated.

    With `target_entropy` the bonus acts in steps that follow one with H at or below it, and alpha
    moves (`follow_entropy`); not in the first step, as in TRL.
    """
    alpha = torch.full_like(tokens.advantages, control.number("coefficient"), dtype=torch.float64)
    target = control.value("target_entropy")
    if target is not None and cutoff is None:
        alpha = torch.zeros_like(alpha)
    if target is not None and cutoff is not None:
        alpha = torch.where(cutoff[1] <= float(target), cutoff[0], 0.0).expand_as(alpha)
    changes = torch.where(tokens.mask & tokens.is_in_scope(control.scope), alpha, 0.0)
    if control.value("estimate") == "exact" and tokens.takes_entropy_gradient:
        return _select_exact_bonus(tokens, changes)
    factors = 1 - changes * bonus_slopes(tokens)
    selection = Selection(factors.to(tokens.scores.logprobs.dtype), changes != 0)
    surprises = tokens.scores.logprobs.double() + tokens.scores.entropies.double()
    if tokens.importance_ratios is not None:
        surprises = surprises * tokens.importance_ratios
    idle = torch.where(tokens.advantages == 0, changes * surprises, 0.0).nan_to_num(0.0, 0.0, 0.0)

    def add_where_no_advantage(gradient: Tensor) -> Selection:
        advantages = torch.where(tokens.mask, tokens.advantages, 0.0)
        return replace(selection, added=weight_of_loss(gradient, advantages) * idle)

    return replace(selection, in_backward=add_where_no_advantage)


def _select_exact_bonus(tokens: TokenBatch, changes: Float64[Tensor, "*tokens"]) -> Selection:
    """Leave the log-probs' gradient as it is, and add that of each token's entropy, of the
    coefficients `changes`."""
    selection = Selection(torch.ones_like(tokens.scores.logprobs), changes != 0)

    def add_to_entropies(gradient: Tensor) -> Selection:
        advantages = torch.where(tokens.mask, tokens.advantages, 0.0)
        idle = weight_of_loss(gradient, advantages).expand_as(changes)
        if tokens.importance_ratios is not None:
            idle = idle * tokens.importance_ratios
        weights = torch.where(advantages == 0, idle, -gradient.double() / advantages)
        added = torch.where(changes == 0, 0.0, -changes * weights).nan_to_num(0.0, 0.0, 0.0)
        return replace(selection, added_to_entropies=added)

    return replace(selection, in_backward=add_to_entropies)


def adds_to_entropies(control: Control) -> bool:
    """Whether the scores have to carry the entropy's gradient for what the control does."""
    return control.method == Method.ENTROPY_BONUS and control.value("estimate") == "exact"


ENTROPY_BONUS = Intervention(
    select=select_entropy_bonus, follow=follow_entropy, ranks_with="target_entropy"
)
