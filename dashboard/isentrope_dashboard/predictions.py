"""What the server foretells: a step under thresholds nobody pushed yet, rewards by the law of the run.

Entropies in nats, thresholds in standard deviations. What the server could not say is None.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from isentrope_wire.numbers import measured


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """Of one method; None: that side does not clip."""

    method: str
    scope: str
    mu_low: float | None = None
    mu_high: float | None = None
    max_fraction: float | None = None
    """At most this share of the tokens is clipped; None: no cap."""
    denominator: str = "keep"


@dataclass(frozen=True, slots=True, kw_only=True)
class ThresholdCurve:
    """A step over one side's threshold, the other side held."""

    mu: Sequence[float] = ()
    clip_fraction: Sequence[float | None] = ()
    unit_change: Sequence[float | None] = ()
    calibrated_change: Sequence[float | None] | None = None

    def calibrated_by(self, gain: float) -> ThresholdCurve:
        """The same curve with another gain than the calibration's."""
        return replace(self, calibrated_change=[None if unit is None else gain * unit for unit in self.unit_change])

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> ThresholdCurve:
        calibrated = body.get("predicted_change")
        return cls(
            mu=body["mu"],
            clip_fraction=[measured(value) for value in body["clip_fraction"]],
            unit_change=[measured(value) for value in body["unit_predicted_change"]],
            calibrated_change=None if calibrated is None else [measured(value) for value in calibrated],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """One step under thresholds it did not have."""

    step: int
    asked: Thresholds
    clip_fraction: float
    clip_fraction_bound: float
    unit_change: float | None
    """-mean(keep r A S_c), in nats per unit gain."""
    calibrated_change: float | None
    """gain times that, in nats a step; None while the gain is not known."""
    unit_change_bound: float | None
    unclipped_unit_change: float | None
    """With no threshold at all."""
    gain: float | None
    low: ThresholdCurve = field(default_factory=ThresholdCurve)
    high: ThresholdCurve = field(default_factory=ThresholdCurve)
    capped: bool = False
    """Whether max_fraction binds, so that moving the thresholds changes nothing."""
    not_included: Sequence[str] = ()
    """Parameters of the method that play no part in the answer."""

    def calibrated_by(self, gain: float) -> WhatIf:
        """The same step with another gain than the calibration's."""
        change = None if self.unit_change is None else gain * self.unit_change
        low, high = self.low.calibrated_by(gain), self.high.calibrated_by(gain)
        return replace(self, gain=gain, calibrated_change=change, low=low, high=high)

    @property
    def change(self) -> float | None:
        """The calibrated change where there is one."""
        return self.unit_change if self.gain is None else self.calibrated_change

    @property
    def unclipped_change(self) -> float | None:
        if self.gain is None or self.unclipped_unit_change is None:
            return self.unclipped_unit_change
        return self.gain * self.unclipped_unit_change

    @property
    def change_bound(self) -> float | None:
        if self.gain is None or self.unit_change_bound is None:
            return self.unit_change_bound
        return abs(self.gain) * self.unit_change_bound

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> WhatIf:
        curves = body.get("curve") or {}
        return cls(
            step=int(body["step"]),
            asked=Thresholds(
                method=str(body["method"]),
                scope=str(body["scope"]),
                mu_low=body["mu_low"],
                mu_high=body["mu_high"],
                max_fraction=measured(body.get("max_fraction")),
                denominator=str(body.get("denominator") or "keep"),
            ),
            capped=bool(body.get("capped")),
            not_included=tuple(str(name) for name in body.get("not_included") or ()),
            clip_fraction=float(body["clip_fraction"]),
            clip_fraction_bound=float(body["clip_fraction_bound"]),
            unit_change=measured(body["unit_predicted_change"]),
            calibrated_change=measured(body["predicted_change"]),
            unit_change_bound=measured(body["unit_predicted_change_bound"]),
            unclipped_unit_change=measured(body["unclipped_unit_predicted_change"]),
            gain=measured(body["gain"]),
            **{side: ThresholdCurve.from_json(curves[side]) for side in ("low", "high") if side in curves},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A number and its interval."""

    value: float
    low: float
    high: float

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Estimate:
        return cls(value=body["value"], low=body["low"], high=body["high"])


@dataclass(frozen=True, slots=True, kw_only=True)
class LawFit:
    """R = -a exp(H) + b, and the curve it draws."""

    a: Estimate
    b: Estimate
    ceiling: Estimate
    conclusive: bool
    entropy: Sequence[float]
    reward: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """The last rewards as the first steps foretold them."""

    through_step: int
    at_entropy: float
    reward: Estimate
    actual: float
    error: float
    final_steps: int
    run_over: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Law:
    """What a run tells of the law between entropy and reward."""

    steps: int = 0
    confidence: float = 0.9
    fit: LawFit | None = None
    reason: str = ""
    """Why there is no fit."""
    forecast: Forecast | None = None
    forecast_reason: str = ""
    point_steps: Sequence[int] = ()
    point_entropies: Sequence[float] = ()
    point_rewards: Sequence[float] = ()

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Law:
        fit, curve, forecast, points = body["fit"], body["curve"], body["forecast"], body["points"]
        return cls(
            steps=int(body["steps"]),
            confidence=float(body["confidence"]),
            fit=None if fit is None else _fit(fit, curve),
            reason=(body["reason"] or {}).get("message", ""),
            forecast=None if forecast is None else _forecast(forecast),
            forecast_reason=(body["forecast_reason"] or {}).get("message", ""),
            point_steps=points["step"],
            point_entropies=points["entropy"],
            point_rewards=points["reward"],
        )


def _fit(fit: Mapping[str, Any], curve: Mapping[str, Any]) -> LawFit:
    return LawFit(
        **{name: Estimate.from_json(fit[name]) for name in ("a", "b", "ceiling")},
        conclusive=bool(fit["conclusive"]),
        entropy=curve["entropy"],
        reward=curve["reward"],
        low=curve["low"],
        high=curve["high"],
    )


def _forecast(body: Mapping[str, Any]) -> Forecast:
    return Forecast(
        through_step=int(body["through_step"]),
        at_entropy=float(body["at_entropy"]),
        reward=Estimate.from_json(body["reward"]),
        actual=float(body["actual"]),
        error=float(body["error"]),
        final_steps=int(body["final_steps"]),
        run_over=bool(body["run_over"]),
    )
