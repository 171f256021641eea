"""The answers of the REST API about controls: versions, methods, what-if, and the fit of reward
against entropy.

One dataclass an answer, as in `answers`. Thresholds are in standard deviations, entropies in nats,
times in seconds since the Unix epoch.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from enum import StrEnum

from isentrope_wire.control import Control, ControlFields
from isentrope_wire.numbers import Answer, Number


class State(StrEnum):
    """State of a control version. The first two are open, the others are final."""

    PENDING = "PENDING"
    """Stored, and not yet handed to a probe."""
    DELIVERED = "DELIVERED"
    """Sent to a probe, which has not answered yet."""
    APPLIED = "APPLIED"
    PARTIAL = "PARTIAL"
    """Some ranks applied it, some did not."""
    REJECTED = "REJECTED"
    EXPIRED = "EXPIRED"
    SUPERSEDED = "SUPERSEDED"

    @property
    def is_final(self) -> bool:
        """Whether the version keeps this state."""
        return self not in (State.PENDING, State.DELIVERED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate(Answer):
    """A number and its interval."""

    value: float
    low: float
    high: float

    @property
    def direction(self) -> int:
        """1 where it is clearly above 0, -1 where it is clearly below, 0 where the interval
        contains 0."""
        if self.low > 0:
            return 1
        if self.high < 0:
            return -1
        return 0

    def scaled(self, factor: float) -> Estimate:
        """In another unit; the factor is above 0."""
        return Estimate(value=factor * self.value, low=factor * self.low, high=factor * self.high)


@dataclass(frozen=True, slots=True, kw_only=True)
class EntropyForecast(Answer):
    """The entropy of the steps to come, in nats, with the band that nine of ten are to lie in."""

    step: list[int]
    entropy: list[float]
    low: list[float]
    high: list[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastScore(Answer):
    """How far this run's forecasts were off, of those whose time has come, beside "nothing
    changes"."""

    horizon: int
    """Steps ahead."""
    forecasts: int
    """Number of them."""
    mean_error: float
    """Mean absolute error in nats."""
    unchanged_error: float
    """Mean absolute error of "the entropy stays as it is", in nats."""

    @property
    def is_better(self) -> bool:
        """Whether they were better than that nothing changes."""
        return self.mean_error < self.unchanged_error


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedEffect(Answer):
    """What a control does by the what-if sums of the last steps; of methods with thresholds alone,
    the only ones that these can answer for."""

    steps: int
    """Number of steps that the numbers are means of; at most ten."""
    clip_fraction: float
    """Share of the tokens that are clipped."""
    clip_fraction_std: float
    """How much it scatters over these steps."""
    change: Number | None
    """What it adds to the change of the entropy, in nats a step, against the control of those
    steps; null without a gain."""
    change_error: Number | None
    """Its standard error."""
    pace: Estimate | None
    """Mean change of the entropy over the next twenty steps under it, in nats a step; null before
    there is a forecast."""
    forecast: list[float] | None = None
    """Entropies of the fifty steps after the push under it, in nats; null before there is a
    forecast."""
    unchanged: list[float] | None = None
    """Entropies of these steps without the control."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectCurve(Answer):
    """One side's threshold over all bin edges, with the other side off, as columns of one
    length."""

    mu: list[float]
    """In standard deviations."""
    clip_fraction: list[float]
    clip_fraction_std: list[float]
    """How much it scatters over the last steps."""
    pace: list[float] | None
    """Mean pace of the entropy over the next twenty steps, in nats a step; null while the gain is
    not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectCurves(Answer):
    """Both sides of a control's thresholds."""

    low: EffectCurve
    high: EffectCurve


