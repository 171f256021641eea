"""Anneal the entropy: hold it high while the policy explores, then let it fall along a line.

    python examples/hold_with_schedule.py --steps 100

The probe moves the clipping thresholds of each step so that the entropy follows the target. For a
live run, from a terminal: isentrope control RUN --hold-target "1:100% 30:80% 100:55%"
"""

from __future__ import annotations

import argparse

from own_grpo_loop import train


def main() -> None:
    parser = argparse.ArgumentParser(description="A hold whose target falls over the run.")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()

    # Points of step and level: a share of the early level, or nats. Straight lines between them.
    schedule = [[1, "100%"], [arguments.steps * 3 // 10, "80%"], [arguments.steps, "55%"]]
    free = train(arguments.steps, seed=arguments.seed, name="free")
    held = train(arguments.steps, seed=arguments.seed, name="held", hold={"target_curve": schedule})

    print("step   left alone   held   target (nats)")
    left_alone, entropies = free.show().entropies, held.show().entropies
    targets = held.show().targets
    for step in sorted(entropies)[:: max(1, arguments.steps // 10)]:
        target = targets.get(step)
        shown = "-" if target is None else f"{target:.2f}"
        print(f"{step:4}   {left_alone[step]:10.2f}   {entropies[step]:4.2f}   {shown}")
    print(held.show())


if __name__ == "__main__":
    main()
