"""What a task is: an endless sequence of problems in two splits, and the judge of answers to them.

Problems and verifiers are those of `reasoning-gym`. A task words a problem either in the few words
of a vocabulary of its own, for the small models of this package, or as the question that
`reasoning-gym` asks, for any other language model.

Problems are split by what they ask, not by their number: a hash reserves one problem in eight for
the held-out split, and training skips those. So no problem is in both, however long a run is. The
held-out problems are the same for every seed."""

from __future__ import annotations

import hashlib
import itertools
import random
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, ClassVar, Literal

from reasoning_gym.dataset import ProceduralDataset
from reasoning_gym.utils import extract_answer

from isentrope_trainer.settings import QUESTION_TOKENS, TaskConfig
from isentrope_wire.errors import ConfigurationError

Split = Literal["train", "held_out"]

SOLVED, WRONG = 1.0, 0.0
"""Rewards of an answer."""

HELD_OUT_ONE_IN = 8
# reasoning-gym seeds problem i of a dataset with seed + i, so neighbouring seeds would share all
# problems but one.
_SEED_STRIDE = 1_000_003
_FIRST_HELD_OUT = 10**12
_FIRST_REPLACEMENT = 10**9
_MOST_DRAWS_WITHOUT_A_NEW_ONE = 2_000


@dataclass(frozen=True, slots=True)
class Problem:
    prompt: str
    """What the model reads."""
    entry: Mapping[str, Any]
    """The dataset's entry, for the verifier."""


class Task(ABC):
    """A sequence of problems that the same seed repeats, and the judge of answers to them."""

    words: ClassVar[tuple[str, ...]]
    """The vocabulary of its own wording, without the markers that every vocabulary has."""
    longest_answer: ClassVar[int]
    """Tokens of an answer in its own words, its end included."""

    def __init__(
        self,
        seed: int,
        config: TaskConfig = TaskConfig(),  # noqa: B008
        *,
        hold_out: bool = False,
    ) -> None:
        """`seed` is that of the training problems; without a split to hold out, training takes all
        problems."""
        self._config = config
        self._hold_out = hold_out
        self._first = seed * _SEED_STRIDE
        self._datasets = self._make_datasets()
        self._held_out: dict[str, Problem] = {}
        self._next_held_out = _FIRST_HELD_OUT

    @property
    def max_tokens(self) -> int:
        """Length limit of a completion, its end included."""
        if self._config.max_tokens is not None:
            return self._config.max_tokens
        if self._config.wording == "words":
            return self.longest_answer
        return QUESTION_TOKENS

    def problem(self, index: int, split: Split = "train") -> Problem:
        """Problem number `index` of a split; the same task, seed and index always give the same
        one.
        ConfigurationError: the task holds out no problems, or has no more of them."""
        if split == "train":
            entries = (
                self._entry(self._first + index + again * _FIRST_REPLACEMENT)
                for again in itertools.count()
            )
            return self._problem(
                next(one for one in entries if not (self._hold_out and is_held_out(self.key(one))))
            )
        if not self._hold_out:
            raise ConfigurationError("This task holds out no problems: make it with hold_out=True.")
        while len(self._held_out) <= index:
            self._find_held_out()
        return next(itertools.islice(self._held_out.values(), index, None))

    def reward(self, problem: Problem, completion: str | None) -> float:
        """`SOLVED` where the verifier accepts the completion; `WRONG` for anything else, such as
        None where the length limit ended it."""
        if completion is None:
            answer = None
        else:
            answer = self.read(extract_answer(completion) or completion)
        if answer is None or not self.accepts(problem, answer):
            return WRONG
        return SOLVED

    def accepts(self, problem: Problem, answer: str) -> bool:
        """Whether the verifier calls an answer right. It gives part of the reward to some wrong
        ones."""
        return bool(self._datasets[0].score_answer(answer, problem.entry) == SOLVED)

    @abstractmethod
    def _make_datasets(self) -> list[ProceduralDataset]:
        """The generators of problems; they take turns."""

    @abstractmethod
    def problem_words(self, entry: Mapping[str, Any]) -> str:
        """The problem in words of the vocabulary, apart by one space."""

    @abstractmethod
    def key(self, entry: Mapping[str, Any]) -> str:
        """What the problem asks; the same for problems that differ only in the order of what is
        given."""

    @abstractmethod
    def read(self, text: str) -> str | None:
        """The answer that a text holds, as the verifier takes it; None where it holds none."""

    @abstractmethod
    def demonstration(self, noise: float, generator: random.Random) -> tuple[str, str]:
        """A problem and an answer in words of the vocabulary, to imitate before reinforcement; a
        share `noise` of the answers need not be right."""

    def _entry(self, number: int) -> Mapping[str, Any]:
        entry: Mapping[str, Any] = self._datasets[number % len(self._datasets)][number]
        return entry

    def _find_held_out(self) -> None:
        for number in range(
            self._next_held_out, self._next_held_out + _MOST_DRAWS_WITHOUT_A_NEW_ONE
        ):
            entry = self._entry(number)
            if is_held_out(self.key(entry)) and self.problem_words(entry) not in self._held_out:
                self._next_held_out = number + 1
                self._held_out[self.problem_words(entry)] = self._problem(entry)
                return
        raise ConfigurationError(
            f"The task has no more than {len(self._held_out)} held-out problems; evaluate on fewer."
        )

    def _problem(self, entry: Mapping[str, Any]) -> Problem:
        return Problem(
            (
                self.problem_words(entry)
                if self._config.wording == "words"
                else entry["question"].strip()
            ),
            entry,
        )


def numbers_to_target(numbers: Sequence[int], target: int) -> str:
    """A problem of some numbers and a target in words: `3 5 7 -> 26 :`."""
    return f"{' '.join(map(str, numbers))} -> {target} :"


def is_held_out(key: str) -> bool:
    """Whether the problem with this key belongs to the held-out split, where a task has one."""
    return (
        int.from_bytes(hashlib.blake2b(key.encode(), digest_size=4).digest()) % HELD_OUT_ONE_IN == 0
    )


def make_task(seed: int, config: TaskConfig, *, hold_out: bool = False) -> Task:
    task: Task = import_module(f"isentrope_trainer.tasks.{config.name}").TASK(
        seed, config, hold_out=hold_out
    )
    return task
