"""Which tokens' gradients take part.

- `keep_mask.py`: what a mask means, the scope, and the one door `keep_mask(...)` to every method
- `clip_b.py`, `clip_v.py`: one method a file, the paper's equation in its docstring
"""
