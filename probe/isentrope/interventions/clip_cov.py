"""Clip-Cov: a random few of the tokens with a high covariance of log p and advantage give no gradient."""

from __future__ import annotations

from torch import Tensor

from isentrope.interventions.covariance_scores import covariance_scores
from isentrope.interventions.gated_tokens import Centres, GatedTokens, Selection
from isentrope.interventions.scope import in_scope
from isentrope.interventions.token_draw import positions_of, token_draw
from isentrope_wire.control import Control


def count_cutoff(control: Control, tokens: GatedTokens, centres: Centres) -> Tensor | None:
    """Clip-Cov ranks nothing: it draws."""
    return None


def select(control: Control, tokens: GatedTokens, centres: Centres, cutoff: Tensor | None) -> Selection:
    """Detach the tokens of

        I_clip ~ Uniform({t : omega_low < c_t < omega_high}),  |I_clip| = r N      arXiv:2505.22617, eq. 11, 12

    c_t of `covariance_scores`, N the tokens that count. Each candidate is drawn for itself with the probability
    r N / candidates, so that r N is what is detached on average, however small the micro-batch; the paper's code
    detaches at least one token of each micro-batch. The draw is `token_draw` of seed, step, rank and position.

    When fewer than r N tokens are candidates, all of them are detached.
    """
    covariances = covariance_scores(tokens, centres)
    candidates = (covariances > control.number("omega_low")) & (covariances < control.number("omega_high"))
    candidates &= tokens.mask & in_scope(control.scope, tokens.advantages, tokens.scores.vocab_centered_scores)
    wanted = tokens.mask.sum() * control.number("ratio")
    drawn = token_draw(
        int(control.number("seed")), tokens.step, tokens.rank, positions_of(tokens.mask, tokens.first_position)
    )
    # Multiplied out: with no candidate there is nothing to divide by.
    detached = candidates & (drawn * candidates.sum() < wanted)
    return Selection(~detached, candidates)
