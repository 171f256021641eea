"""Water jugs: fill, empty and pour three jugs until one of them holds the target. The task with
long chains.

A problem reads `3 5 7 -> 4 :`, the jugs' capacities and the target. An answer is a chain of moves,
each followed by what the jugs then hold: `fill-B 0 5 0 B->A 3 2 0 ...`. The verifier reads the
moves alone; the rest is what the policy thinks. Most moves lead somewhere, so that nearly every
move is a fork, and the three tokens after it follow from it."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from typing import Any

import reasoning_gym
from reasoning_gym.dataset import ProceduralDataset

from isentrope_trainer.tasks.base import Task, is_held_out, numbers_to_target

JUGS = "ABC"
LEVELS = (1, 2, 3, 4)
"""Difficulties, which take turns. A problem of level n needs at least n moves, its jugs hold 3 to n
+ 3."""
MOST_MOVES = 6
_SMALLEST, _LARGEST = 3, 3 + max(LEVELS)
_TRIES = 20
"""Walks before a demonstration turns to another problem, as some can't be solved in
`MOST_MOVES`."""

_State = tuple[int, ...]
MOVES = {
    **{f"fill-{jug}": f"fill {jug}" for jug in JUGS},
    **{f"empty-{jug}": f"empty {jug}" for jug in JUGS},
    **{
        f"{source}->{goal}": f"pour {source}->{goal}"
        for source in JUGS
        for goal in JUGS
        if source != goal
    },
}
"""Each move's word, and how the verifier spells it."""


class Jugs(Task):
    """Puzzles that need several moves, and have many solutions."""

    words = ("->", ":", *MOVES, *map(str, range(_LARGEST + 1)))
    longest_answer = MOST_MOVES * (1 + len(JUGS)) + 1

    def _make_datasets(self) -> list[ProceduralDataset]:
        return [
            reasoning_gym.create_dataset("jugs", num_jugs=len(JUGS), difficulty=level, seed=0)
            for level in LEVELS
        ]

    def problem_words(self, entry: Mapping[str, Any]) -> str:
        puzzle = entry["metadata"]["puzzle"]
        return numbers_to_target(puzzle["jug_capacities"], puzzle["target"])

    def key(self, entry: Mapping[str, Any]) -> str:
        puzzle = entry["metadata"]["puzzle"]
        return numbers_to_target(sorted(puzzle["jug_capacities"]), puzzle["target"])

    def read(self, text: str) -> str | None:
        """A list of moves as JSON, as the question asks for, or moves among other words."""
        if text.lstrip().startswith("["):
            return text
        moves = [MOVES[word] for word in text.split() if word in MOVES]
        if moves:
            return json.dumps(moves)
        return None

    def demonstration(self, noise: float, generator: random.Random) -> tuple[str, str]:
        """A walk at random that comes to no state twice, until a jug holds the target or
        `MOST_MOVES` are made."""
        may_fail = generator.random() < noise
        while True:
            largest = _SMALLEST + generator.choice(LEVELS)
            capacities = [generator.randint(_SMALLEST, largest) for _ in JUGS]
            target = generator.randint(1, max(capacities))
            if is_held_out(numbers_to_target(sorted(capacities), target)):
                continue
            for _ in range(1 if may_fail else _TRIES):
                walk = _walk(capacities, target, generator)
                if may_fail or target in walk[-1][1]:
                    words = [f"{move} {' '.join(map(str, state))}" for move, state in walk]
                    return numbers_to_target(capacities, target), " ".join(words)


TASK = Jugs


def _walk(capacities: list[int], target: int, generator: random.Random) -> list[tuple[str, _State]]:
    """Moves, each with what the jugs hold after it."""
    state: _State = (0,) * len(capacities)
    walk: list[tuple[str, _State]] = []
    seen = {state}
    while len(walk) < MOST_MOVES and target not in state:
        choices = [
            (move, after) for move in MOVES if (after := _move(move, state, capacities)) not in seen
        ]
        if not choices:
            break
        move, state = generator.choice(choices)
        seen.add(state)
        walk.append((move, state))
    return walk


def _move(move: str, state: _State, capacities: list[int]) -> _State:
    holds = list(state)
    if "->" in move:
        source, goal = (JUGS.index(jug) for jug in move.split("->"))
        poured = min(holds[source], capacities[goal] - holds[goal])
        holds[source] -= poured
        holds[goal] += poured
    else:
        verb, jug = move.split("-")
        if verb == "fill":
            holds[JUGS.index(jug)] = capacities[JUGS.index(jug)]
        else:
            holds[JUGS.index(jug)] = 0
    return tuple(holds)
