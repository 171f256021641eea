"""Rules of the training reward: its parts, its decline, a plateau and what may brake it."""

from __future__ import annotations

import math

from isentrope_wire import metrics
from isentrope_wire.diagnosis.measures import Measures
from isentrope_wire.diagnosis.rules.finding import (
    LATE,
    LEAST,
    MOST,
    Finding,
    alert_level,
    knows_range,
    last_part,
    reward_range,
    reward_rises,
)
from isentrope_wire.diagnosis.rules.groups import cause_of_one_reward
from isentrope_wire.diagnosis.rules.updates import clipped_share
from isentrope_wire.diagnosis.traces import Trace
from isentrope_wire.numbers import percent

_STILL = 1e-4
"""KL to the reference, in nats a token, below which a policy is where it began."""


def reward_parts(measures: Measures) -> Finding | None:
    """One part of the reward takes all the gain, another stands."""
    parts = {name: trace for name, trace in measures.parts.items() if trace.count >= LEAST}
    if len(parts) < 2 or measures.age < LATE:
        return None
    first = last_part(measures, least=40)
    for name, trace in parts.items():
        for other, standing in parts.items():
            if other == name:
                continue
            finding = _takes_all(measures, first, (name, trace), (other, standing))
            if finding is not None:
                return finding
    return None


def _takes_all(
    measures: Measures, first: int, taking: tuple[str, Trace], left: tuple[str, Trace]
) -> Finding | None:
    (name, trace), (other, standing) = taking, left
    # A part may be paid in any unit: its own size is one.
    size = max(abs(trace.highest), abs(trace.lowest))
    if standing.level >= max(0.5 * size, 0.8 * trace.level):
        return None
    now, other_now = trace.change(first), standing.change(first)
    if now is None or other_now is None:
        return None
    gain, other_gain = trace.level - trace.start, standing.level - standing.start
    error = 2 * trace.level_error
    # Either it gains now what the other gained before and does not any more. Or it gained it, and
    # the other stands for more than twice as long since: nearly all runs learn the format first.
    rose_before = standing.value_at(first) > standing.start + 5 * standing.level_error
    gains_now = now.low > 0.1 * size and other_now.high < 0.2 * now.value and rose_before
    pace = max(other_now.high, 0.0) / max(standing.at - first, 1)
    patience = max(2 * LEAST + LATE, 3.5 * trace.came_to(trace.start + 0.9 * gain))
    zero = measures.trace(metrics.ADVANTAGE_ZERO_GROUP_FRACTION)
    if zero is not None and zero.level > MOST:
        patience = LATE
        if cause_of_one_reward(measures) in {"too_hard", "lost", "cut"}:
            patience = math.inf
    has_gained = (
        measures.age >= patience
        and gain > max(0.2 * size, 5 * error)
        and other_gain < 0.1 * gain
        and pace * 10 * measures.age < gain
    )
    if not gains_now and not has_gained:
        return None
    return Finding(
        message=(
            f"The part {name} of the reward went from {trace.start:.2g} to {trace.level:.2g}, "
            f"{other} stands at {standing.level:.2g}."
        ),
        evidence={"gain": gain, "other_gain": other_gain},
        sigmas=abs(gain) / (error or 1e-9),
    )


def decline(measures: Measures) -> Finding | None:
    """The reward fell: below where it began, or by much of what was learnt."""
    reward = measures.trace(metrics.REWARD_MEAN, LEAST)
    if reward is None:
        return None
    begun = max(reward.start, reward.first)
    gain, fall = reward.highest - begun, reward.highest - reward.level
    # The highest level of many is above them by chance: by three errors or four.
    error = 8 * reward.level_error
    has_learnt = gain > error
    is_worse = begun - reward.level > error
    has_lost = has_learnt and fall > max(0.4 * gain, error)
    if not (is_worse or has_lost) or reward_rises(measures):
        return None
    evidence = {"reward": reward.level, "highest": reward.highest, "early_reward": begun}
    cause, before = "from_start", f"at first it was {begun:.3g}"
    if has_learnt:
        cause, before = "lost", f"it was {reward.highest:.3g} at best, {begun:.3g} at first"
    low = reward_range(measures)[0]
    return Finding(
        message=f"The reward fell to {reward.level:.3g}; {before}.",
        level=alert_level(is_worse and reward.level - low < MOST * (begun - low)),
        cause=cause,
        evidence=evidence,
        sigmas=max(fall, begun - reward.level) / (2 * reward.level_error or 1e-9),
    )


