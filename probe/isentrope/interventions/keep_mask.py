"""What a keep-mask means: True = the token's gradient takes part. The loss value and its denominator stay as they are."""

from __future__ import annotations

import torch
from torch import Tensor

from isentrope.interventions import clip_b, clip_v
from isentrope.interventions.threshold_statistics import ThresholdStatistics
from isentrope.scores import TokenScores
from isentrope_wire.control import Control, Method, Scope

METHODS = {Method.CLIP_B: clip_b.outside_thresholds, Method.CLIP_V: clip_v.outside_thresholds}

CAPABILITIES = tuple(f"method:{method}" for method in (Method.NONE, *METHODS))
"""What this probe can be told to do."""


def keep_mask(control: Control, scores: TokenScores, advantages: Tensor, statistics: ThresholdStatistics) -> Tensor:
    """True where the token's gradient takes part under `control`.

    Args:
        control: a method in `METHODS`.
        scores: of any shape.
        advantages: A, same shape.
        statistics: what the thresholds are counted from.
    Returns: bool, of the scores' shape.
    """
    outside = METHODS[control.method](scores, statistics, control.mu_low, control.mu_high)
    return ~(outside & in_scope(control.scope, advantages, scores.vocab_centered_scores))


def in_scope(scope: Scope, advantages: Tensor, vocab_centered_scores: Tensor) -> Tensor:
    """True where thresholds act. The update of a token lowers entropy where A S_c > 0 and raises it where A S_c < 0."""
    match scope:
        case Scope.ALL:
            return torch.ones_like(advantages, dtype=torch.bool)
        case Scope.NEGATIVE:
            return advantages < 0
        case Scope.POSITIVE:
            return advantages > 0
        case Scope.DECREASING:
            return advantages * vocab_centered_scores > 0
        case Scope.INCREASING:
            return advantages * vocab_centered_scores < 0
