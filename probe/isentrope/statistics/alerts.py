"""Alerts: which steps need a person's attention, each with its reason and the numbers behind it.

They are found where the steps are closed, and not in the server: every step passes here once, in order and over all
ranks, a run without a server has alerts too, and an alert is never withdrawn. No threshold is in nats or in steps: a
run is compared with its own early level and its own age, a prediction with its own past.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import fmean, stdev

from isentrope_wire.metrics import (
    ADVANTAGE_ZERO_GROUP_FRACTION,
    ENTROPY_MEAN,
    ENTROPY_PREDICTED_CHANGE,
    ENTROPY_PREDICTION_R2,
    SCORE_SELF_CHECK_Z,
    TOKEN_COUNT,
    TOKEN_NOT_FINITE,
    EarlyLevel,
    ShareLost,
)
from isentrope_wire.reports import Alert

FLOOR, CEILING = 0.25, 2.0
"""Of the early entropy: where a collapse, or an explosion, has arrived."""

PART_OF_THE_WAY = 0.25
"""From the early level to the floor or ceiling: before that part is covered there is no alert."""

FOLLOWED = 0.25
"""Of the predicted rate: the entropy itself must have moved at least so fast, or the prediction does not count."""

ARRIVAL_STEPS = 10
"""Steps whose mean must be at the floor or ceiling for it to have arrived there."""

WINDOW = 20
"""Steps over which a mean is taken, and a rate at least."""

LONGEST_WINDOW = 250
"""Steps over which a rate is taken at most, however old the run."""

PERSISTENCE = 5
"""Steps in a row that a condition must hold before its alert."""

REARM = 20
"""Steps in a row without it before the same alert may come again."""

SIGMAS = 5.0
"""How far from 0 the self-check's mean must be, in standard errors of two kinds."""


@dataclass(slots=True)
class _Trigger:
    """Fires once, when a condition has held for a while."""

    held: int = 0
    clear: int = REARM
    fired: bool = False

    def fires(self, holds: bool, *, after: int = PERSISTENCE) -> bool:
        self.held, self.clear = (self.held + 1, 0) if holds else (0, self.clear + 1)
        if self.clear >= REARM:
            self.fired = False
        if self.held < after or self.fired:
            return False
        self.fired = True
        return True


def _window() -> deque[float]:
    return deque(maxlen=WINDOW)


Found = tuple[str, dict[str, float]]
"""A reason, and the numbers in it."""


