"""Rules of the completions: cut ones, their length, and repetition in them."""

from __future__ import annotations

import math

from isentrope_wire import metrics
from isentrope_wire.diagnosis.measures import Measures
from isentrope_wire.diagnosis.rules.finding import (
    ALL,
    LEAST,
    MOST,
    Finding,
    alert_level,
    expected_level,
    last_part,
    reward_rises,
)
from isentrope_wire.diagnosis.rules.held_out import gap_to_held_out
from isentrope_wire.numbers import percent


def truncation(measures: Measures) -> Finding | None:
    """Completions end at the length limit."""
    cut = measures.trace(metrics.COMPLETION_TRUNCATED, LEAST)
    if cut is None:
        return None
    early = min(cut.start, cut.first)
    grew = cut.level > max(0.02, 3 * early, early + 4 * cut.level_error)
    if not (grew and expected_level(cut) > 0.05) and not cut.level > 0.25:
        return None
    message = f"{percent(cut.level)} of the completions end at the length limit"
    sigmas, cause = math.inf, ""
    if grew:
        message += f", {percent(early)} at first."
        sigmas = cut.sigmas
    else:
        message += " from the start on."
        if min(early, cut.level) > ALL:
            cause = "never_ends"
    rising = [
        name
        for name, metric in (
            ("entropy", metrics.ENTROPY_MEAN),
            ("length", metrics.COMPLETION_LENGTH_MEAN),
            ("repetition", metrics.COMPLETION_REPETITION),
        )
        if _rose(measures, metric)
    ]
    if rising:
        message += f" With it rose: {', '.join(rising)}."
    return Finding(
        message=message,
        level=alert_level(cut.level > MOST and grew),
        cause=cause,
        evidence={"share": cut.level, "early_share": early},
        sigmas=sigmas,
    )


def _rose(measures: Measures, metric: metrics.Metric) -> bool:
    change = measures.change(metric, last_part(measures))
    return change is not None and change.rises


def length(measures: Measures) -> Finding | None:
    """Completions grow, and the reward pays for the length alone; or they shrink to nothing."""
    trace = measures.trace(metrics.COMPLETION_LENGTH_MEAN, LEAST)
    if trace is None or trace.start <= 0:
        return None
    times = trace.level / trace.start
    evidence = {"length": trace.level, "early_length": trace.start}
    if times < 0.5 and not reward_rises(measures):
        return Finding(
            message=(
                f"Completions shrank to {percent(times)} of their early length "
                f"({trace.level:.0f} tokens), and the reward does not rise."
            ),
            cause="short",
            evidence=evidence,
            sigmas=trace.sigmas,
        )
    if times < 1.3:
        return None
    change = trace.change(last_part(measures))
    if change is None or not change.rises:
        return None
    grown = f"Completions are {times:.1f} times as long as at first ({trace.level:.0f} tokens)"
    pays = measures.trace(metrics.COMPLETION_REWARD_OF_LENGTH, LEAST)
    gap = gap_to_held_out(measures, 0, least=4)
    if pays is not None and pays.level > MOST:
        evidence["correlation"] = pays.level
        message = f"{grown}, and within a group the reward follows the length ({pays.level:.2f})."
    elif gap is not None:
        message = f"{grown}: the reward rises with it, the held-out score does not."
        evidence |= gap
    elif measures.held_out or pays is not None or times < 1.6:
        return None
    else:
        message = f"{grown}. No held-out score tells whether that helps."
    return Finding(message=message, evidence=evidence, sigmas=change.value / (change.error or 1e-9))


def repetition(measures: Measures) -> Finding | None:
    """Token n-grams repeat inside completions."""
    share = measures.trace(metrics.COMPLETION_REPETITION, LEAST)
    if share is None or share.level < max(0.1, 3 * share.start, share.start + 4 * share.noise):
        return None
    return Finding(
        message=(
            f"{percent(share.level)} of the token 4-grams were in their completion before, "
            f"{percent(share.start)} at first: completions run in circles."
        ),
        level=alert_level(share.level > MOST),
        evidence={"share": share.level, "early_share": share.start},
        sigmas=share.sigmas,
    )
