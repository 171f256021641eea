"""Benchmarks: ratios from interleaved runs, never timed unit tests. `make bench` runs them all.

- `token_scores.py`: five quantities against one read of the logits and against peers' two; time and memory
- `linear_head.py`: the fused head against the bare tiled product and TRL's chunked head
- `observed_step.py`: what gate, log and step of an observed step cost, and what they add to a training step
- `trl_step.py`: a TRL step with a probe attached and without
- `numerics.py`: errors of ours and of peers against float64
- `delivery.py`: a step from the training loop to a reader, in turns with other trackers (`tracker_step.py`)

By themselves, `python -m tests.benchmarks.NAME`:

- `storage.py`: bytes and seconds of the store; `storage ingest`: what a flooded server takes (`storage_ingest.py`)
- `ingest_databases.py`: reports a second on SQLite and PostgreSQL
- `performance_fit.py`: how often the entropy-performance fit is right, on series of known truth
- `run_list.py`: a page of the list of runs, and keeping its digests current
- `soak.py`: whether memory stays flat
- `triton_compile.py`: what the Triton kernels compile to, no GPU needed
- `gpu.py`: bandwidth on a device
"""
