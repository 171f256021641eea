"""Rules of the update: the ratio clip, the gradient, NaN, the value function, a step's time."""

from __future__ import annotations

from statistics import fmean, median

from isentrope_wire import metrics
from isentrope_wire.diagnosis.measures import Measures, quantity_of
from isentrope_wire.diagnosis.rules.finding import LEAST, Finding, last_part, reward_rises
from isentrope_wire.diagnosis.rules.groups import taught_nothing
from isentrope_wire.diagnosis.traces import Trace
from isentrope_wire.numbers import percent
from isentrope_wire.reports import AlertLevel

_LEAST_SECONDS = 0.1
"""A step that takes less is the loop's own overhead: it is not judged by its time."""
_MUCH_CUT = 0.15
"""Share of cut tokens that is much where the reward does not rise."""
_ALWAYS_FINITE = frozenset(
    {
        metrics.ADVANTAGE_STD,
        metrics.ENTROPY_MEAN,
        metrics.KL_OLD,
        metrics.KL_REFERENCE,
        metrics.REWARD_MEAN,
    }
)
"""Quantities that every step can give."""
_NAN_STEPS = 5


def clipped_share(measures: Measures) -> tuple[float, float, float] | None:
    """Share of the tokens that the ratio clip cuts now, at first, and standard errors between."""
    traces = _clip_traces(measures)
    if not traces:
        return None
    return (
        sum(trace.level for trace in traces),
        sum(trace.start for trace in traces),
        max(trace.sigmas for trace in traces),
    )


def _clip_traces(measures: Measures) -> list[Trace]:
    """The share that the ratio clip cuts: the whole, or else its sides."""
    whole = measures.trace(metrics.RATIO_CLIPPED, LEAST)
    if whole is not None:
        return [whole]
    sides = (metrics.RATIO_CLIPPED_LOW, metrics.RATIO_CLIPPED_HIGH)
    traces = [measures.trace(name, LEAST) for name in sides]
    return [trace for trace in traces if trace is not None]


def clip_saturation(measures: Measures) -> Finding | None:
    """The ratio clip cuts many tokens."""
    clipped = clipped_share(measures)
    if clipped is None:
        return None
    now, early, sigmas = clipped
    is_much = now > 0.3 or (now > 0.2 and now > 1.4 * early and sigmas > 4)
    # The first update of a batch has nothing to cut: what counts is the mean of many steps.
    traces = _clip_traces(measures)
    cut = sum(fmean(trace.recent) for trace in traces)
    error = max(trace.level_error for trace in traces)
    if not is_much and not (cut > _MUCH_CUT and not reward_rises(measures)):
        return None
    # A share that was high from the start has not changed.
    sigmas = max(sigmas, (cut - _MUCH_CUT) / (error or 1e-9))
    low = measures.trace(metrics.RATIO_CLIPPED_LOW)
    high = measures.trace(metrics.RATIO_CLIPPED_HIGH)
    cause, side = "", ""
    if low is not None and high is not None and low.level + high.level > 0:
        cause, sign = max((low.level, "low", "negative"), (high.level, "high", "positive"))[1:]
        side = f", most of them on the {cause} side, where the advantage is {sign}"
    return Finding(
        message=(
            f"The ratio clip cuts {percent(now)} of the tokens, {percent(early)} at first{side}."
        ),
        cause=cause,
        evidence={"share": now, "early_share": early},
        sigmas=sigmas,
    )


def gradient(measures: Measures) -> Finding | None:
    """The gradient is not finite, jumps, or vanishes."""
    for name in measures.not_finite:
        if any(part in name for part in ("grad", "loss")):
            return Finding(
                message=f"{name} is NaN or infinite: the weights may be lost from here on.",
                level=AlertLevel.ACT,
                cause="not_finite",
                evidence={"values": 1.0},
            )
    for metric in (metrics.TRAIN_NOT_FINITE, metrics.TOKEN_GRADIENT_NOT_FINITE):
        count = measures.trace(metric)
        if count is not None and count.at == measures.age - 1 and count.recent[-1] > 0:
            return Finding(
                message=f"{count.recent[-1]:.0f} values of the gradient are NaN or infinite.",
                level=AlertLevel.ACT,
                cause="not_finite",
                evidence={"values": count.recent[-1]},
            )
    norm = measures.trace(metrics.TRAIN_GRAD_NORM, LEAST)
    if norm is None:
        return None
    reward = measures.trace(metrics.REWARD_MEAN)
    tells_apart = reward is None or not reward.is_constant
    if norm.highest == 0 and tells_apart and taught_nothing(measures)[0] is None:
        return Finding(
            message="The gradient's norm is 0 at every step: no weight is trained.",
            cause="zero",
            evidence={"norm": 0.0},
        )
    usual = median(norm.recent)
    newest = norm.recent[-1]
    if newest > 10 * usual > 0 and norm.at == measures.age - 1:
        return Finding(
            message=(
                f"The gradient's norm jumped to {newest:.3g}, {newest / usual:.0f} times its "
                "usual one."
            ),
            cause="spike",
            evidence={"norm": newest, "usual_norm": usual},
        )
    if usual > 10 * norm.start > 0:
        return Finding(
            message=(
                f"The gradient's norm is {usual:.2g}, {usual / norm.start:.0f} times its early one."
            ),
            cause="growing",
            evidence={"norm": usual, "early_norm": norm.start},
            sigmas=norm.sigmas,
        )
    if norm.start > 0 and usual < norm.start / 20:
        return Finding(
            message=(
                f"The gradient's norm is {norm.level:.2g}, {percent(usual / norm.start, 1)} of "
                "its early one: almost nothing is learnt."
            ),
            cause="vanishing",
            evidence={"norm": usual, "early_norm": norm.start},
            sigmas=norm.sigmas,
        )
    return None


