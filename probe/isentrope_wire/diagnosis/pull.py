"""What pulls the entropy: the part of the unit prediction that changes it most in one direction."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean

from isentrope_wire import metrics
from isentrope_wire.numbers import Answer, percent

CAUSE_STEPS = 10
"""Steps over which the parts of the unit prediction are averaged."""

MECHANISM = "change/by_"
"""How the names of the parts by mechanism begin; which ones there are depends on what the loop measures."""

QUADRANTS: dict[str, str] = {
    metrics.CHANGE_POSITIVE_HIGH: "A > 0, S_c > 0",
    metrics.CHANGE_POSITIVE_LOW: "A > 0, S_c < 0",
    metrics.CHANGE_NEGATIVE_HIGH: "A < 0, S_c > 0",
    metrics.CHANGE_NEGATIVE_LOW: "A < 0, S_c < 0",
}
"""Each part of the unit prediction by sign of advantage and score, and its tokens."""


def change_parts(scalars: Mapping[str, float]) -> dict[str, float]:
    """The parts of a step's unit prediction that it measured, in nats per unit gain."""
    return {name: value for name, value in scalars.items() if name in QUADRANTS or name.startswith(MECHANISM)}


def mean_parts(steps: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Mean of every part over the steps, whose `change_parts` these are; each over the steps that have it."""
    parts: dict[str, list[float]] = {}
    for step in steps:
        for name, value in step.items():
            parts.setdefault(name, []).append(value)
    return {name: fmean(values) for name, values in parts.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause(Answer):
    """Which tokens pull the entropy most in the direction it goes, over the last ten steps."""

    quadrant: str
    """The metric of the part of the unit prediction by sign of A and S_c: change/positive_high ..."""
    share: float
    """Its share of what all such parts pull that way, in [0, 1]."""
    mechanism: str | None
    """The metric of the part by mechanism: change/by_kl_penalty ...; null where none is measured or pulls that way."""
    message: str


def cause_of(changes: Mapping[str, float], direction: int) -> Cause | None:
    """The part of the unit prediction that pulls most down (direction -1) or up (1), of the `mean_parts`, and in a sentence.

    None where no part by sign of advantage and score pulls that way, or none was measured.
    """
    pulls = {name: direction * change for name, change in changes.items() if direction * change > 0}
    quadrants = {name: pull for name, pull in pulls.items() if name in QUADRANTS}
    if not quadrants:
        return None
    quadrant = max(quadrants, key=lambda name: quadrants[name])
    share = quadrants[quadrant] / sum(quadrants.values())
    mechanism = max((name for name in pulls if name not in quadrants), key=lambda name: pulls[name], default=None)
    message = f"Tokens with {QUADRANTS[quadrant]} make {percent(share)} of the pull"
    # The policy loss is the usual part and is not reported.
    if mechanism is not None and not mechanism.endswith("policy_loss"):
        message += f"; most of it comes from the {mechanism.removeprefix(MECHANISM).replace('_', ' ')}"
    return Cause(quadrant=quadrant, share=share, mechanism=mechanism, message=f"{message}.")
