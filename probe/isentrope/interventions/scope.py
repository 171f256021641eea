"""On which tokens a method acts."""

from __future__ import annotations

import torch
from torch import Tensor

from isentrope_wire.control import Scope


def in_scope(scope: Scope, advantages: Tensor, vocab_centered_scores: Tensor) -> Tensor:
    """True where the method acts. The update of a token lowers entropy where A S_c > 0 and raises it where A S_c < 0."""
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
