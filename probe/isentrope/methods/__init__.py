"""Which tokens' gradients take part in the update, and with what factor.

- `base.py`: what a method is given and returns; `gate.py`: the table of methods, and how a factor reaches the gradient
- `threshold.py` (Clip_B, Clip_V), `covariance.py` (Clip-Cov, KL-Cov), `entropy.py`, `sign.py`, `unlikely.py`, `ratio.py`:
  the methods, each with its equation
- `reference.py`: which tokens thresholds, means and shares are counted from

A method is an `Intervention` in one of these files, its line in `gate.METHODS`, and its row in the wire's METHODS.
"""
