"""The reference trainer: GRPO on a verifiable task, written against the probe's public names alone.

Read `loop.py` first. Then:

- `tasks/`: what the policy is asked to do, and how an answer is judged
- `models/`: the policy and its supervised warm start
- `rollout.py`, `algorithms/`: sampling, advantages, loss
- `reference_run.py`: warm start, probe and loop put together
- `figures/`: one file per reproduced figure
- `commands.py`, `server_process.py`: `isentrope train` and `isentrope demo`
- `record.py`, `recording.py`, `replay.py`: the recorded run of `isentrope demo --replay`
"""
