"""A training process with a real probe: a table of logits, AdamW, and steps that take a while.

Run as `python -m tests.system.observed_loop STEPS SECONDS_PER_STEP`; prints the run's id, and at the end the longest
time the probe kept the loop waiting.
"""

from __future__ import annotations

import sys
import time

import torch

import isentrope


def main(steps: int, seconds_per_step: float) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    table = torch.nn.Parameter(torch.randn(512, 32))
    optimizer = torch.optim.AdamW([table], lr=1e-2)
    probe = isentrope.Probe("observed", planned_steps=steps)
    print(probe.run_id, flush=True)
    longest_wait = 0.0
    for step in range(steps):
        token_ids = torch.distributions.Categorical(logits=table.detach()).sample()
        advantages = (token_ids % 4 == 0).float() * 2 - 0.5
        scores = probe.score(table, token_ids)
        loss = -(probe.gate(scores, advantages) * advantages).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        started = time.perf_counter()
        probe.log({"reward/mean": (token_ids % 4 == 0).float().mean()})
        probe.step(step, optimizer)
        longest_wait = max(longest_wait, time.perf_counter() - started)
        time.sleep(seconds_per_step)
    probe.finish()
    print(f"longest wait {longest_wait:.3f}", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
