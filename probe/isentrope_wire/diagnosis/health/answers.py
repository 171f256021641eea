"""What is answered about a run and a control: diagnosis, suggestion, preview."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from isentrope_wire.answers import Alert, HealthLevel
from isentrope_wire.control_answers import (
    EffectCurves,
    EntropyForecast,
    Estimate,
    ForecastScore,
    Verdict,
)
from isentrope_wire.diagnosis.pull import Cause
from isentrope_wire.diagnosis.trust import PredictionTrust
from isentrope_wire.numbers import (
    Answer,
    Number,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Suggestion(Answer):
    """The control that would stop the change with the fewest tokens clipped, or hold the entropy
    where it is."""

    control: dict[str, Any]
    """The document to PUT."""
    stops: bool
    """Whether the forecast under it does not go on that way. False: this one comes nearest."""
    clip_fraction: float | None
    """Share of the tokens that it clips; null of a hold."""
    pace: Estimate | None
    """Mean pace over the next twenty steps under it, in nats a step; null while the gain is not
    known, and of a hold."""
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis(Answer):
    """How a run is doing. Entropies in nats, paces in nats a step, shares in [0, 1]; null: not
    measured."""

    level: HealthLevel
    step: int | None
    entropy: Number | None
    """Median of the last five steps."""
    early_level: Number | None
    """Median of the first three steps."""
    share_lost: Number | None
    """1 - entropy / early level: negative where it rose."""
    lost_in_steps: int | None
    """Age of the run: its steps so far."""
    pace: Estimate | None
    """How fast the entropy moves now, with a 90 % interval."""
    mean_pace: Estimate | None
    """Mean over the next twenty steps by the forecast: what a preview calls `unchanged`."""
    forecast: EntropyForecast | None
    """The next fifty steps, if the control stays as it is, a held entropy up to its target; null
    before the tenth step and of a run that is over."""
    forecast_score: ForecastScore | None
    """How far the run's earlier forecasts were off; null before one of twenty steps could be
    compared."""
    prediction_trust: PredictionTrust | None
    """What the prediction of a step is good for now, by the run's own past; null before thirty
    steps could be compared."""
    steps_to_three_quarters_lost: int | None
    """Steps until a quarter of the early level is left, in one digit; null where the forecast does
    not come to that, 0 where it is."""
    target: Number | None
    """The entropy to hold; null where none is held."""
    message: str
    """One sentence: what the entropy did, and where it is going."""
    cause: Cause | None
    """Null where the entropy is held, or neither clearly falls nor rises."""
    suggestion: Suggestion | None
    """Null where none is needed or helps, or the newest control already asks for it."""
    alert: Alert | None
    """The newest collapse or explosion."""
    verdict: Verdict | None
    """Verdict on the newest applied control."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview(Answer):
    """What a control would do if it were pushed now."""

    entropy: Number | None
    """Now: the median of the last five steps, in nats."""
    forecast: EntropyForecast | None
    """The next fifty steps under it; null before the tenth step, and where its effect is not
    known."""
    clip_fraction: float | None
    """Share of the tokens that it clips; null of methods that the steps' sums do not answer for."""
    clip_fraction_std: float | None
    """How much it scatters over the last ten steps."""
    change: Number | None
    """What it adds to the change of each step, in nats, against the active control; null while the
    gain is not known."""
    pace: Estimate | None
    """Mean pace over the next twenty steps under it, in nats a step."""
    unchanged: Estimate | None
    """Mean pace if the control stays as it is."""
    curves: EffectCurves | None
    """Both thresholds over their range; null unless asked for, and of methods without
    thresholds."""
    message: str
    """What it would do, in a sentence."""
    warnings: list[str]
    """What would have no effect, or less than its number; a push is possible all the same."""
