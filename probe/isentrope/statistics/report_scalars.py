"""The metric names promised to users, from the sums of a step. What was not measured is left out."""

from __future__ import annotations

from isentrope.statistics.calibration import CalibratedPrediction
from isentrope.statistics.covariance_tail import TOP_SHARES
from isentrope.statistics.mechanisms import mechanism_scalars
from isentrope.statistics.step_summary import QUADRANTS, StepSummary
from isentrope_wire.messages import ScoreHistogram


def unit_prediction(summary: StepSummary) -> float | None:
    """-mean(keep r A S_c) over the step's tokens, None without tokens       arXiv:2602.03392, Cor. 4"""
    return sum(summary.change_sums) / summary.tokens if summary.tokens else None


def summary_scalars(summary: StepSummary, *, intervening: bool = False) -> dict[str, float]:
    """Everything measured on the step's tokens; entropies and scores in nats.

    Args:
        intervening: whether a control was in force.
    """
    if not summary.tokens:
        return {"token/count": 0.0, "token/not_finite": float(summary.not_finite)}
    counts, centred = summary.sign_counts, summary.vocab_centered_scores
    scalars = {
        "token/count": float(summary.tokens),
        "token/effective_fraction": summary.mechanisms.pushed / summary.tokens,
        "entropy/mean": summary.entropies.mean,
        "score/discriminator_mean": summary.discriminator_scores.mean,
        "score/discriminator_std": summary.discriminator_scores.standard_deviation,
        "score/vocab_centered_mean": centred.mean,
        "score/vocab_centered_std": centred.standard_deviation,
        "covariance/advantage_score": summary.advantage_score.value,
        "covariance/advantage_logprob": summary.advantage_logprob.value,
        "clip/fraction": counts.dropped / summary.tokens,
    }
    for quadrant, change_sum in zip(QUADRANTS, summary.change_sums, strict=True):
        scalars[f"change/{quadrant}"] = change_sum / summary.tokens
    unit_sum = sum(summary.change_sums)
    scalars["entropy/unit_predicted_change"] = unit_sum / summary.tokens
    scalars |= mechanism_scalars(summary.mechanisms, summary.tokens, unit_sum, intervening=intervening)
    if centred.standard_error > 0:
        scalars["score/self_check_z"] = centred.mean / centred.standard_error
    if counts.positive:
        scalars["clip/fraction_positive"] = counts.dropped_positive / counts.positive
    if counts.negative:
        scalars["clip/fraction_negative"] = counts.dropped_negative / counts.negative
    if summary.covariance_top is not None:
        scalars |= dict(zip(TOP_SHARES, summary.covariance_top, strict=True))
    if summary.importance_ratios.count:
        scalars["ratio/mean"] = summary.importance_ratios.mean
    if summary.observed_change.count:
        scalars["entropy/observed_change"] = summary.observed_change.mean
    if summary.not_finite:
        scalars["token/not_finite"] = float(summary.not_finite)
    return scalars


def selection_scalars(summary: StepSummary) -> dict[str, float]:
    """What an intervention asked for; more than it left out where a cap binds, a draw spares, or a token is weighted."""
    if not summary.tokens:
        return {}
    return {"clip/candidate_fraction": summary.sign_counts.candidates / summary.tokens}


def calibration_scalars(prediction: CalibratedPrediction) -> dict[str, float]:
    """The calibrated prediction and how far to trust it."""
    scalars = {
        "entropy/predicted_change": prediction.predicted_change,
        "entropy/predicted_change_low": prediction.low,
        "entropy/predicted_change_high": prediction.high,
        "entropy/interval_coverage": prediction.interval_coverage,
        "entropy/gain": prediction.gain,
        "entropy/prediction_r2": prediction.r2,
        "entropy/prediction_sign_agreement": prediction.sign_agreement,
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
