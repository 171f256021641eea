"""Which report speaks for a step.

Steps may go backwards: a resumed run repeats some. Nothing is overwritten; what is *shown* follows three rules.
The newest incarnation speaks from its first step on, whatever older ones reported there. Within an incarnation the
lowest rank speaks for a step. Within a rank the report that came last does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from isentrope_server.store.streams import Incarnation

_LAST_STEP = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class _Place:
    """Where one stream stands among the others."""

    speaks_through: int
    age: int
    rank: int


class Timeline:
    """Built from a run's incarnations, oldest first; picks the rows that speak."""

    def __init__(self, incarnations: Sequence[Incarnation]) -> None:
        self._places: dict[int, _Place] = {}
        last = int(_LAST_STEP)
        for age, incarnation in enumerate(reversed(incarnations)):
            for stream in incarnation.streams:
                self._places[stream.key] = _Place(last, age, stream.rank)
            if incarnation.first_step is not None:
                last = min(last, incarnation.first_step - 1)

    def order_of(self, stream_key: int) -> tuple[int, int]:
        """Sorts streams so that those that speak louder come last."""
        place = self._places[stream_key]
        return -place.age, -place.rank

    def speaks_through(self, stream_key: int) -> int:
        """The last step before a newer incarnation speaks for the run."""
        return self._places[stream_key].speaks_through

    def speaking(
        self, steps: NDArray[np.int64], stream_keys: NDArray[np.int64], positions: NDArray[np.int64]
    ) -> NDArray[np.intp]:
        """Indices of the rows that speak, one per step, by rising step.

        Args:
            steps: step of each row, shape (rows,).
            stream_keys: its stream, shape (rows,).
            positions: its position, shape (rows,).
        """
        lasts, ages, ranks = self._lookup(stream_keys)
        candidates = np.flatnonzero(steps <= lasts)
        order = np.lexsort((positions[candidates], -ranks[candidates], -ages[candidates], steps[candidates]))
        by_step = candidates[order]
        is_last_of_step = np.ones(len(by_step), dtype=bool)
        is_last_of_step[:-1] = steps[by_step[1:]] != steps[by_step[:-1]]
        return by_step[is_last_of_step]

    @staticmethod
    def last_of_each_step(steps: NDArray[np.int64]) -> NDArray[np.intp] | None:
        """Indices of the rows that speak, by rising step, where louder and later ones come last; None: all do, as they
        are. Much quicker than `speaking` where little is out of order.

        Args:
            steps: of rows that speak for their steps unless a later row does, shape (rows,).
        """
        if bool((steps[1:] > steps[:-1]).all()):
            return None
        order = np.argsort(steps, kind="stable")
        in_order = steps[order]
        is_last_of_step = np.ones(len(steps), dtype=bool)
        is_last_of_step[:-1] = in_order[1:] != in_order[:-1]
        return order[is_last_of_step]

    def _lookup(self, stream_keys: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        known, inverse = np.unique(stream_keys, return_inverse=True)
        places = [self._places[int(key)] for key in known]
        lasts, ages, ranks = (
            np.array([getattr(place, name) for place in places], dtype=np.int64)[inverse]
            for name in ("speaks_through", "age", "rank")
        )
        return lasts, ages, ranks
