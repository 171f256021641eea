"""The metric names promised to users, from the sums of a step. What was not measured is left out."""

from __future__ import annotations

from isentrope.statistics.calibration import CalibratedPrediction
from isentrope.statistics.covariance_tail import TOP_SHARES
from isentrope.statistics.mechanisms import mechanism_scalars
from isentrope.statistics.step_summary import QUADRANTS, StepSummary
from isentrope_wire.messages import ScoreHistogram
from isentrope_wire.metrics import (
    CLIP_CANDIDATE_FRACTION,
    CLIP_FRACTION,
    CLIP_FRACTION_NEGATIVE,
    CLIP_FRACTION_POSITIVE,
    COVARIANCE_ADVANTAGE_LOGPROB,
    COVARIANCE_ADVANTAGE_SCORE,
    ENTROPY_GAIN,
    ENTROPY_INTERVAL_COVERAGE,
    ENTROPY_MEAN,
    ENTROPY_OBSERVED_CHANGE,
    ENTROPY_PREDICTED_CHANGE,
    ENTROPY_PREDICTED_CHANGE_HIGH,
    ENTROPY_PREDICTED_CHANGE_LOW,
    ENTROPY_PREDICTION_R2,
    ENTROPY_PREDICTION_SIGN_AGREEMENT,
    ENTROPY_UNIT_PREDICTED_CHANGE,
    RATIO_MEAN,
    SCORE_DISCRIMINATOR_MEAN,
    SCORE_DISCRIMINATOR_STD,
    SCORE_SELF_CHECK_Z,
    SCORE_VOCAB_CENTERED_MEAN,
    SCORE_VOCAB_CENTERED_STD,
    TOKEN_COUNT,
    TOKEN_EFFECTIVE_FRACTION,
    TOKEN_NOT_FINITE,
)


def unit_prediction(summary: StepSummary) -> float | None:
    """-mean(keep r A S_c) over the step's tokens, None without tokens       arXiv:2602.03392, Cor. 4"""
    return sum(summary.change_sums) / summary.tokens if summary.tokens else None


def summary_scalars(summary: StepSummary, *, intervening: bool = False) -> dict[str, float]:
    """Everything measured on the step's tokens; entropies and scores in nats.

    Args:
        intervening: whether a control was in force.
    """
    if not summary.tokens:
        return {TOKEN_COUNT: 0.0, TOKEN_NOT_FINITE: float(summary.not_finite)}
    counts, centred = summary.sign_counts, summary.vocab_centered_scores
    scalars: dict[str, float] = {
        TOKEN_COUNT: float(summary.tokens),
        TOKEN_EFFECTIVE_FRACTION: summary.mechanisms.pushed / summary.tokens,
        ENTROPY_MEAN: summary.entropies.mean,
        SCORE_DISCRIMINATOR_MEAN: summary.discriminator_scores.mean,
        SCORE_DISCRIMINATOR_STD: summary.discriminator_scores.standard_deviation,
        SCORE_VOCAB_CENTERED_MEAN: centred.mean,
        SCORE_VOCAB_CENTERED_STD: centred.standard_deviation,
        COVARIANCE_ADVANTAGE_SCORE: summary.advantage_score.value,
        COVARIANCE_ADVANTAGE_LOGPROB: summary.advantage_logprob.value,
        CLIP_FRACTION: counts.dropped / summary.tokens,
    }
    for quadrant, change_sum in zip(QUADRANTS, summary.change_sums, strict=True):
        scalars[f"change/{quadrant}"] = change_sum / summary.tokens
    unit_sum = sum(summary.change_sums)
    scalars[ENTROPY_UNIT_PREDICTED_CHANGE] = unit_sum / summary.tokens
    scalars |= mechanism_scalars(summary.mechanisms, summary.tokens, unit_sum, intervening=intervening)
    if centred.standard_error > 0:
        scalars[SCORE_SELF_CHECK_Z] = centred.mean / centred.standard_error
    if counts.positive:
        scalars[CLIP_FRACTION_POSITIVE] = counts.dropped_positive / counts.positive
    if counts.negative:
        scalars[CLIP_FRACTION_NEGATIVE] = counts.dropped_negative / counts.negative
    if summary.covariance_top is not None:
        scalars |= dict(zip(TOP_SHARES, summary.covariance_top, strict=True))
    if summary.importance_ratios.count:
        scalars[RATIO_MEAN] = summary.importance_ratios.mean
    if summary.observed_change.count:
        scalars[ENTROPY_OBSERVED_CHANGE] = summary.observed_change.mean
    if summary.not_finite:
        scalars[TOKEN_NOT_FINITE] = float(summary.not_finite)
    return scalars


def selection_scalars(summary: StepSummary) -> dict[str, float]:
    """What an intervention asked for; more than it left out where a cap binds, a draw spares, or a token is weighted."""
    if not summary.tokens:
        return {}
    return {CLIP_CANDIDATE_FRACTION: summary.sign_counts.candidates / summary.tokens}


def calibration_scalars(prediction: CalibratedPrediction) -> dict[str, float]:
    """The calibrated prediction and how far to trust it."""
    scalars: dict[str, float | None] = {
        ENTROPY_PREDICTED_CHANGE: prediction.predicted_change,
        ENTROPY_PREDICTED_CHANGE_LOW: prediction.low,
        ENTROPY_PREDICTED_CHANGE_HIGH: prediction.high,
        ENTROPY_INTERVAL_COVERAGE: prediction.interval_coverage,
        ENTROPY_GAIN: prediction.gain,
        ENTROPY_PREDICTION_R2: prediction.r2,
        ENTROPY_PREDICTION_SIGN_AGREEMENT: prediction.sign_agreement,
    }
    return {name: value for name, value in scalars.items() if value is not None}


def report_histograms(summary: StepSummary) -> tuple[ScoreHistogram, ...]:
    """The step's distributions in the wire's words; none without tokens."""
    if not summary.tokens:
        return ()
    return tuple(
        ScoreHistogram(
            name=name, low=histogram.low, high=histogram.high, counts=histogram.counts, not_finite=summary.not_finite
        )
        for name, histogram in summary.histograms.items()
    )
