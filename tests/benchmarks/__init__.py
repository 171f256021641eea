"""Benchmarks: ratios from interleaved runs, never timed unit tests. `make bench` runs them all.

- `token_scores.py`: five quantities against one read of the logits and against peers' two; time and memory
- `linear_head.py`: the fused head against the bare tiled product and TRL's chunked head
- `probe_share.py`: what attaching the probe adds to a training step
- `trl_step.py`: a TRL step with a probe attached and without
- `numerics.py`: errors of ours and of peers against float64
- `triton_compile.py`: what the Triton kernels compile to, no GPU needed, by itself:
  `python -m tests.benchmarks.triton_compile`
- `gpu.py`: bandwidth on a device, by itself: `python -m tests.benchmarks.gpu`
"""
