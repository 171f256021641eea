"""Clip_V: leave out the tokens whose vocabulary-centred score is large.

    keep while  -mu_low sigma' <= S_c <= mu_high sigma',   sigma' = std_B(S_c)     arXiv:2602.03392, eq. 16

in nats. S_c = S* - E[S] is centred once, as in the paper's text (eq. 16 as printed subtracts E[S] twice). A side that is
None does not clip; a score that is not finite is kept.
"""

from __future__ import annotations

from torch import Tensor

from isentrope.interventions import threshold_clip
from isentrope.interventions.gated_tokens import Centres, GatedTokens, Selection
from isentrope_wire.control import Control


def count_cutoff(control: Control, tokens: GatedTokens, centres: Centres) -> Tensor | None:
    """Where the `max_fraction` furthest out begin, in standard deviations beyond the threshold."""
    centred = tokens.scores.vocab_centered_scores.detach().double()
    return threshold_clip.count_cutoff(control, tokens, centred, centres.thresholds.vocab_centered_std)


def select(control: Control, tokens: GatedTokens, centres: Centres, cutoff: Tensor | None) -> Selection:
    """Leave out what lies outside the thresholds, in scope, and among the furthest `max_fraction` if there is such."""
    centred = tokens.scores.vocab_centered_scores.detach().double()
    return threshold_clip.select(control, tokens, centred, centres.thresholds.vocab_centered_std, cutoff)