def plateau(measures: Measures) -> Finding | None:
    """The reward stands, though groups have spread."""
    return _never_moves(measures) or _stands(measures)


def _never_moves(measures: Measures) -> Finding | None:
    """The reward is one number, or the learning rate is 0: there is nothing to wait for."""
    rate = measures.trace(metrics.TRAIN_LEARNING_RATE, LEAST)
    if rate is not None and rate.is_constant and rate.level == 0:
        return Finding(
            message=f"The learning rate is 0 for {len(rate.recent)} steps: nothing is learnt.",
            cause="rate",
            evidence={"learning_rate": 0.0},
        )
    reward = measures.trace(metrics.REWARD_MEAN, LEAST)
    if reward is None or not reward.is_constant or reward.highest > reward.lowest:
        return None
    return Finding(
        message=f"The reward is {reward.level:.3g} at every step, to the last digit.",
        cause="constant",
        evidence={"reward": reward.level},
    )


def _stands(measures: Measures) -> Finding | None:
    reward = measures.trace(metrics.REWARD_MEAN, LATE)
    zero = measures.trace(metrics.ADVANTAGE_ZERO_GROUP_FRACTION)
    if reward is None or (zero is not None and zero.level > MOST):
        return None
    span = max(50, round(measures.age / 3))
    if measures.age < span + 40 or _is_solved(measures, reward):
        return None
    now = reward.change(measures.age - span)
    if now is None:
        return None
    gain, error = reward.highest - reward.start, 2 * reward.level_error
    has_risen = gain > 4 * error
    # What has risen stands when this is little of it; what never rose, after a longer while.
    if has_risen:
        stands = now.high < 0.08 * gain and now.low > -0.3 * gain
    else:
        spread = measures.trace(metrics.REWARD_STD)
        scale = reward.noise
        if spread is not None:
            scale = max(scale, spread.level / 4)
        whole = reward.change(0)
        never_rose = whole is not None and not whole.rises and whole.value < 0.4 * scale
        stands = measures.age >= 2 * span and never_rose
    if not stands:
        return None
    brakes = _brakes(measures)
    message = f"The reward stands at {reward.level:.3g} for {span} steps, though groups differ."
    cause = ""
    if brakes:
        message += f" What may brake: {', '.join(brakes)}."
        cause = "braked"
    return Finding(
        message=message,
        cause=cause,
        evidence={"reward": reward.level, "change": now.value, "gain": gain},
        sigmas=max(gain / (error or 1e-9), 3.0),
    )


def _is_solved(measures: Measures, reward: Trace) -> bool:
    """Whether nearly all is paid that can be: there is nothing left to learn."""
    low, high = reward_range(measures)
    return knows_range(measures) and reward.level - low > 0.9 * (high - low)


def _brakes(measures: Measures) -> list[str]:
    """What holds an update back, as far as it is measured."""
    brakes = []
    dropped = measures.trace(metrics.CLIP_FRACTION, LEAST)
    if dropped is not None and dropped.level > 0.05:
        brakes.append(f"the active control or hold clips {percent(dropped.level)} of the tokens")
    rate = measures.trace(metrics.TRAIN_LEARNING_RATE)
    if rate is not None and max(rate.early) > 0 and rate.level < 0.2 * max(rate.early):
        brakes.append(f"the learning rate is down to {rate.level:.1g}")
    reference = measures.trace(metrics.KL_REFERENCE, LEAST)
    if reference is not None and abs(reference.level) < _STILL:
        brakes.append(
            f"the policy has not left the reference (KL {reference.level:.1g}): weights that are "
            "not trained, a learning rate that is too low, a KL term that is too heavy"
        )
    clipped = clipped_share(measures)
    if clipped is not None and clipped[0] > 0.2:
        brakes.append(f"{percent(clipped[0])} of the tokens are clipped")
    gradient = measures.trace(metrics.TRAIN_GRAD_NORM)
    if gradient is not None and gradient.level < 0.2 * gradient.start:
        brakes.append(
            f"the gradient is {percent(gradient.level / gradient.start)} of its early norm"
        )
    entropy = measures.trace(metrics.ENTROPY_MEAN)
    if entropy is not None and max(entropy.level, 0.0) < 0.25 * entropy.start:
        brakes.append(f"{percent(1 - entropy.level / entropy.start)} of the entropy is lost")
    return brakes
