"""What holding an entropy would take in the newest step.

The controller decides how far it corrects in one step. Known here are the direction, the largest correction that the form
allows, and, from the what-if of the newest step, the threshold that would bring it about. While an entropy is held, the
probe reports the gain and the drift that the controller uses; before that, the calibration's gain without drift is used.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from isentrope_wire.control import Hold
from isentrope_wire.control_answers import WhatIfAnswer, WhatIfCurves
from isentrope_wire.metrics import HOLD_DRIFT, HOLD_GAIN, HOLD_RESTING_POINT

CLOSE = 0.1
"""Share of the largest correction below which there is no preview: drift and noise decide what is clipped."""

GAIN, DRIFT, RESTING_POINT = HOLD_GAIN, HOLD_DRIFT, HOLD_RESTING_POINT
STEERING_METRICS = (GAIN, DRIFT, RESTING_POINT)
"""What the controller used in a step, reported while it holds."""

Outcome = Literal["reached", "limit", "resting", "side", "there"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Steering:
    """What a step's unit prediction is taken to do to the entropy, and where its numbers come from."""

    gain: float | None
    """Nats per unit; None: not known."""
    drift: float = 0.0
    """What happens in a step beside that, nats."""
    standing: float
    """Where the entropy would come to rest, as the controller reported it; else its present value. Nats."""
    by_controller: bool = False

    @property
    def known_gain(self) -> float | None:
        """A gain that can be steered by: above 0."""
        return self.gain if self.gain is not None and self.gain > 0 else None


def steering(newest: Mapping[str, float], entropy: float, found: WhatIfAnswer) -> Steering:
    """The controller's own numbers where the newest step reported them, else the calibration's.

    Args:
        newest: metrics of the newest step.
        entropy: Its present value, nats.
    """
    own = {name: newest[name] for name in STEERING_METRICS if math.isfinite(newest.get(name, math.nan))}
    if GAIN not in own:
        return Steering(gain=found.gain, standing=entropy)
    standing = own.get(RESTING_POINT, entropy)
    return Steering(gain=own[GAIN], drift=own.get(DRIFT, 0.0), standing=standing, by_controller=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldPreview:
    """The largest correction towards the target, and what it takes."""

    step: int
    entropy: float
    target: float
    steering: Steering
    correction: float
    """Nats in one step, with its sign: at most this, and less the nearer the target is."""
    unclipped_change: float
    """Predicted with nothing clipped, drift included."""
    outcome: Outcome
    """`reached`: by `mu`; `limit`: not even mu_min is enough; `resting`: it comes by itself; `side`: forbidden;
    `there`: the target is reached."""
    mu: float | None = None
    clip_fraction: float | None = None
    change: float | None = None
    """Predicted at mu."""


def correction(hold: Hold, standing: float) -> float:
    """The largest change of one step towards the target, with its sign, nats."""
    largest = hold.largest_change
    return max(-largest, min(largest, hold.target_entropy - standing))


def unclipped_change(by: Steering, found: WhatIfAnswer) -> float | None:
    """What a step brings about with nothing clipped, nats; None while the gain is not known."""
    return None if by.known_gain is None else by.known_gain * found.unclipped_unit_predicted_change + by.drift


def scope_in_the_way(hold: Hold, standing: float, unclipped: float = 0.0) -> str:
    """Which tokens would be clipped: those that lower the entropy where it has to rise, or falls too fast."""
    return "decreasing" if correction(hold, standing) > unclipped else "increasing"


def preview(hold: Hold, entropy: float, found: WhatIfAnswer, by: Steering) -> HoldPreview | None:
    """None while the gain is not known, or without the step's curves.

    Args:
        entropy: Its present value, nats.
        found: the newest step with no threshold and the scope that is in the way, with its curves.
        by: what a unit prediction does.
    """
    unclipped = unclipped_change(by, found)
    curve = found.curve
    if unclipped is None or curve is None:
        return None
    wanted = correction(hold, by.standing)
    rises = wanted > unclipped

    def made(outcome: Outcome, mu: float | None = None) -> HoldPreview:
        place = None if mu is None else _at(found, curve, mu, by)
        return HoldPreview(
            step=found.step,
            entropy=entropy,
            target=hold.target_entropy,
            steering=by,
            correction=wanted,
            unclipped_change=unclipped,
            outcome=outcome,
            mu=mu,
            clip_fraction=None if place is None else place[0],
            change=None if place is None else place[1],
        )

    if abs(wanted) <= CLOSE * hold.largest_change:
        return made("there")
    if 0 <= unclipped <= wanted or wanted <= unclipped <= 0:
        return made("resting")
    if hold.side not in ("both", "raise" if rises else "lower"):
        return made("side")
    allowed = [mu for mu in curve.low.mu if hold.mu_min <= mu <= hold.mu_max] or [hold.mu_min]
    brought = {mu: _at(found, curve, mu, by)[1] for mu in allowed}
    enough = [mu for mu, change in brought.items() if (change >= wanted if rises else change <= wanted)]
    return made("reached", max(enough)) if enough else made("limit", min(allowed))


def _at(found: WhatIfAnswer, curve: WhatIfCurves, mu: float, by: Steering) -> tuple[float, float]:
    """Clip fraction and predicted change with both thresholds at mu: the two tails have no token in common."""
    place = min(range(len(curve.low.mu)), key=lambda index: abs(curve.low.mu[index] - mu))
    sides = (curve.low, curve.high)
    units = sum(side.unit_predicted_change[place] for side in sides) - found.unclipped_unit_predicted_change
    return sum(side.clip_fraction[place] for side in sides), (by.known_gain or 0.0) * units + by.drift
