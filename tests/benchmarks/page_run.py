"""A run for the benchmark of the pages: a table of bigrams, trained at a pace, with everything a probe reports.

    python tests/benchmarks/page_run.py RUN STEPS_PER_SECOND STEPS

Prints each step and the time, in seconds since the Unix epoch, at which `probe.step` returned.
"""

from __future__ import annotations

import sys
import time
from functools import partial

import torch
from torch import nn

import isentrope

VOCABULARY, COMPLETION, BATCH = 48, 12, 32


def scored(probe: isentrope.Probe, policy: nn.Module, token_ids: torch.Tensor) -> isentrope.TokenScores:
    return probe.score(policy(token_ids[:, :-1]), token_ids[:, 1:])


def main(run: str, pace: float, steps: int) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    policy = nn.Sequential(nn.Embedding(VOCABULARY, 32), nn.Linear(32, VOCABULARY))
    optimizer = torch.optim.AdamW(policy.parameters(), lr=3e-3)
    began = time.monotonic()
    with isentrope.Probe(name="page", project="benchmark", run_id=run) as probe:
        for step in range(1, steps + 1):
            time.sleep(max(0.0, began + step / pace - time.monotonic()))
            token_ids = torch.randint(1, VOCABULARY, (BATCH, 1))
            with torch.no_grad():
                for _ in range(COMPLETION):
                    drawn = torch.multinomial(policy(token_ids[:, -1]).softmax(-1), 1)
                    token_ids = torch.cat([token_ids, drawn], dim=1)
            rewards = (token_ids[:, 1:] % 2).float().mean(dim=1)
            advantages = (rewards - rewards.mean()) / (rewards.std() + 1e-4)
            scores = scored(probe, policy, token_ids)
            logprobs = probe.gate(scores, advantages)
            loss = -(advantages.unsqueeze(1) * logprobs).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            probe.log({"reward/mean": rewards.mean(), "train/loss": loss.detach()})
            probe.step(step, optimizer, rescore=partial(scored, probe, policy, token_ids))
            print(step, time.time(), flush=True)


main(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]))
