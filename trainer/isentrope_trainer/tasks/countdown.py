"""Countdown: use each of three numbers once and reach the target. Problems and verifier are `reasoning-gym`'s."""

from __future__ import annotations

import ast
import itertools
import operator
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import reasoning_gym

from isentrope_trainer.tasks.vocabulary import MAX_COMPLETION_LENGTH, MAX_NUMBER, NUMBERS_PER_PROBLEM, prompt_text

MIN_VALUE, MAX_VALUE = 1, 10
MIN_TARGET, MAX_TARGET = 1, MAX_NUMBER
OPERATORS = ("+", "-", "*")
SOLVED = 1.0
"""What the verifier answers for a solution; it gives 0.05 for a wrong value and 0.01 for what it can't read."""

# reasoning-gym seeds problem i of a dataset with seed + i, so neighbouring seeds would share all problems but one.
_SEED_STRIDE = 1_000_003
_SPLITS = {"train": 0, "held_out": _SEED_STRIDE // 2}
"""What a split's problems are numbered from; a run takes a few ten thousand of them."""
_CACHED_VERDICTS = 100_000


@dataclass(frozen=True, slots=True)
class CountdownProblem:
    """One problem, with the dataset entry the verifier wants to see."""

    numbers: tuple[int, ...]
    target: int
    entry: Mapping[str, Any]

    @property
    def prompt(self) -> str:
        """The problem in the words of `tasks/vocabulary.py`."""
        return prompt_text(self.numbers, self.target)


class Countdown:
    """An endless, repeatable sequence of problems, and the judge of answers to them."""

    max_tokens = MAX_COMPLETION_LENGTH
    """Of an answer in the words of `tasks/vocabulary.py`, its end included."""

    def __init__(self, seed: int) -> None:
        self._datasets = {
            split: reasoning_gym.create_dataset(
                "countdown",
                min_numbers=NUMBERS_PER_PROBLEM,
                max_numbers=NUMBERS_PER_PROBLEM,
                min_value=MIN_VALUE,
                max_value=MAX_VALUE,
                min_target=MIN_TARGET,
                max_target=MAX_TARGET,
                operators=OPERATORS,
                seed=seed * _SEED_STRIDE + offset,
            )
            for split, offset in _SPLITS.items()
        }
        self._verdicts: dict[tuple[tuple[int, ...], int, str], float] = {}

    def problem(self, index: int, split: str = "train") -> CountdownProblem:
        """Problem number `index` of a split; the same seed and index always give the same one."""
        entry = self._datasets[split][index]
        return CountdownProblem(tuple(entry["metadata"]["numbers"]), entry["metadata"]["target"], entry)

    def reward(self, problem: CountdownProblem, answer: str) -> float:
        """1.0 for an expression the verifier accepts, 0.0 for anything else.

        Args:
            answer: the completion's text: an expression with its words apart by spaces.
        """
        if not _is_safe_to_parse(answer) or _value(answer) != problem.target:
            return 0.0
        # The verifier parses with sympy, at 0.2 to 0.4 ms an answer: it is asked about those alone that come to the
        # target, and once, for a policy repeats itself.
        key = (problem.numbers, problem.target, answer)
        if key not in self._verdicts:
            if len(self._verdicts) >= _CACHED_VERDICTS:
                self._verdicts.clear()
            self._verdicts[key] = 1.0 if self._datasets["train"].score_answer(answer, problem.entry) == SOLVED else 0.0
        return self._verdicts[key]


def _is_safe_to_parse(answer: str) -> bool:
    # sympy joins `* *` to the power operator, which countdown doesn't have: `15 * * 15 * * 15` would never return.
    # `/ /` becomes a floor division, which it doesn't have either.
    words = answer.split()
    return not any(left == right and left in "*/" for left, right in itertools.pairwise(words))


_OPERATIONS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}


def _value(answer: str) -> Fraction | None:
    """What an expression comes to, exactly; None for anything else."""
    try:
        return _value_of(ast.parse(answer, mode="eval").body)
    except (SyntaxError, ZeroDivisionError):
        return None


def _value_of(node: ast.expr) -> Fraction | None:
    match node:
        case ast.Constant(value=int(number)):
            return Fraction(number)
        case ast.UnaryOp(op=ast.USub() | ast.UAdd() as sign, operand=inner):
            value = _value_of(inner)
            return value if value is None or isinstance(sign, ast.UAdd) else -value
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATIONS:
            first, second = _value_of(left), _value_of(right)
            return None if first is None or second is None else _OPERATIONS[type(op)](first, second)
    return None
