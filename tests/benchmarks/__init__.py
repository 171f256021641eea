"""Benchmarks: ratios from interleaved runs, never timed unit tests. `make bench` runs them all.

- `token_scores.py`: the reference backend against one read of the logits and the plain formula
- `probe_share.py`: what attaching the probe adds to a training step
"""
