"""Rule `reward_hacking`: the training reward against the held-out score."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

from isentrope_wire import metrics
from isentrope_wire.diagnosis.measures import Measures
from isentrope_wire.diagnosis.rules.finding import LATE, Finding, reward_range
from isentrope_wire.diagnosis.traces import Change


def reward_hacking(measures: Measures) -> Finding | None:
    """The training reward rises, the held-out score does not; or the score falls and the reward
    does not."""
    gap = gap_to_held_out(measures, round(measures.age / 2), least=6)
    if gap is None:
        return _falls_held_out(measures)
    return Finding(
        message=(
            f"Since half of the run the reward rose by {gap['reward_gain']:.2g}, the held-out "
            f"score by {gap['held_out_gain']:.2g}: the reward pays for something else."
        ),
        evidence=gap,
        sigmas=gap["reward_gain"] / (gap["error"] or 1e-9),
    )


def _falls_held_out(measures: Measures) -> Finding | None:
    """The held-out score loses half of what it began with, and the reward does not fall."""
    if len(measures.held_out) < 6:
        return None
    begun = fmean(value for _, value in measures.held_out[:2])
    now = fmean(value for _, value in measures.held_out[-2:])
    if now > begun / 2:
        return None
    score = _held_out_change(measures, 0, least=6)
    change = measures.change(metrics.REWARD_MEAN, 0)
    if score is None or change is None or change.falls or score.value + 3 * score.error >= 0:
        return None
    return Finding(
        message=(
            f"The held-out score fell from {begun:.2g} to {now:.2g}, the training reward did not: "
            "what is rewarded is not what is scored."
        ),
        cause="score_falls",
        evidence={"held_out": now, "early_held_out": begun},
        sigmas=-score.value / (score.error or 1e-9),
    )


def gap_to_held_out(measures: Measures, first: int, least: int) -> dict[str, float] | None:
    """What reward and held-out score gained since an index, where the score gained clearly less;
    of at least so many scores."""
    score = _held_out_change(measures, first, least)
    if score is None:
        return None
    change = measures.change(metrics.REWARD_MEAN, first)
    if change is None or not change.rises:
        return None
    low, high = reward_range(measures)
    is_large = change.value > max(4 * change.error, 0.05 * (high - low))
    if not is_large or score.high >= 0.5 * change.low:
        return None
    return {"reward_gain": change.value, "held_out_gain": score.value, "error": score.error}


def _held_out_change(measures: Measures, first: int, least: int) -> Change | None:
    """How far the held-out score moved since an index, by the line through it; None before there
    are so many scores."""
    points = [point for point in measures.held_out if point[0] >= first]
    if measures.age < LATE or len(measures.held_out) < least or len(points) < 3:
        return None
    span = measures.age - points[0][0]
    at, score = [point[0] for point in points], [point[1] for point in points]
    middle, mean = fmean(at), fmean(score)
    squares = sum((index - middle) ** 2 for index in at)
    slope = (
        sum((index - middle) * (value - mean) for index, value in zip(at, score, strict=True))
        / squares
    )
    error = _scatter([value for _, value in measures.held_out]) / math.sqrt(squares) * span
    return Change(value=slope * span, error=error)


def _scatter(values: Sequence[float]) -> float:
    """Standard deviation of a value about a smooth course: of what neighbours leave over, larger
    where they are few."""
    rests = [
        values[place] - (values[place - 1] + values[place + 1]) / 2
        for place in range(1, len(values) - 1)
    ]
    if not rests:
        return math.inf
    return math.sqrt(fmean(rest * rest for rest in rests) / 1.5 * (1 + 4 / len(rests)))
