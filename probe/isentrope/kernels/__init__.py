"""How token scores are computed: one pass over the logits, six or seven numbers a token and slice
of the vocabulary.

- `moments.py`: the numbers, how slices merge, what `finish` makes of them
- `dispatch.py`: the two passes a backend provides, and which backend is taken
- `reference.py`: plain torch, any device, float64-able. The specification of every other backend,
    and the fallback
- `cpp_backend.py`: one C++ file, compiled on first use, for the CPU
- `triton_backend.py`: for CUDA, ROCm and XPU

`load_cpp` compiles the C++ file ahead of the first score, in an image or beside the import of
torch."""

from isentrope.kernels.cpp_build import load as load_cpp

__all__ = ["load_cpp"]