@dataclass(slots=True)
class AlertWatch:
    """Finds the alerts of a run; call `step` with each report, in order."""

    _age: int = 0
    _lost: ShareLost = field(default_factory=ShareLost)
    """Of the entropy."""
    _signal: EarlyLevel = field(default_factory=lambda: EarlyLevel(WINDOW // 2))
    """Share of groups whose advantage is not 0."""
    _course: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=LONGEST_WINDOW))
    """Entropy, and its predicted change, of the last steps."""
    _levels: deque[float] = field(default_factory=lambda: deque(maxlen=ARRIVAL_STEPS))
    """Entropy of the last steps."""
    _checks: deque[float] = field(default_factory=_window)
    _signals: deque[float] = field(default_factory=_window)
    _trusted: int = 0
    _triggers: dict[str, _Trigger] = field(default_factory=dict)

    def step(self, scalars: Mapping[str, float], labels: Mapping[str, str]) -> tuple[Alert, ...]:
        """The new alerts of this step; usually none."""
        finite = {name: value for name, value in scalars.items() if math.isfinite(value)}
        self._age += 1
        found = {
            **self._arrivals(finite),
            "self_check": self._self_check(finite.get(SCORE_SELF_CHECK_Z)),
            "prediction": self._prediction(finite.get(ENTROPY_PREDICTION_R2)),
            "dead_knob": _dead_knob(labels.get("control/dead")),
            "zero_advantage": self._zero_advantage(finite.get(ADVANTAGE_ZERO_GROUP_FRACTION)),
            "not_finite": _not_finite(finite.get(TOKEN_NOT_FINITE, 0.0), finite.get(TOKEN_COUNT, 0.0)),
        }
        return tuple(
            Alert(kind=kind, reason=what[0], evidence=what[1])
            for kind, what in found.items()
            if self._fires(kind, what is not None) and what is not None
        )

    @property
    def share_lost(self) -> float | None:
        """Of the early entropy, at the newest step that measured one; None before the early level is known."""
        return self._lost.share

    def _fires(self, kind: str, holds: bool) -> bool:
        # One NaN in a loss is in the weights from then on: there is nothing to wait for.
        after = 1 if kind == "not_finite" else PERSISTENCE
        return self._triggers.setdefault(kind, _Trigger()).fires(holds, after=after)

    def _arrivals(self, scalars: Mapping[str, float]) -> dict[str, Found | None]:
        """Collapse and explosion: at this rate the entropy gets there before the run is half as old again.

        The rate is the mean of the calibrated predictions over the last quarter of the run, or what the entropy moved
        at over that same quarter, whichever is less: a prediction lags behind a course that slows down. It is a share of
        the remaining entropy, as entropies fall by shares and not by amounts:

            steps left = H ln(H_goal / H) / rate

        First the entropy must have covered a part of the way, and must be following its prediction: one fast stretch is
        no trend.
        """
        nothing: dict[str, Found | None] = {"collapse": None, "explosion": None}
        entropy, predicted = scalars.get(ENTROPY_MEAN), scalars.get(ENTROPY_PREDICTED_CHANGE)
        if entropy is None:
            return nothing
        self._lost.add(entropy)
        early = self._lost.early.level
        if early is None or early <= 0:
            return nothing
        self._levels.append(entropy)
        arrived = self._arrived(early)
        if arrived or predicted is None:
            return nothing | arrived
        self._course.append((entropy, predicted))
        steps = min(max(WINDOW, self._age // 4), LONGEST_WINDOW)
        if len(self._course) < steps:
            return nothing
        recent = list(self._course)[-steps:]
        predicted_rate = fmean(change for _, change in recent)
        edge = steps // 4
        now = fmean(value for value, _ in recent[-edge:])
        moved = (now - fmean(value for value, _ in recent[:edge])) / (steps - edge)
        kind, share = ("collapse", FLOOR) if predicted_rate < 0 else ("explosion", CEILING)
        goal = share * early
        gone = (now - early) / (goal - early)
        if predicted_rate == 0 or moved / predicted_rate < FOLLOWED or gone < PART_OF_THE_WAY or now <= 0:
            return nothing
        rate = min(predicted_rate, moved, key=abs)
        arrival = max(now * math.log(goal / now) / rate, 0.0)
        if arrival > self._age / 2:
            return nothing
        reason = (
            f"At {rate:+.3g} nats a step, {rate / now:+.1%} of its level, the entropy reaches {goal:.3g} nats, {share:.0%} of its early "
            f"{early:.3g}, in {arrival:.0f} steps; the run is {self._age} steps old."
        )
        evidence = {"entropy": now, "early_entropy": early, "goal": goal, "rate": rate, "steps_left": arrival}
        return nothing | {kind: (reason, evidence)}

    def _arrived(self, early: float) -> dict[str, Found | None]:
        """Whether the mean of ARRIVAL_STEPS steps is at the floor or the ceiling; that needs no prediction."""
        if len(self._levels) < ARRIVAL_STEPS:
            return {}
        now = fmean(self._levels)
        for kind, share in (("collapse", FLOOR), ("explosion", CEILING)):
            if (now - early) / (share * early - early) >= 1:
                reason = f"The entropy is at {now:.3g} nats, {now / early:.0%} of its early {early:.3g}."
                return {kind: (reason, {"entropy": now, "early_entropy": early})}
        return {}

    def _self_check(self, z: float | None) -> Found | None:
        """The mean of S_c is 0 where tokens were drawn from the very distribution that is scored."""
        if z is None:
            return None
        self._checks.append(z)
        if len(self._checks) < WINDOW:
            return None
        mean, spread = fmean(self._checks), stdev(self._checks)
        # Tokens of a sequence resemble each other, so z may scatter more than its own standard error.
        in_errors = mean * math.sqrt(WINDOW) / max(1.0, spread)
        if abs(in_errors) < SIGMAS:
            return None
        reason = (
            f"Over {WINDOW} steps the mean of S_c is {abs(in_errors):.1f} standard errors from 0: the tokens were not "
            "drawn from the distribution that is scored. Compare temperature, mask and top-k or top-p of the sampler."
        )
        return reason, {"standard_errors": in_errors, "mean_z": mean}

    def _prediction(self, r2: float | None) -> Found | None:
        if r2 is None:
            return None
        if r2 > 0:
            self._trusted += 1
            return None
        if self._trusted < WINDOW:
            return None
        return (
            (
                f"The calibrated prediction was of use for {self._trusted} steps and now does worse than the past's mean "
                f"change: R² {r2:.2f}."
            ),
            {"r2": r2, "trusted_steps": float(self._trusted)},
        )

    def _zero_advantage(self, zero_share: float | None) -> Found | None:
        if zero_share is None:
            return None
        self._signal.add(1 - zero_share)
        early = self._signal.level
        self._signals.append(1 - zero_share)
        if early is None or len(self._signals) < WINDOW or fmean(self._signals) >= early / 2:
            return None
        now = fmean(self._signals)
        return (
            (
                f"Only {now:.0%} of the groups have an advantage that is not 0, in the first steps it was {early:.0%}: "
                "most rollouts teach nothing."
            ),
            {"share": now, "early_share": early},
        )


def _dead_knob(reasons: str | None) -> Found | None:
    return (reasons, {}) if reasons else None


def _not_finite(not_finite: float, measured: float) -> Found | None:
    if not not_finite:
        return None
    reason = (
        f"{not_finite:.0f} of {not_finite + measured:.0f} tokens that the mask counts hold NaN or an infinity in their "
        "advantage, score or ratio. No number here counts them; the loss may still contain them."
    )
    return reason, {"not_finite": not_finite, "tokens": not_finite + measured}