class Outcome(StrEnum):
    """What a control did to the entropy; the last four of a hold."""

    STOPPED = "stopped"
    """At most a quarter of the pace that would have come is left."""
    SLOWED = "slowed"
    NO_EFFECT = "no_effect"
    """More than three quarters of it are left."""
    TURNED = "turned"
    """A fall became a rise, or a rise a fall."""
    OVERSHOT = "overshot"
    """The entropy turned much faster than it went and than was promised, or passed its early
    level."""
    UNDECIDED = "undecided"
    """Too few steps, or they scatter too much."""
    REACHED = "reached"
    """The entropy is within 5 % of the target."""
    APPROACHING = "approaching"
    WAITING = "waiting"
    """It has not moved to the target yet."""
    FAILED = "failed"
    """It does not come to the target."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared(Answer):
    """A quantity before a control, as it was predicted, and under it. Null: not measured, not
    predicted, too few steps."""

    before: Number | None
    predicted: Number | None
    realised: Number | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardChange(Answer):
    """The mean reward of the steps before a control, and of the newest under it."""

    before: Number
    since: Number
    steps_before: int
    """Number of steps that `before` is the mean of: 30 at most, 10 where it rose or fell then."""
    steps: int
    """Number of steps that `since` is the mean of: the newest 30 at most."""
    direction: int
    """1: it rose, -1: it fell, by more than both windows scatter; 0: no clear change."""


HOLD_ENDED = "Ended at step"
"""How the verdict on a hold that has ended begins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict(Answer):
    """What a control did, against what was promised when it was pushed, and what would have come
    without it."""

    version: int
    outcome: Outcome
    steps: int
    """Number of steps under the control that were measured."""
    judged_steps: int
    """Number of them that the verdict is made of: 20, 50, 100 ...; 0 while there are fewer."""
    clip_fraction: Compared
    """Share of the tokens that are clipped."""
    promised: Number | None
    """Pace of the entropy over the first twenty steps, in nats a step; null where nothing was
    promised."""
    realised: Number | None
    """Pace that came, in nats a step."""
    without: Number | None
    """Pace that would have come without the control; null where the gain is not known."""
    left: float | None
    """realised / without; null where it is undecided, and of a hold."""
    message: str
    """The verdict in a sentence."""
    level: Number | None = None
    """Entropy of the last judged step, or of the fiftieth after the push where more were judged, in
    nats: the median of five."""
    promised_level: Number | None = None
    """What was forecast for that step when it was pushed; null where nothing was."""
    level_without: Number | None = None
    """What was forecast for that step without the control."""
    reward: RewardChange | None = None
    """What the reward did since; null of fewer than ten rewards before it or under it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlVersion(ControlFields):
    """One version of a run's control: its document, and what became of it."""

    version: int
    state: State
    author: str
    requested_at: float
    requested_step: int | None
    expires_at: float | None
    applied_step: int | None
    applied_at: float | None
    ended_at: float | None
    code: str
    message: str
    predicted: PredictedEffect | None
    """What it was predicted to do when it was pushed; null of methods without thresholds, of a
    hold, and where no step had what-if sums."""
    verdict: Verdict | None
    """What it did over its first steps; null until it is applied, of the control the run began
    with, and in live events."""
    warnings: list[str] = field(default_factory=list)
    """What the preview warned of when it was pushed; in the answer to the push alone."""

    @property
    def control(self) -> Control:
        """What the version asks for."""
        return Control(**{field.name: getattr(self, field.name) for field in fields(Control)})

    @property
    def was_applied(self) -> bool:
        """Whether the trainer ever ran with this version; a later one may have replaced it."""
        return self.applied_step is not None or self.state in (State.APPLIED, State.PARTIAL)

    @property
    def latency_seconds(self) -> float | None:
        """From the request to the trainer's acknowledgement; None before it."""
        if self.applied_at is None:
            return None
        return max(0.0, self.applied_at - self.requested_at)


def version_before(
    item: ControlVersion, history: Iterable[ControlVersion]
) -> ControlVersion | None:
    """The version that a revert goes back to: the newest one before `item` that was applied, or the
    run's own."""
    earlier = [
        other
        for other in history
        if other.version < item.version and (other.was_applied or not other.version)
    ]
    return max(earlier, key=lambda other: other.version, default=None)


def version_to_revert(history: Iterable[ControlVersion]) -> ControlVersion | None:
    """The version that a revert takes back: the newest one that was applied or still may be; None
    where nothing was requested that did not end unapplied."""
    takable = [
        item for item in history if item.version and (item.was_applied or not item.state.is_final)
    ]
    return max(takable, key=lambda item: item.version, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankOutcome(Answer):
    """What one rank made of a version."""

    incarnation: str
    rank: int
    state: str
    step: int | None
    at: float
    code: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunControl(ControlVersion):
    """The newest version of a run's control, and the active one."""

    active: ControlVersion | None
    """The version that was active when the newest report was made."""
    outcomes: list[RankOutcome]
    """What each rank made of the newest version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check(Answer):
    """What one check of the fit found, as one sentence."""

    code: str
    """slope: the reward rises as entropy falls; shape: no bend is left over; halves: both halves of
    the run follow one curve; reach: H = 0 is near enough to the entropies seen."""
    passed: bool
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit(Answer):
    """R = -a exp(H) + b, by generalised least squares. Intervals allow for errors that drift
    slowly."""

    a: Estimate
    b: Estimate
    ceiling: Estimate | None
    """b - a, the reward at zero entropy; None where a check failed."""
    conclusive: bool
    """Whether slope, shape and halves passed: the run follows the curve."""
    checks: list[Check]
    r2: float
    autocorrelation: float
    """Correlation of the errors of neighbouring means; a run is averaged to at most 50."""
    entropy_scatter: float
    """Standard deviation of those means' entropy about its trend, in nats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FitCurve(Answer):
    """The fitted curve with the interval of the mean reward, from H = 0 or as low as the entropies
    seen allow."""

    entropy: list[float]
    reward: list[float]
    low: list[float]
    high: list[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast(Answer):
    """The last rewards as the first 15 % of the steps predict them, given the entropy of the last
    steps."""

    through_step: int
    """The last step that the fit used."""
    at_entropy: float
    reward: Estimate
    actual: float
    """Mean reward of the last steps."""
    error: float
    """Forecast minus actual."""
    final_steps: int
    run_over: bool
    """False: of the last steps so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal(Answer):
    """Why there is no fit or no forecast."""

    code: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FitPoints(Answer):
    """The run as the fit sees it: means over neighbouring steps."""

    step: list[int]
    """The last one of each mean."""
    entropy: list[float]
    reward: list[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class EntropyPerformance(Answer):
    """The fit of reward against entropy, or the reason why there is none."""

    steps: int
    """Number of steps with both entropy and reward."""
    reward: str
    """The metric that was fitted: an evaluation's reward where the run has one."""
    reward_reason: str
    """Why this one."""
    confidence: float
    fit: Fit | None
    reason: Refusal | None
    """Why there is no fit."""
    curve: FitCurve | None
    forecast: Forecast | None
    forecast_reason: Refusal | None
    points: FitPoints
