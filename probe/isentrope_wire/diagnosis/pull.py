"""What pulls the entropy: the part of the unit prediction that changes it most in one direction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean

from isentrope_wire import metrics
from isentrope_wire.numbers import Answer, percent

CAUSE_STEPS = 10
"""Steps over which the parts of the unit prediction are averaged."""

MECHANISM = "change/by_"
"""How the names of the parts by mechanism begin; which ones there are depends on what the loop
measures."""

QUADRANTS: dict[str, str] = {
    metrics.CHANGE_POSITIVE_HIGH: "A > 0, S_c > 0",
    metrics.CHANGE_POSITIVE_LOW: "A > 0, S_c < 0",
    metrics.CHANGE_NEGATIVE_HIGH: "A < 0, S_c > 0",
    metrics.CHANGE_NEGATIVE_LOW: "A < 0, S_c < 0",
}
"""Each part of the unit prediction by sign of advantage and score, and its tokens."""

MEANINGS: dict[str, str] = {
    metrics.CHANGE_NEGATIVE_LOW: "unlikely tokens, punished",
    metrics.CHANGE_POSITIVE_HIGH: "likely tokens, rewarded",
    metrics.CHANGE_POSITIVE_LOW: "unlikely tokens, rewarded",
    metrics.CHANGE_NEGATIVE_HIGH: "likely tokens, punished",
}
"""Tokens of each part; the first two lower the entropy."""


def change_parts(scalars: Mapping[str, float]) -> dict[str, float]:
    """The parts of a step's unit prediction that it measured, in nats per unit gain, and its
    influences, in nats."""
    return {
        name: value for name, value in scalars.items() if name.startswith(("change/", "influence/"))
    }


def mean_parts(steps: Mapping[int, Mapping[str, float]]) -> dict[str, float]:
    """Of the `change_parts` of steps, mean of each over the steps that have it; of influences those
    of the newest step."""
    parts: dict[str, list[float]] = {}
    for _, step in sorted(steps.items()):
        for name, value in step.items():
            parts.setdefault(name, []).append(value)
    return {
        name: fmean(of[-1:] if name in metrics.INFLUENCES.values() else of)
        for name, of in parts.items()
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause(Answer):
    """Which tokens pull the entropy most in the direction it goes."""

    quadrant: str
    """The metric of the part of the unit prediction by sign of A and S_c: change/positive_high
    ..."""
    share: float
    """Its share of what all such parts pull that way, in [0, 1]: of these tokens' influences, or of
    g S_c over the last ten steps."""
    influence_step: int | None
    """The newest of these steps with influences; null where none has any."""
    mechanism: str | None
    """The metric of the part by mechanism: change/by_kl_penalty ...; null where none is measured or
    pulls that way."""
    message: str


def cause_of(steps: Mapping[int, Mapping[str, float]], direction: int) -> Cause | None:
    """The part that pulls most down (direction -1) or up (1), of the steps' `change_parts`, and in
    a sentence.

    None where no part by sign of advantage and score pulls that way, or none was measured.
    """
    step = max(
        (step for step, of in steps.items() if metrics.INFLUENCES.values() & of.keys()),
        default=None,
    )
    pulls = {
        name: direction * change
        for name, change in mean_parts(steps).items()
        if direction * change > 0
    }
    parts = {name: name if step is None else metrics.INFLUENCES[name] for name in QUADRANTS}
    quadrants = {name: pulls[part] for name, part in parts.items() if part in pulls}
    if not quadrants:
        return None
    quadrant = max(quadrants, key=lambda name: quadrants[name])
    share = quadrants[quadrant] / sum(quadrants.values())
    mechanism = max(
        (name for name in pulls if name.startswith(MECHANISM)),
        key=lambda name: pulls[name],
        default=None,
    )
    message = f"{MEANINGS[quadrant].capitalize()}, make {percent(share)} of the pull"
    if step is None:
        message += ""
    else:
        message += f", by influence in step {step}"
    # The policy loss is the usual part and is not reported.
    if mechanism is not None and not mechanism.endswith("policy_loss"):
        most = "by the theory most"
        if step is None:
            most = "most of it"
        message += f"; {most} comes from the {mechanism.removeprefix(MECHANISM).replace('_', ' ')}"
    return Cause(
        quadrant=quadrant,
        share=share,
        influence_step=step,
        mechanism=mechanism,
        message=f"{message}.",
    )
