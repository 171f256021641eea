"""Sums of a step: frozen, mergeable, honest about their reduction.

- `moments.py`: count, mean and spread; `covariance.py`: the same for pairs; `histogram.py`: 64 bins that merge exactly
- `token_ledger.py`: the tokens of the step that is open, on the device
- `step_tokens.py`: the same, laid out in one vector; `what_if.py`: what other thresholds would have done to them
- `step_summary.py`: everything reported about a step, from the ledger in one device-to-host copy
- `calibration.py`: gain, R² and sign agreement of the prediction, fitted on the past only;
  `prediction_interval.py`: where 90 % of the observed changes are expected
- `covariance_tail.py`: what the largest covariances of log p and advantage amount to
- `driving_tokens.py`: the tokens that count most; `alerts.py`: when to call a person
"""
