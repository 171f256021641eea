"""Whether the calibrated prediction may be acted on."""

from __future__ import annotations

import math
from dataclasses import dataclass

COMPARED_STEPS = 5
"""Predictions that must have met their observation before the first action."""
SIGN_AGREEMENT_TO_BEGIN = 0.65
SIGN_AGREEMENT_TO_GO_ON = 0.35
"""Below the half that chance gives: near the target the changes are small and their signs are chance, however good the
gain. Asking for as much as at the beginning would end the hold by its own success."""


@dataclass(frozen=True, slots=True)
class Calibrated:
    """What the calibration says after a step. A value is None while there is too little past to say it."""

    r2: float | None = None
    sign_agreement: float | None = None
    compared_steps: int = 0


def distrust(calibrated: Calibrated, gain: float | None, *, acting: bool) -> str:
    """Why it may not be acted on, in one sentence; empty when it may.

    Args:
        gain: that would be steered by, see `effect.py`; None while there is none.
        acting: whether it was acted on in the step before; trust once won is lost only by clear evidence.
    """
    agreement, r2 = calibrated.sign_agreement, calibrated.r2
    if gain is None:
        return "No gain is known yet: it takes some steps whose entropy was observed, which is what rescore= is for."
    if not math.isfinite(gain) or gain <= 0:
        return f"The gain is {gain:.3g}: clipping would not move the entropy the way it is meant to."
    if calibrated.compared_steps < COMPARED_STEPS or agreement is None:
        return f"The prediction was compared in {calibrated.compared_steps} steps, it takes {COMPARED_STEPS}."
    if acting:
        # Both must fail: each alone is noise where the entropy stands still.
        lost = agreement < SIGN_AGREEMENT_TO_GO_ON and (r2 is None or r2 < 0)
    else:
        lost = agreement < SIGN_AGREEMENT_TO_BEGIN and (r2 is None or r2 < SIGN_AGREEMENT_TO_BEGIN)
    if not lost:
        return ""
    explained = "unknown" if r2 is None else f"{r2:.2f}"
    return f"The prediction's sign was right in {agreement:.0%} of the steps, and its R² is {explained}."
