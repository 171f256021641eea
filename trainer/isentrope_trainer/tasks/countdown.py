"""Countdown: use each of three numbers once and reach the target.

A problem reads `3 5 7 -> 26 :`, an answer is an arithmetic expression such as `3 * 7 + 5`, one
token a number, operator or parenthesis. Half of the demonstrations solve their problem, half only
use its numbers in one of the shapes in which the generator writes its own answers: the entropy is
high, and what is left to learn by trial is which of the many well-formed expressions hits the
target."""

from __future__ import annotations

import ast
import itertools
import operator
import random
from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import lru_cache
from typing import Any

import reasoning_gym
from reasoning_gym.dataset import ProceduralDataset

from isentrope_trainer.tasks.base import Problem, Task, numbers_to_target

NUMBERS_PER_PROBLEM = 3
MIN_VALUE, MAX_VALUE = 1, 10
MIN_TARGET, MAX_TARGET = 1, 49
OPERATORS = ("+", "-", "*")

_CACHED_VERDICTS = 100_000

_Shape = Callable[[Fraction, Fraction, Fraction], Fraction]
SHAPES: dict[str, _Shape] = {
    "a + b + c": lambda a, b, c: a + b + c,
    "a + b - c": lambda a, b, c: a + b - c,
    "a - b + c": lambda a, b, c: a - b + c,
    "a - b - c": lambda a, b, c: a - b - c,
    "a * b + c": lambda a, b, c: a * b + c,
    "a * b - c": lambda a, b, c: a * b - c,
    "a * ( b + c )": lambda a, b, c: a * (b + c),
    "a * ( b - c )": lambda a, b, c: a * (b - c),
    "a * b * c": lambda a, b, c: a * b * c,
}
"""How `reasoning-gym` prints expressions of three numbers, and what they come to."""


class Countdown(Task):
    """Expressions that reach a target."""

    words = ("->", ":", "+", "-", "*", "/", "(", ")", *map(str, range(MAX_TARGET + 1)))
    longest_answer = 8

    def _make_datasets(self) -> list[ProceduralDataset]:
        self._verdicts: dict[tuple[str, str], bool] = {}
        return [
            reasoning_gym.create_dataset(
                "countdown",
                min_numbers=NUMBERS_PER_PROBLEM,
                max_numbers=NUMBERS_PER_PROBLEM,
                min_value=MIN_VALUE,
                max_value=MAX_VALUE,
                min_target=MIN_TARGET,
                max_target=MAX_TARGET,
                operators=OPERATORS,
                seed=0,
            )
        ]

    def problem_words(self, entry: Mapping[str, Any]) -> str:
        return numbers_to_target(entry["metadata"]["numbers"], entry["metadata"]["target"])

    def key(self, entry: Mapping[str, Any]) -> str:
        return numbers_to_target(sorted(entry["metadata"]["numbers"]), entry["metadata"]["target"])

    def read(self, text: str) -> str | None:
        if _is_safe_to_parse(text) and _value(text) is not None:
            return text
        return None

    def accepts(self, problem: Problem, answer: str) -> bool:
        if _value(answer) != problem.entry["metadata"]["target"]:
            return False
        # The verifier parses with sympy, at 0.2 to 0.4 ms an answer: it is asked about those alone
        # that come to the target, and once, for a policy repeats itself.
        asked = problem.prompt, answer
        if asked not in self._verdicts:
            if len(self._verdicts) >= _CACHED_VERDICTS:
                self._verdicts.clear()
            self._verdicts[asked] = super().accepts(problem, answer)
        return self._verdicts[asked]

    def demonstration(self, noise: float, generator: random.Random) -> tuple[str, str]:
        numbers, target, answer = _solved_problem(generator)
        if generator.random() < noise:
            answer = _filled_in(
                generator.choice(tuple(SHAPES)), generator.sample(numbers, len(numbers))
            )
        return numbers_to_target(generator.sample(numbers, len(numbers)), target), answer


TASK = Countdown


def _solved_problem(generator: random.Random) -> tuple[list[int], int, str]:
    while True:
        numbers = [generator.randint(MIN_VALUE, MAX_VALUE) for _ in range(NUMBERS_PER_PROBLEM)]
        shape = generator.choice(tuple(SHAPES))
        value = SHAPES[shape](*map(Fraction, numbers))
        if value.denominator == 1 and MIN_TARGET <= value <= MAX_TARGET:
            return numbers, int(value), _filled_in(shape, numbers)


def _filled_in(shape: str, numbers: list[int]) -> str:
    number_of = dict(zip("abc", map(str, numbers), strict=True))
    return " ".join(number_of.get(word, word) for word in shape.split())


def _is_safe_to_parse(answer: str) -> bool:
    # sympy joins `* *` to the power operator, which countdown doesn't have: `15 * * 15 * * 15`
    # would never return. `/ /` becomes a floor division, which it doesn't have either.
    words = answer.split()
    return not any(left == right and left in "*/" for left, right in itertools.pairwise(words))


_OPERATIONS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


@lru_cache(maxsize=_CACHED_VERDICTS)
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
            if value is None or isinstance(sign, ast.UAdd):
                return value
            return -value
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATIONS:
            first, second = _value_of(left), _value_of(right)
            return None if first is None or second is None else _OPERATIONS[type(op)](first, second)
    return None
