"""What a run logs, read as what the checks judge: one name for each quantity, whoever logged it.

The names of TRL, verl, OpenRLHF, slime and prime-rl stand in the rows of `isentrope_wire.metrics`.
Here are the names that a row cannot list: reward parts, held-out scores, KL by position."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from isentrope_wire import metrics
from isentrope_wire.diagnosis.traces import Change, Trace
from isentrope_wire.numbers import is_usable

READ = (
    metrics.ADVANTAGE_STD,
    metrics.ADVANTAGE_ZERO_FRACTION,
    metrics.ADVANTAGE_ZERO_GROUP_FRACTION,
    metrics.CLIP_FRACTION,
    metrics.COMPLETION_LENGTH_MEAN,
    metrics.COMPLETION_REPETITION,
    metrics.COMPLETION_REWARD_OF_LENGTH,
    metrics.COMPLETION_TRUNCATED,
    metrics.ENTROPY_MEAN,
    metrics.GROUP_ALL_RIGHT,
    metrics.GROUP_ALL_WRONG,
    metrics.GROUP_IDENTICAL,
    metrics.KL_OLD,
    metrics.KL_REFERENCE,
    metrics.RATIO_CLIPPED,
    metrics.RATIO_CLIPPED_HIGH,
    metrics.RATIO_CLIPPED_LOW,
    metrics.REWARD_GROUP_STD,
    metrics.REWARD_MAX,
    metrics.REWARD_MEAN,
    metrics.REWARD_MIN,
    metrics.REWARD_STD,
    metrics.SAMPLER_KL_K3,
    metrics.SAMPLER_LOGPROB_DIFFERENCE_MEAN,
    metrics.TIME_GENERATION_SECONDS,
    metrics.TIME_STEP_SECONDS,
    metrics.TOKEN_EFFECTIVE_FRACTION,
    metrics.TOKEN_GRADIENT_NOT_FINITE,
    metrics.TRAIN_GRAD_NORM,
    metrics.TRAIN_LEARNING_RATE,
    metrics.TRAIN_LOSS,
    metrics.TRAIN_NOT_FINITE,
    metrics.VALUE_EXPLAINED_VARIANCE,
    metrics.VALUE_LOSS,
)
"""The metrics that the checks read: of no other one the course is kept."""
_QUANTITIES = {name: str(row) for row in READ for name in row.names}
_PART = re.compile(r"(?:train/)?(?:rewards?|critic/score|reward_components?)[/.]([^/]+)(?:/mean)?")
_NO_PART = {"mean", "std", "min", "max", "total", "sum", "all", "median", "group_std", "overall"}
_HELD_OUT = re.compile(r"(?:val-core|val-aux|eval|val|test|validation)[/_](.+)")
_SCORE = re.compile(r"acc|score|reward|pass|solve|correct|avg|exact|success|mean@|best@")
_NO_SCORE = re.compile(
    r"std|/min|/max|worst|var\b|runtime|per_second|time|loss|len|tokens|entropy|kl|epoch|step"
    r"|clip|turns|truncated|frac_|grad|lr|count|num_|no_response|pass_rate/|right_answers|trigrams|^ratio"
)
_POSITION = re.compile(r"kl(?:_positional|/position)/(\d+)")
PART, HELD_OUT, POSITION = "part: ", "held out: ", "position: "
_MOST_NAMES, _MOST_PARTS, _MOST_POINTS = 10_000, 16, 100
"""Names that are remembered, reward parts that are followed, held-out scores that are kept."""


@lru_cache(_MOST_NAMES)
def quantity_of(name: str) -> str | None:
    """The quantity that a logged name stands for; None: none that is judged."""
    quantity = _QUANTITIES.get(name)
    if quantity is not None and not quantity.startswith("eval/"):
        return quantity
    part, position = _PART.fullmatch(name), _POSITION.fullmatch(name)
    if part is not None:
        if part[1] in _NO_PART:
            return None
        return PART + part[1]
    if position is not None:
        return POSITION + position[1]
    held_out = _HELD_OUT.fullmatch(name)
    if held_out is None or _NO_SCORE.search(held_out[1]):
        return None
    if "/" in held_out[1] and _SCORE.search(held_out[1]) is None:
        return None
    return HELD_OUT + held_out[1]


@dataclass(slots=True)
class Measures:
    """The course of all that the checks read. Call `add` with each step, in order."""

    age: int = 0
    """Steps so far that logged something."""
    traces: dict[str, Trace] = field(default_factory=dict)
    not_finite: list[str] = field(default_factory=list)
    """Names of the newest step whose value is NaN or infinite."""
    infinite: list[str] = field(default_factory=list)
    """Names of the newest step whose value is infinite."""
    spoilt: dict[str, int] = field(default_factory=dict)
    """Quantity -> steps in a row that it was NaN or infinite."""
    held_out: list[tuple[int, float]] = field(default_factory=list)
    """Index of a step, and its mean held-out score."""
    _held_out_names: list[str] = field(default_factory=list)

    def add(self, scalars: Mapping[str, float]) -> None:
        """Pass what a step logged."""
        at, self.age = self.age, self.age + 1
        values: dict[str, float] = {}
        self.not_finite, self.infinite = [], []
        for name, value in scalars.items():
            quantity = quantity_of(name)
            if quantity is None:
                continue
            if not math.isfinite(value):
                self.not_finite.append(name)
                self.infinite += [name] * math.isinf(value)
                self.spoilt[quantity] = self.spoilt.get(quantity, 0) + 1
            elif is_usable(value) and (quantity not in values or name == quantity):
                values[quantity] = value
        for quantity in values:
            self.spoilt.pop(quantity, None)
        held_out = {name: values.pop(name) for name in [*values] if name.startswith(HELD_OUT)}
        self._add_held_out(at, held_out)
        parts = sum(name.startswith(PART) for name in self.traces)
        for name, value in values.items():
            if name not in self.traces and name.startswith(PART):
                parts += 1
                if parts > _MOST_PARTS:
                    continue
            self.traces.setdefault(name, Trace()).add(at, value)

    def _add_held_out(self, at: int, scores: Mapping[str, float]) -> None:
        if not scores:
            return
        if not self._held_out_names:
            self._held_out_names = sorted(scores)
        # Another set of scores has another mean.
        if all(name in scores for name in self._held_out_names):
            values = [scores[name] for name in self._held_out_names]
            self.held_out.append((at, sum(values) / len(values)))
            del self.held_out[:-_MOST_POINTS]

    def trace(self, name: str, least: int = 1) -> Trace | None:
        """A quantity's trace; None where it has fewer values than `least`."""
        trace = self.traces.get(name)
        if trace is None or trace.count < least:
            return None
        return trace

    def change(self, name: str, first: float) -> Change | None:
        """How far a quantity moved since the step of an index; None where that is not known."""
        trace = self.traces.get(name)
        if trace is None:
            return None
        return trace.change(first)

    def newest(self, name: str) -> float | None:
        """The newest step's value of a quantity; None where that step did not measure it."""
        trace = self.traces.get(name)
        if trace is None or trace.at != self.age - 1:
            return None
        return trace.recent[-1]

    @property
    def parts(self) -> dict[str, Trace]:
        """Traces of the reward's parts, by name."""
        return {
            name.removeprefix(PART): trace
            for name, trace in self.traces.items()
            if name.startswith(PART)
        }

    @property
    def positions(self) -> list[Trace]:
        """KL by position in the completion, in order."""
        names = [name for name in self.traces if name.startswith(POSITION)]
        return [
            self.traces[name]
            for name in sorted(names, key=lambda name: int(name.removeprefix(POSITION)))
        ]
