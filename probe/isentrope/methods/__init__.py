"""Which tokens' gradients take part in the update, and with what factor.

- `base.py`: what a method is given and returns; `gate.py`: the table of methods, and how a factor reaches the gradient
- `threshold.py` (Clip_B, Clip_V), `covariance.py` (Clip-Cov, KL-Cov), `entropy.py` (top entropy, entropy-ratio clip),
  `positive.py` (unlikely, rank reward, positive-advantage weight), `steer.py`, `sign.py`, `ratio.py`: the methods, each with
  its equation
- `reference.py`: which tokens thresholds, means and shares are counted from

A method is an `Intervention` in one of these files, its line in `gate.INTERVENTIONS`, and its row in the wire's METHODS;
command line, page and REST need nothing more. A setting of one method is a `Parameter` of its row, never a field of `Control`.
"""