def not_finite(measures: Measures) -> Finding | None:
    """A quantity that the checks read is infinite, or is NaN for some steps: loggers write NaN for
    what a step did not measure."""
    names = [
        name
        for name in measures.not_finite
        if quantity_of(name) in _ALWAYS_FINITE and _is_spoilt(measures, name)
    ]
    if not names:
        return None
    verb = "is"
    if len(names) > 1:
        verb = "are"
    return Finding(
        message=f"{', '.join(names)} {verb} NaN or infinite.",
        level=AlertLevel.ACT,
        evidence={"values": float(len(names))},
    )


def _is_spoilt(measures: Measures, name: str) -> bool:
    steps = measures.spoilt.get(quantity_of(name) or "", 0)
    return steps >= _NAN_STEPS or name in measures.infinite


def value(measures: Measures) -> Finding | None:
    """The value function explains less and less of the returns, or its loss explodes."""
    return _explains_less(measures) or _value_loss_grows(measures)


def _value_loss_grows(measures: Measures) -> Finding | None:
    loss = measures.trace(metrics.VALUE_LOSS, 2 * LEAST)
    if loss is None or loss.start <= 0:
        return None
    usual = median(loss.recent)
    if usual < 10 * loss.start:
        return None
    change = loss.change(last_part(measures))
    if change is None or change.falls:
        return None
    return Finding(
        message=(
            f"The value function's loss is {usual:.3g}, {usual / loss.start:.0f} times its early "
            "one."
        ),
        cause="loss",
        evidence={"loss": usual, "early_loss": loss.start},
        sigmas=loss.sigmas,
    )


def _explains_less(measures: Measures) -> Finding | None:
    explained = measures.trace(metrics.VALUE_EXPLAINED_VARIANCE, 2 * LEAST)
    if explained is None:
        return None
    best = explained.highest
    is_half = best > 0.1 and explained.level < best / 2
    is_useless = explained.level < -2 * explained.level_error
    if not is_half and not is_useless:
        return None
    change = explained.change(last_part(measures))
    falls, rises = change is not None and change.falls, change is not None and change.rises
    if not (is_half and falls) and not (is_useless and not rises):
        return None
    return Finding(
        message=(
            f"The value function explains {explained.level:.2f} of the returns' variance, "
            f"{best:.2f} at best."
        ),
        evidence={"explained": explained.level, "best": best},
        sigmas=(best - explained.level) / (explained.level_error or 1e-9),
    )


def throughput(measures: Measures) -> Finding | None:
    """A step takes longer and longer."""
    seconds = measures.trace(metrics.TIME_STEP_SECONDS, 2 * LEAST)
    if seconds is None or seconds.start <= 0:
        return None
    newest = median(list(seconds.recent)[-20:])
    if newest < max(_LEAST_SECONDS, 1.4 * seconds.start):
        return None
    change = seconds.change(last_part(measures))
    if change is None or change.low < 0.1 * seconds.start:
        return None
    times = newest / seconds.start
    evidence = {"seconds": newest, "early_seconds": seconds.start}
    tokens = measures.trace(metrics.COMPLETION_LENGTH_MEAN, LEAST)
    longer = 1.0
    if tokens is not None and tokens.start > 0:
        longer = tokens.level / tokens.start
    cause, why = "machine", "completions are not longer"
    if longer - 1 > 0.6 * (times - 1):
        cause, why = "length", f"completions are {longer:.1f} times as long"
    elif longer > 1.2:
        why = f"completions are only {longer:.1f} times as long"
    generation = measures.trace(metrics.TIME_GENERATION_SECONDS, LEAST)
    if generation is not None and newest > 0:
        evidence["generation_share"] = generation.level / newest
        why += f", {percent(min(generation.level / newest, 1.0))} of it is generation"
    return Finding(
        message=f"A step takes {newest:.3g} s, {times:.1f} times as long as at first; {why}.",
        cause=cause,
        evidence=evidence,
        sigmas=change.value / (change.error or 1e-9),
    )
