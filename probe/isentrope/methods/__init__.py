"""Which tokens' gradients take part in the update, and with what factor.

- `base.py`: what a method is given and returns; `gate.py`: how a factor reaches the gradient
- `threshold.py` (Clip_B, Clip_V), `covariance.py` (Clip-Cov, KL-Cov), `masks.py` (score sign, top
  entropy, entropy-ratio clip, ratio clip), `weights.py` (unlikely, rank reward, positive-advantage
  weight, STEER), `targets.py` (Entrocraft, STARE, entropy bonus): the methods, each with its
  equation
- `basis.py`: which tokens thresholds, means and shares are counted from
- `what_if.py`: what any thresholds would have clipped, for every method that has them

A method is an `Intervention` in one of these files, which its row in the wire's METHODS names;
command line, page and REST need nothing more. A setting of one method is a `Parameter` of its row,
never a field of `Control`."""
