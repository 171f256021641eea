"""Sums of a step: frozen, mergeable, honest about their reduction.

- `moments.py`: count, mean and spread; `covariance.py`: the same for pairs; `histogram.py`: 64 bins that merge exactly
- `token_ledger.py`: the tokens of the step that is open, on the device
- `step_tokens.py`: the same, laid out in one vector; `what_if.py`: what other thresholds would have done to them
- `step_summary.py`: everything reported about a step, from the ledger in one device-to-host copy
- `calibration.py`: gain, R² and sign agreement of the prediction, fitted on the past only;
  `prediction_interval.py`: where 90 % of the observed changes are expected
- `mechanisms.py`: what the loop's clip, the intervention and a KL term do to the prediction
- `covariance_tail.py`: what the largest covariances of log p and advantage amount to; `covariance_sketch.py`: the same
  of several ranks; `group_covariance.py`: of whole sequences, within the groups of a prompt
- `across_ranks.py`: what a rank says to all of them, and what all of it says
- `driving_tokens.py`: the tokens that count most; `alerts.py`: when to call a person
"""
