"""Pure tensor functions, one per equation.

- `token_scores(logits, token_ids, temperature)` -> `TokenScores`: what everything else is made from (token_scores.py)
- `vocab_centered_scores`, `batch_centered_scores` (discriminator.py)
- `entropy_contributions`, `importance_ratios` (prediction.py)
"""

from isentrope.scores.discriminator import batch_centered_scores, entropy_discriminator, vocab_centered_scores
from isentrope.scores.prediction import entropy_contributions, importance_ratios
from isentrope.scores.token_scores import TokenScores, token_scores

__all__ = [
    "TokenScores",
    "batch_centered_scores",
    "entropy_contributions",
    "entropy_discriminator",
    "importance_ratios",
    "token_scores",
    "vocab_centered_scores",
]
