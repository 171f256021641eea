"""Chain sums: add and subtract up to six digits, from left to right.

A problem reads `7 -3 +9 . . . =`, filled up to one length, and an answer is the chain of totals, `4
13`, one token a number; the verifier reads the last. Some demonstrations slip: a total is off by
one or two, and the chain goes on from there. What is left to learn by trial is to slip less.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from typing import Any

import reasoning_gym
from reasoning_gym.dataset import ProceduralDataset

from isentrope_trainer.tasks.base import Task, is_held_out

MIN_TERMS, MAX_TERMS = 3, 6
_FILLER = "."
_SLIPS = (-2, -1, 1, 2)
_SLIP_CHANCE = 0.3
"""Chance that a slip is made in a total of a demonstration that may have slips."""
_LARGEST_TOTAL = (9 + max(_SLIPS)) * MAX_TERMS


class ChainSum(Task):
    """Sums, one total after the other."""

    words = (
        *("=", _FILLER),
        *(f"{sign}{digit}" for sign in "+-" for digit in range(10)),
        *map(str, range(-_LARGEST_TOTAL, -9)),
        *map(str, range(_LARGEST_TOTAL + 1)),
    )
    longest_answer = MAX_TERMS

    def _make_datasets(self) -> list[ProceduralDataset]:
        return [
            reasoning_gym.create_dataset(
                "chain_sum",
                min_terms=MIN_TERMS,
                max_terms=MAX_TERMS,
                min_digits=1,
                max_digits=1,
                seed=0,
            )
        ]

    def problem_words(self, entry: Mapping[str, Any]) -> str:
        return _prompt(
            entry["metadata"]["expression"].replace("+ ", "+").replace("- ", "-").split()
        )

    def key(self, entry: Mapping[str, Any]) -> str:
        return self.problem_words(entry)

    def read(self, text: str) -> str | None:
        if self._config.wording == "question":
            # Language models write sentences around their answer.
            numbers = re.findall(r"[+-]?\d+", text)
            return numbers[-1] if numbers else None
        last = text.split()[-1:]
        if last and last[0].lstrip("+-").isdecimal():
            return last[0]
        return None

    def demonstration(self, noise: float, generator: random.Random) -> tuple[str, str]:
        while True:
            first, *others = (
                generator.randint(0, 9) for _ in range(generator.randint(MIN_TERMS, MAX_TERMS))
            )
            terms = [str(first), *(f"{generator.choice('+-')}{term}" for term in others)]
            if not is_held_out(_prompt(terms)):
                break
        may_slip = generator.random() < noise
        total, totals = first, []
        for term in terms[1:]:
            total += int(term)
            if may_slip and generator.random() < _SLIP_CHANCE:
                total += generator.choice(_SLIPS)
            totals.append(str(total))
        return _prompt(terms), " ".join(totals)


TASK = ChainSum


def _prompt(terms: list[str]) -> str:
    return " ".join([*terms, *[_FILLER] * (MAX_TERMS - len(terms)), "="])
