"""How often the guard of a control blames it for a lost reward, by how much rewards resemble the
one before: `python -m tests.benchmarks.reward_guard [RUNS]`; some 40 seconds of one core.

Made runs: 60 steps before a control, 100 under it, scatter 0.05 about a level of 0.6. The guard is
asked every tenth step."""

from __future__ import annotations

import math
import random
import sys

from isentrope_wire.diagnosis.guard import lost_reward

BEFORE, UNDER, LEVEL, SCATTER, FIRST_SEED = 60, 100, 0.6, 0.05, 5000
ALIKE = (0.0, 0.2, 0.4, 0.6, 0.8)
"""Autocorrelations of the rewards."""
CHANGES = ((0.0, 0.0), (-0.001, -0.001), (-0.002, -0.002), (0.0, -0.001), (0.0, -0.002))
"""Of the reward a step, before the control and under it."""


def make_rewards(seed: int, alike: float, before: float, under: float) -> list[float]:
    draw = random.Random(seed)
    noise, rewards = draw.gauss(0, SCATTER), []
    for step in range(BEFORE + UNDER):
        mean = LEVEL + before * min(step, BEFORE) + under * max(0, step - BEFORE)
        rewards.append(mean + noise)
        noise = alike * noise + draw.gauss(0, SCATTER * math.sqrt(1 - alike**2))
    return rewards


def is_blamed(rewards: list[float]) -> bool:
    before, under = rewards[:BEFORE], rewards[BEFORE:]
    return any(lost_reward(before, under[:steps], steps) for steps in range(10, UNDER + 1, 10))


def main(runs: int = 200) -> None:
    print("| a step before → under | " + " | ".join(map(str, ALIKE)) + " |")
    print("|---|" + "---|" * len(ALIKE))
    seeds = range(FIRST_SEED, FIRST_SEED + runs)
    for before, under in CHANGES:
        shares = [
            sum(is_blamed(make_rewards(seed, alike, before, under)) for seed in seeds) / runs
            for alike in ALIKE
        ]
        cells = " | ".join(f"{share:.0%}".replace("%", " %") for share in shares)
        print(f"| {before} → {under} | {cells} |", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
