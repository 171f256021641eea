"""The reference trainer: GRPO on a verifiable task, and the living proof of the probe's API.

Read `loop.py` first. Then:

- `tasks/`: what the policy is asked to do, and how an answer is judged
- `models/`: the policy and its supervised warm start
- `rollout.py`, `algorithms/`: sampling, advantages, loss
- `reference_run.py`: warm start, probe and loop put together
- `experiments/`: one file per reproduced figure
- `commands.py`, `server_process.py`: `isentrope train` and `isentrope demo`
- `record.py`, `recording.py`, `replay.py`: the recorded run of `isentrope demo --replay`
"""
