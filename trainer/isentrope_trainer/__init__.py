"""The reference trainer: reinforcement on verifiable tasks, written against the probe's public
names alone.

Read `loop.py` first. Then:

- `settings.py`: all that determines a run, and the table of algorithms
- `tasks/`: what the policy is asked to do, and how an answer is judged
- `models/`: the policy, its sampler, what is sampled, and its supervised warm start
- `algorithms/`: advantages and losses
- `training_state.py`: what changes while a run trains, and checkpoints; the processes that share it
- `reference_run.py`: warm start, probe and loop put together
- `commands.py`, `server_process.py`: `isentrope train` and `isentrope demo`
- `recording.py`: the recorded run of `isentrope demo --replay`

Beside it, in `papers/`, which a clone has and the wheel has not: the papers' figures, and the
script that records that run.
"""
