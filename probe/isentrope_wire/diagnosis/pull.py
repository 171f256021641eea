"""What pulls the entropy: the part of the unit prediction that changes it most in one direction."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean

from isentrope_wire.metrics import (
    CHANGE_NEGATIVE_HIGH,
    CHANGE_NEGATIVE_LOW,
    CHANGE_POSITIVE_HIGH,
    CHANGE_POSITIVE_LOW,
)
from isentrope_wire.numbers import Answer, percent

CAUSE_STEPS = 10
"""Steps over which the parts of the unit prediction are averaged."""

MECHANISM = "change/by_"
"""How the names of the parts by mechanism begin; which ones there are depends on what the loop measures."""

QUADRANTS: dict[str, tuple[str, str]] = {
    CHANGE_POSITIVE_HIGH: ("A > 0, S_c > 0", "likely tokens of samples with positive advantage are reinforced"),
    CHANGE_POSITIVE_LOW: ("A > 0, S_c < 0", "unlikely tokens of samples with positive advantage are reinforced"),
    CHANGE_NEGATIVE_HIGH: ("A < 0, S_c > 0", "likely tokens of samples with negative advantage are suppressed"),
    CHANGE_NEGATIVE_LOW: ("A < 0, S_c < 0", "unlikely tokens of samples with negative advantage are suppressed"),
}
"""Each part of the unit prediction by sign of advantage and score: its tokens, and what the update does to them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pull:
    """The part of the unit prediction that changes the entropy most in one direction."""

    quadrant: str
    """The metric of the part by sign of A and S_c."""
    share: float
    """This quadrant's share of the pull in its direction, in [0, 1]."""
    mechanism: str | None
    """The metric of the part by mechanism; None where none is measured or pulls that way."""
    changes: Mapping[str, float]
    """Mean of every part over the steps, in nats per unit gain."""


def change_parts(scalars: Mapping[str, float]) -> dict[str, float]:
    """The parts of a step's unit prediction that it measured, in nats per unit gain."""
    return {name: value for name, value in scalars.items() if name in QUADRANTS or name.startswith(MECHANISM)}


def largest_pull(steps: Iterable[Mapping[str, float]], direction: int) -> Pull | None:
    """The part of the unit prediction that pulls most down (direction -1) or up (1).

    `steps` are the `change_parts` of the last steps. None where no part by sign of advantage and score pulls that way, or none
    was measured.
    """
    parts: dict[str, list[float]] = {}
    for step in steps:
        for name, value in step.items():
            parts.setdefault(name, []).append(value)
    changes = {name: fmean(values) for name, values in parts.items()}
    pulls = {name: direction * change for name, change in changes.items() if direction * change > 0}
    quadrants = {name: pull for name, pull in pulls.items() if name in QUADRANTS}
    if not quadrants:
        return None
    quadrant = max(quadrants, key=lambda name: quadrants[name])
    mechanisms = {name: pull for name, pull in pulls.items() if name not in quadrants}
    return Pull(
        quadrant=quadrant,
        share=quadrants[quadrant] / sum(quadrants.values()),
        mechanism=max(mechanisms, key=lambda name: mechanisms[name]) if mechanisms else None,
        changes=changes,
    )


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


def cause_of(steps: Iterable[Mapping[str, float]], direction: int) -> Cause | None:
    """The largest pull in a sentence; None where there is none."""
    pull = largest_pull(steps, direction)
    if pull is None:
        return None
    tokens, _ = QUADRANTS[pull.quadrant]
    message = f"Tokens with {tokens} make {percent(pull.share)} of the pull"
    # The policy loss is the usual part and is not reported.
    if pull.mechanism is not None and not pull.mechanism.endswith("policy_loss"):
        message += f"; most of it comes from the {pull.mechanism.removeprefix(MECHANISM).replace('_', ' ')}"
    return Cause(quadrant=pull.quadrant, share=pull.share, mechanism=pull.mechanism, message=message + ".")
