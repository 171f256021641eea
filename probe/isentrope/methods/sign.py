"""Score sign: clip the tokens whose discriminator score is positive, or negative, or all but those."""

from __future__ import annotations

from torch import Tensor

from isentrope.methods.base import Centres, GatedTokens, Intervention, Selection
from isentrope_wire.control import Control


def select_score_sign(control: Control, tokens: GatedTokens, centres: Centres, cutoff: Tensor | None) -> Selection:
    """Clip (`mask`), or alone keep (`keep`), the tokens of one sign of

        S* = p (H + log p)                                                        arXiv:2602.03392, Figure 1

    on positive or negative samples (the scope). Rewarding a token with S* > 0 lowers the entropy, rewarding one with
    S* < 0 raises it. `keep` clips exactly what `mask` keeps; a score of exactly 0 has neither sign. A score that is not
    finite is kept.
    """
    scores = tokens.scores.discriminator_scores
    of_the_sign = scores > 0 if control.value("sign") == "positive" else scores < 0
    clipped = of_the_sign if control.value("action") == "mask" else ~of_the_sign & scores.isfinite()
    clipped = clipped & tokens.in_scope(control.scope)
    return Selection(~clipped, clipped)


SCORE_SIGN = Intervention(select=select_score_sign)
