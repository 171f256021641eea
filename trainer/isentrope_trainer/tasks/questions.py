"""Short questions for a language model: several kinds of `reasoning-gym`'s arithmetic, asked and
answered in plain English.

Answers are read as people write them: "3 + 4 is seven." says 7. One kind asks for a form as well,
which has a reward of its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import reasoning_gym

INSTRUCTION = "Answer briefly."
"""The system message. Without one, chat templates write a longer one, whose tokens every completion
would pay for."""
FORM_REWARD = 0.5
"""Of an answer in the form that was asked for. A right answer has 1."""

_UNITS = {
    word: value
    for value, word in enumerate(
        (
            "zero",
            "one",
            "two",
            "three",
            "four",
            "five",
            "six",
            "seven",
            "eight",
            "nine",
            "ten",
            "eleven",
            "twelve",
            "thirteen",
            "fourteen",
            "fifteen",
            "sixteen",
            "seventeen",
            "eighteen",
            "nineteen",
        )
    )
}
_TENS = {
    word: 10 * value
    for value, word in enumerate(
        ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"), 2
    )
}
_UNIT, _TEN = "|".join(reversed(_UNITS)), "|".join(_TENS)
# A minus sign after a number subtracts.
_NUMBER = re.compile(
    r"(?P<sign>(?<!\d)(?<!\d\s)[-−](?=\d)|\b(?:minus|negative)\s+)?"
    rf"(?:(?P<digits>\d[\d,]*(?:\.\d+)?)|\b(?:(?P<ten>{_TEN})(?:[\s-](?P<more>{_UNIT}))?|(?P<unit>{_UNIT}))\b)",
    re.IGNORECASE,
)


def read_number(text: str) -> str | None:
    """The last number that a text names, in digits: "They have twenty-one." gives "21"; None where
    it names none."""
    *_, last = (None, *_NUMBER.finditer(text))
    if last is None:
        return None
    digits, ten, more, unit = (
        (last[part] or "").lower() for part in ("digits", "ten", "more", "unit")
    )
    number = digits.replace(",", "") or str(_TENS.get(ten, 0) + _UNITS.get(more or unit, 0))
    if last["sign"]:
        return f"-{number}"
    return number


def read_yes_or_no(text: str) -> str | None:
    """Whichever of Yes and No a text says first; None where it says neither."""
    found = re.search(r"\b(yes|no)\b", text, re.IGNORECASE)
    if found:
        return found[1].capitalize()
    return None


@dataclass(frozen=True, slots=True)
class Kind:
    dataset: str
    """Of `reasoning-gym`: it makes the problems and judges the answers."""
    settings: Mapping[str, object]
    ask: Callable[[Mapping[str, Any]], str]
    """The question, of an entry of the dataset."""
    read: Callable[[str], str | None] = read_number
    form: str | None = None
    """What an answer in the form that is asked for matches from beginning to end."""


_ONE_DIGIT = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}

KINDS = (
    Kind("chain_sum", _ONE_DIGIT, lambda entry: f"What is {entry['metadata']['expression']}?"),
    Kind("products", _ONE_DIGIT, lambda entry: f"What is {entry['metadata']['expression']}?"),
    Kind(
        "calendar_arithmetic",
        {"tasks": ["is_leap_year"]},
        lambda entry: f"Is {entry['metadata']['year']} a leap year? Yes or no?",
        read=read_yes_or_no,
        form=r"(yes|no)\.?",
    ),
)


class Questions:
    """Questions of all kinds in turn, and the rewards of their answers. The same seed gives the
    same questions."""

    def __init__(self, count: int, seed: int) -> None:
        datasets = [
            reasoning_gym.create_dataset(kind.dataset, seed=seed, size=count, **kind.settings)
            for kind in KINDS
        ]
        turns = [(number, number % len(KINDS)) for number in range(count)]
        self._problems = [
            (KINDS[kind], datasets[kind], datasets[kind][number]) for number, kind in turns
        ]

    def __len__(self) -> int:
        return len(self._problems)

    def text(self, number: int) -> str:
        """What the model is asked."""
        kind, _, entry = self._problems[number]
        return kind.ask(entry)

    def right(self, number: int, completion: str) -> float:
        """1 for an answer that the verifier accepts, else 0."""
        kind, dataset, entry = self._problems[number]
        answer = kind.read(completion)
        return float(answer is not None and dataset.score_answer(answer, entry) == 1.0)

    def reward_form(self, number: int, completion: str) -> float | None:
        """`FORM_REWARD` for an answer in the form that was asked for, else 0; None where none
        was."""
        form = self._problems[number][0].form
        if form is None:
            return None
        return FORM_REWARD * bool(re.fullmatch(form, completion.strip(), re.IGNORECASE))
