"""What a metric of the probe's is measured in, where its name does not say it."""

from __future__ import annotations

from collections.abc import Mapping

PER_STEP = "nats a step"
PER_UNIT = "nats per unit gain"

_BY_NAME: Mapping[str, str] = {
    "entropy/mean": "nats",
    "entropy/unit_predicted_change": PER_UNIT,
    "entropy/predicted_change": PER_STEP,
    "entropy/predicted_change_low": PER_STEP,
    "entropy/predicted_change_high": PER_STEP,
    "entropy/observed_change": PER_STEP,
    "hold/target": "nats",
    "hold/resting_point": "nats",
    "hold/drift": PER_STEP,
    "hold/mu": "σ",
    "control/mu_low": "σ",
    "control/mu_high": "σ",
    "score/self_check_z": "standard errors",
    "completion/length_mean": "tokens",
}
_BY_FOLDER: Mapping[str, str] = {"change": PER_UNIT, "covariance": "nats", "score": "nats"}


def unit_of(metric: str) -> str:
    """In words; empty where the metric has none or is not the probe's own."""
    return _BY_NAME.get(metric) or _BY_FOLDER.get(metric.split("/", 1)[0], "")


def with_unit(metric: str) -> str:
    """The raw name, and behind it the unit."""
    unit = unit_of(metric)
    return f"{metric}, {unit}" if unit else metric
