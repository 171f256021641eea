"""What comes with an alert about the entropy: what causes the change, and the cheapest control that stops it.

Both are read from what the steps report. The cause is the part of the unit prediction that pulls most in the alert's
direction: by sign of advantage and score (`change/positive_high` ...) and, where they are measured, by mechanism
(`change/by_kl_penalty` ...). The control is read from the what-if curve.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from statistics import fmean

from isentrope_wire.control import Control, Method, Scope
from isentrope_wire.metrics import (
    CHANGE_NEGATIVE_HIGH,
    CHANGE_NEGATIVE_LOW,
    CHANGE_POSITIVE_HIGH,
    CHANGE_POSITIVE_LOW,
)
from isentrope_wire.reports import AlertCause
from isentrope_wire.what_if import EDGES, WhatIf, WhatIfCurve, WhatIfSums

CAUSE_STEPS = 10
"""Steps over which the parts of the unit prediction are averaged."""

SUGGESTION_STEPS = 5
"""Steps whose tokens the suggested thresholds are read from: those of one step alone scatter by half."""

MECHANISM = "change/by_"
"""How the names of the parts by mechanism begin; which ones there are depends on what the loop measures."""

_QUADRANTS: dict[str, str] = {
    CHANGE_POSITIVE_HIGH: "likely tokens of samples with positive advantage are reinforced",
    CHANGE_POSITIVE_LOW: "unlikely tokens of samples with positive advantage are reinforced",
    CHANGE_NEGATIVE_HIGH: "likely tokens of samples with negative advantage are suppressed",
    CHANGE_NEGATIVE_LOW: "unlikely tokens of samples with negative advantage are suppressed",
}


def change_parts(scalars: Mapping[str, float]) -> dict[str, float]:
    """The parts of a step's unit prediction that it measured, in nats per unit gain."""
    return {name: value for name, value in scalars.items() if name in _QUADRANTS or name.startswith(MECHANISM)}


def cause_of(steps: Iterable[Mapping[str, float]], direction: int) -> AlertCause | None:
    """The part of the unit prediction that pulls most in a direction.

    Args:
        steps: `change_parts` of the last steps.
        direction: -1 where the entropy falls, 1 where it rises.

    Returns:
        None where no part by sign of advantage and score pulls that way, or none was measured.
    """
    parts: dict[str, list[float]] = {}
    for step in steps:
        for name, value in step.items():
            parts.setdefault(name, []).append(value)
    changes = {name: fmean(values) for name, values in parts.items()}
    pulls = {name: direction * change for name, change in changes.items() if direction * change > 0}
    quadrants = {name: pull for name, pull in pulls.items() if name in _QUADRANTS}
    if not quadrants:
        return None
    quadrant = max(quadrants, key=lambda name: quadrants[name])
    share = quadrants[quadrant] / sum(quadrants.values())
    mechanisms = {name: pull for name, pull in pulls.items() if name not in quadrants}
    mechanism = max(mechanisms, key=lambda name: mechanisms[name]) if mechanisms else None
    message = f"{share:.0%} of what {'lowers' if direction < 0 else 'raises'} it: {_QUADRANTS[quadrant]}"
    if mechanism is not None:
        message += f"; by mechanism mostly the {mechanism.removeprefix(MECHANISM).replace('_', ' ')}"
    return AlertCause(quadrant=quadrant, mechanism=mechanism, changes=changes, message=message + ".")


def cheapest_control(steps: Sequence[WhatIfSums], direction: int) -> Control | None:
    """The thresholds that would have stopped the change, and clipped the fewest tokens for it.

    Args:
        steps: the sums of the last steps; their tokens are taken together.
        direction: -1 where a fall is to be stopped, 1 where a rise is.

    Returns:
        Clip_V or Clip_B on the tokens that pull in that direction, at the threshold with the smallest clip fraction
        whose predicted change is 0 or of the other sign; where no threshold reaches that, the one that comes nearest.
        None where nothing was measured, the steps did not pull that way, or clipping would not help.
    """
    if not steps or not any(step.tokens for step in steps):
        return None
    sums = reduce(WhatIfSums.merge, steps)
    unclipped = direction * sums.change_sum / sums.tokens
    if unclipped <= 0:
        return None
    scope = Scope.DECREASING if direction < 0 else Scope.INCREASING
    found = [
        (what, method, mu)
        for method in (Method.CLIP_V, Method.CLIP_B)
        for mu, what in (_first_that_stops(WhatIfCurve(sums, scope, method), direction),)
    ]
    stopping = [one for one in found if direction * one[0].unit_predicted_change <= 0]
    if stopping:
        what, method, mu = min(stopping, key=lambda one: one[0].clip_fraction)
    else:
        what, method, mu = min(found, key=lambda one: direction * one[0].unit_predicted_change)
    if direction * what.unit_predicted_change >= unclipped:
        return None
    return Control(
        method=method,
        mu_low=mu,
        mu_high=mu,
        scope=scope,
        reason=f"Suggested: would have clipped {what.clip_fraction:.1%} of the tokens and changed the unit prediction from "
        f"{sums.change_sum / sums.tokens:+.2g} to {what.unit_predicted_change:+.2g} nats.",
    )


def _first_that_stops(curve: WhatIfCurve, direction: int) -> tuple[float, WhatIf]:
    """The highest threshold that stops the change, else the one that comes nearest to it."""
    nearest: tuple[float, WhatIf] | None = None
    for mu in reversed(EDGES):
        what = curve.at(mu, mu)
        if direction * what.unit_predicted_change <= 0:
            return mu, what
        if nearest is None or direction * what.unit_predicted_change < direction * nearest[1].unit_predicted_change:
            nearest = mu, what
    assert nearest is not None
    return nearest
