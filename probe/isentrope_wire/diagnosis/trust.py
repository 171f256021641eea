"""What a run's prediction is good for now, by what its own earlier predictions came to."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from isentrope_wire.numbers import Answer, Number, decimals_of, fixed

LEAST_COMPARED = 30
"""Compared steps before anything is said."""
NEWEST = 200
"""Compared steps that count."""
SPANS = (1, 5, 10, 20)
"""Steps whose sums are tried, the shortest first."""
_LEAST_SUMS = 5
_LEAST_CHANGES = 1.2
"""Nothing is said where the changes scatter by less than so many times their noise's variance."""
_GOOD_ERROR, _GOOD_DIRECTION = 0.5, 0.8
"""Sums are believed where their error is at most this share of that of "nothing changes", and their
direction is right in at least this share."""
_SIGNIFICANT = 3.0
"""Standard errors."""
_EXPLAINED = {0.85: "nearly all", 0.65: "most", 0.42: "half", 0.25: "a third", 0.1: "little"}
"""Least share that is explained, in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictionTrust(Answer):
    """How good the predictions of the newest steps were."""

    steps: int
    """How many were compared with what came."""
    sign_agreement: Number
    """Share of the steps whose direction was right."""
    explained: Number
    """1 - squared errors over squared deviations of the changes from their mean."""
    span: int | None
    """Steps over which sums of the prediction can be believed; null: not even of twenty, or not
    lately."""
    on_trained_tokens: bool
    """Whether it was compared with the step's own tokens, which the update was fitted to."""
    message: str


def prediction_trust(
    predicted: Mapping[int, float],
    came: Mapping[int, float],
    noise: Mapping[int, float] | None = None,
    *,
    of_unseen: bool,
) -> PredictionTrust | None:
    """What predictions, step -> nats, are good for beside the changes that came; None where too few
    can be compared. `noise` is the standard error of a change, 0 where it is not known: it is taken
    off the errors and the changes."""
    steps = sorted(predicted.keys() & came.keys())[-NEWEST:]
    if len(steps) < LEAST_COMPARED:
        return None
    pairs = [(predicted[step], came[step]) for step in steps]
    mean = sum(change for _, change in pairs) / len(pairs)
    variances = {step: (noise or {}).get(step, 0.0) ** 2 for step in steps}
    of_noise = sum(variances.values())
    spread = sum((change - mean) ** 2 for _, change in pairs)
    errors = max(sum((change - guess) ** 2 for guess, change in pairs) - of_noise, 0.0)
    if spread <= _LEAST_CHANGES * of_noise or spread <= 0:
        return None
    explained = 1 - errors / (spread - of_noise)
    agreement = _agreement(pairs)
    variance = of_noise / len(steps)
    missed = _missed_of_newest(pairs[-LEAST_COMPARED:])
    span = None
    if missed is None:
        span = next(
            (span for span in SPANS if _is_good(_sums(steps, pairs, span), span * variance)), None
        )
    return PredictionTrust(
        steps=len(steps),
        sign_agreement=agreement,
        explained=explained,
        span=span,
        on_trained_tokens=not of_unseen,
        message=_told(agreement, explained, span, missed, of_unseen),
    )


def _missed_of_newest(pairs: Sequence[tuple[float, float]]) -> float | None:
    """What the newest predictions miss on average, in nats a step, where that is no chance and more
    than half of what came. Early changes can be so large that the errors of all steps hide it."""
    errors = [change - guess for guess, change in pairs]
    missed, came = fmean(errors), fmean(change for _, change in pairs)
    is_chance = abs(missed) <= _SIGNIFICANT * stdev(errors) / math.sqrt(len(errors))
    if is_chance or abs(missed) <= _GOOD_ERROR * abs(came):
        return None
    return missed


def _agreement(pairs: Sequence[tuple[float, float]]) -> float:
    return sum((guess > 0) == (change > 0) for guess, change in pairs) / len(pairs)


def _sums(
    steps: Sequence[int], pairs: Sequence[tuple[float, float]], span: int
) -> list[tuple[float, float]]:
    """Sums over so many steps that follow each other, none in two of them."""
    sums, first = [], 0
    while first + span <= len(steps):
        if steps[first + span - 1] - steps[first] == span - 1:
            window = pairs[first : first + span]
            sums.append((sum(guess for guess, _ in window), sum(change for _, change in window)))
            first += span
        else:
            first += 1
    return sums


def _is_good(sums: Sequence[tuple[float, float]], variance: float) -> bool:
    """`variance`: of the noise of a sum that came."""
    if len(sums) < _LEAST_SUMS:
        return False
    of_noise = variance * len(sums)
    error = math.sqrt(max(sum((change - guess) ** 2 for guess, change in sums) - of_noise, 0.0))
    unchanged = math.sqrt(max(sum(change**2 for _, change in sums) - of_noise, 0.0))
    return error <= _GOOD_ERROR * unchanged and _agreement(sums) >= _GOOD_DIRECTION


def _told(
    agreement: float, explained: float, span: int | None, missed: float | None, of_unseen: bool
) -> str:
    how_much = next((word for least, word in _EXPLAINED.items() if explained >= least), "nothing")
    right = round(10 * agreement)
    if agreement < 1:
        right = min(right, 9)
    believe = f"trust sums over {span} steps"
    if missed is not None:
        size = fixed(missed, decimals_of(missed, 2))
        believe = f"the newest {LEAST_COMPARED} miss {size} nats a step: do not act on it"
    elif span is None:
        believe = "do not act on it alone"
    elif span == 1:
        believe = "trust single steps"
    where = ("on trained tokens: ", "")[of_unseen]
    said = (
        f"{where}its sign was right in {right} of 10 steps, "
        f"it explains {how_much} of how steps differ; {believe}."
    )
    return said[:1].upper() + said[1:]
