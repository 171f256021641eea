"""How token scores are computed: one pass over the logits, six numbers a token.

- `reference.py`: plain torch, any device, float64-able. The specification of every other backend, and the fallback.
"""
