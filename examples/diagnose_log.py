"""Ask a log that exists why its run does not learn. No server, nothing is stored.

    isentrope diagnose trainer_state.json   # your own run: TRL's state, JSONL, CSV, TensorBoard
    python examples/diagnose_log.py         # writes the log of a made-up run, and asks

The made-up run solves its problems too well: soon all completions of a group earn the same reward,
so no advantage is left to learn from.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
from pathlib import Path


def made_up_log(steps: int = 200, seed: int = 0) -> list[dict[str, float]]:
    """One row a step, under TRL's names, with the groups' place as the probe logs it."""
    noise = random.Random(seed)
    rows = []
    for step in range(1, steps + 1):
        progress = min(1.0, step / 120)
        one_reward = min(1.0, max(0.0, progress + noise.gauss(0, 0.02)))
        rows.append(
            {
                "step": step,
                "reward": 0.3 + 0.69 * progress + noise.gauss(0, 0.01),
                "reward_std": 0.4 * (1 - progress) + 0.01,
                "frac_reward_zero_std": one_reward,
                "group/all_right": one_reward,
                "group/all_wrong": 0.0,
                "entropy": 1.2 - 0.2 * progress + noise.gauss(0, 0.02),
                "completions/mean_length": 200 + noise.gauss(0, 5),
                "grad_norm": 0.5 * (1.05 - progress) + abs(noise.gauss(0, 0.02)),
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description="Write a log and diagnose it.")
    parser.add_argument("--log", type=Path, default=Path("build/examples/log.jsonl"))
    arguments = parser.parse_args()
    arguments.log.parent.mkdir(parents=True, exist_ok=True)
    arguments.log.write_text("".join(json.dumps(row) + "\n" for row in made_up_log()))
    # In a terminal: isentrope diagnose build/examples/log.jsonl
    subprocess.run([sys.executable, "-m", "isentrope", "diagnose", str(arguments.log)], check=True)


if __name__ == "__main__":
    main()
