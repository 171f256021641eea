"""Pure tensor functions, one per equation.

- `token_scores(logits, token_ids, temperature)` -> `TokenScores`: the input of everything else
    (token_scores.py)
- `linear_token_scores(hidden, weight, token_ids, ...)`: the same without ever holding the logits
  (linear_token_scores.py; head_tiles.py)
- `linear_head_parts(head)`: the arguments for a head module, adapters included (linear_heads.py)
- `each_field`: one change for all tensors of scores, such as a gather over ranks; packed sequences
    as rows (layouts.py)
- `LossGradient`: what the loss makes of the scored tokens, read in backward (loss_gradient.py)
- `shard_moments`, `merge`, `sharded_token_scores`: vocabularies split over ranks
(vocabulary_shards.py)"""

from isentrope.scores.layouts import each_field
from isentrope.scores.linear_heads import AdaptedWeight, LowRankAdapter, linear_head_parts
from isentrope.scores.linear_token_scores import linear_token_scores
from isentrope.scores.token_scores import TokenScores, token_scores
from isentrope.scores.vocabulary_shards import merge, shard_moments, sharded_token_scores

__all__ = [
    "AdaptedWeight",
    "LowRankAdapter",
    "TokenScores",
    "each_field",
    "linear_head_parts",
    "linear_token_scores",
    "merge",
    "shard_moments",
    "sharded_token_scores",
    "token_scores",
]
