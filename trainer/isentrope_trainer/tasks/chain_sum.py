"""Chain sums: add and subtract up to eight digits, from left to right.

A problem reads `7 - 3 + 9 =`, an answer is a chain of totals such as `4 13`, one token a number; the last one counts.
Demonstrations write every total or, from a random place on, only the last: quicker, and harder to get right. What is left
to learn by trial is that writing the whole chain pays.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from itertools import accumulate
from typing import Any

import reasoning_gym
from reasoning_gym.dataset import ProceduralDataset

from isentrope_trainer.tasks.base import Task, is_held_out

MIN_TERMS, MAX_TERMS = 3, 8
_LARGEST_TOTAL = 9 * MAX_TERMS


class ChainSum(Task):
    """Sums, one total after the other."""

    words = ("=", "+", "-", *map(str, range(-_LARGEST_TOTAL, _LARGEST_TOTAL + 1)))
    longest_answer = MAX_TERMS

    def _make_datasets(self) -> list[ProceduralDataset]:
        return [
            reasoning_gym.create_dataset(
                "chain_sum", min_terms=MIN_TERMS, max_terms=MAX_TERMS, min_digits=1, max_digits=1, seed=0
            )
        ]

    def in_words(self, entry: Mapping[str, Any]) -> str:
        return f"{entry['metadata']['expression']} ="

    def key(self, entry: Mapping[str, Any]) -> str:
        return self.in_words(entry)

    def read(self, text: str) -> str | None:
        last = text.split()[-1:]
        return last[0] if last and last[0].lstrip("-").isdecimal() else None

    def demonstration(self, noise: float, generator: random.Random) -> tuple[str, str]:
        while True:
            first, *others = (generator.randint(0, 9) for _ in range(generator.randint(MIN_TERMS, MAX_TERMS)))
            steps = [(generator.choice("+-"), term) for term in others]
            prompt = " ".join([str(first), *(f"{sign} {term}" for sign, term in steps), "="])
            if not is_held_out(prompt):
                break
        totals = list(accumulate((term if sign == "+" else -term for sign, term in steps), initial=first))[1:]
        if generator.random() < noise:
            totals = [*totals[: generator.randrange(len(totals))], totals[-1]]
        return prompt, " ".join(map(str, totals))


TASK = ChainSum
