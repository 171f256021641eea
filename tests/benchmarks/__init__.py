"""Benchmarks: ratios from interleaved runs, never timed unit tests. `make bench` runs them all.

- `token_scores.py`: five quantities against one read of the logits and against peers' two; time and
    memory
- `observed_step.py`: what gate, log and step of an observed step cost, and what they add to a
    training step
- `trl_step.py`: a TRL step with a probe attached and without
- `numerics.py`: errors of ours and of peers against float64
- `delivery.py`: a step from the training loop to a reader, in turns with other trackers
    (`tracker_step.py`)
- `collapse_and_cure.py`: the reference run, whose entropy collapses, and Clip_V of the same seed

By themselves, `python -m tests.benchmarks.NAME`:

- `storage.py`: bytes and seconds of the store; `storage ingest`: what a flooded server takes
    (`storage_ingest.py`)
- `ingest_databases.py`: reports a second on SQLite and PostgreSQL
- `performance_fit.py`: how often the entropy-performance fit is right, on series of known truth
- `pages.py`: a run's page in Chromium, against a server and a live run (`page_run.py`)
- `rank_exchange.py`: the exchange of all ranks once a step
- `triton_compile.py`: registers and spills of the compiled Triton kernels, no GPU needed
- `gpu.py`: kernels, head and step on a device
"""
