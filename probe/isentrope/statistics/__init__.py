"""What a step is measured by: declared sums that merge exactly over ranks, and the metrics read
from them.

- `sums.py`: how a sum is declared, packed into a rank's vector and read; `moments.py`,
    `histogram.py`: values that merge
- `tokens.py`: the tokens of the open step, and the matrix they become when it closes
- `step.py`, `covariance.py`, `mismatch.py`, `contributions.py`: the declarations. A new one goes
  into `STEP_SUMS` at the end of `step.py`; a median or another quantile is read from its
  `TOKEN_HISTOGRAMS`
- `calibration.py`: from the unit prediction to nats; `alerts.py`: which steps need attention
- `rescoring.py`, `coupling.py`: what an update did to the entropy, and what its own gradient
predicts of the next"""
