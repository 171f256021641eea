"""Expressions for the policy to imitate before it is reinforced: half of them solve their problem, half don't.

They have the shapes in which the task's generator writes its own answers. The noise keeps the policy's entropy high:
what is left to learn by trial is which of the many well-formed expressions hits the target.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from fractions import Fraction

import torch
from torch import Tensor

from isentrope_trainer.tasks.countdown import MAX_TARGET, MAX_VALUE, MIN_TARGET, MIN_VALUE
from isentrope_trainer.tasks.vocabulary import (
    EOS,
    MAX_COMPLETION_LENGTH,
    NUMBERS_PER_PROBLEM,
    PAD_ID,
    encode_prompt,
    encode_words,
)

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


def demonstration_batch(size: int, noise: float, generator: random.Random) -> tuple[Tensor, Tensor]:
    """Prompts and completions for one supervised step.

    Args:
        noise: share of completions that use the right numbers in a random expression, whatever its value.

    Returns:
        Prompts [size, prompt length] and completions [size, completion length], padded on the right.
    """
    pairs = [_demonstration(noise, generator) for _ in range(size)]
    return torch.tensor([prompt for prompt, _ in pairs]), torch.tensor([completion for _, completion in pairs])


def _demonstration(noise: float, generator: random.Random) -> tuple[list[int], list[int]]:
    numbers, target, words = _solved_problem(generator)
    if generator.random() < noise:
        words = _words(generator.choice(tuple(SHAPES)), generator.sample(numbers, len(numbers)))
    completion = encode_words([*words, EOS])
    padding = [PAD_ID] * (MAX_COMPLETION_LENGTH - len(completion))
    return encode_prompt(generator.sample(numbers, len(numbers)), target), completion + padding


def _solved_problem(generator: random.Random) -> tuple[list[int], int, list[str]]:
    while True:
        numbers = [generator.randint(MIN_VALUE, MAX_VALUE) for _ in range(NUMBERS_PER_PROBLEM)]
        shape = generator.choice(tuple(SHAPES))
        value = SHAPES[shape](*map(Fraction, numbers))
        if value.denominator == 1 and MIN_TARGET <= value <= MAX_TARGET:
            return numbers, int(value), _words(shape, numbers)


def _words(shape: str, numbers: list[int]) -> list[str]:
    number_of = dict(zip("abc", map(str, numbers), strict=True))
    return [number_of.get(word, word) for word in shape.split()]
