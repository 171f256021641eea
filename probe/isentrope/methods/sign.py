"""Score sign: leave out the tokens whose discriminator score is positive, or negative, or all but those."""

from __future__ import annotations

from torch import Tensor

from isentrope.methods.base import Centres, GatedTokens, Selection, in_scope
from isentrope_wire.control import Control


def select_score_sign(control: Control, tokens: GatedTokens, centres: Centres, cutoff: Tensor | None) -> Selection:
    """The tokens of one sign of

        S* = p (H + log p)                                                        arXiv:2602.03392, Figure 1

    on positive or negative samples (the scope), left out (`mask`) or alone left in (`keep`). Rewarding a token with
    S* > 0 lowers the entropy, rewarding one with S* < 0 raises it. What `mask` leaves out `keep` keeps, and the other
    way round; a score of exactly 0 has neither sign. One that is not finite is kept.
    """
    scores = tokens.scores.discriminator_scores.detach()
    of_the_sign = scores > 0 if control.value("sign") == "positive" else scores < 0
    outside = of_the_sign if control.value("action") == "mask" else ~of_the_sign & scores.isfinite()
    outside = outside & in_scope(control.scope, tokens.advantages, tokens.scores.vocab_centered_scores)
    return Selection(~outside, outside)
