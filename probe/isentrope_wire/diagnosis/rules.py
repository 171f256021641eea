"""RULES: what tells each known way in which a run does not learn, one pure function each.

A function reads the course of what the run measures, and answers what it found or None. It compares
the run with its own early level, its own noise and its own age; shares of groups, tokens and
completions are also judged as they are, for a half of them is a half in every run. The table of
`isentrope_wire.diagnosis.checks` names each, with what it reads and what to do."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import NormalDist, fmean, median

from isentrope_wire import metrics
from isentrope_wire.diagnosis.measures import Measures, quantity_of
from isentrope_wire.diagnosis.traces import Change, Trace
from isentrope_wire.numbers import percent
from isentrope_wire.reports import AlertLevel

WATCH, ACT = AlertLevel.WATCH, AlertLevel.ACT
LEAST = 20
"""Values that a check needs before it judges."""
AHEAD = 25
"""Steps ahead of which a course is continued where a share comes near its limit."""
MOST = 0.5
"""A share that is most of all."""
ALL = 0.95
_LEARNT = 0.8
"""Share of the groups with one reward that are all right, from which on they are too easy."""
_LEAST_SECONDS = 0.1
"""A step that takes less is the loop's own overhead: it is not judged by its time."""
_FAR = 0.08
"""KL to what drew the tokens, in nats a token, from which on they are another policy's: of a run
with several updates a batch it is a tenth of that."""
_FAR_APART = 0.3
"""Mean difference of log-probs, in nats, of about that KL."""
_NEAR_END = 0.2
"""Part of the reward's range from its end in which a mean tells that most groups are there."""
_UNNAMED = frozenset({"", "same_score"})
"""Causes that do not say where the groups are in the reward's range."""
_STILL = 1e-4
"""KL to the reference, in nats a token, below which a policy is where it began."""
_MUCH_CUT = 0.15
"""Share of cut tokens that is much where the reward does not rise."""
_ALWAYS_FINITE = {
    str(metric)
    for metric in (
        metrics.ADVANTAGE_STD,
        metrics.ENTROPY_MEAN,
        metrics.KL_OLD,
        metrics.KL_REFERENCE,
        metrics.REWARD_MEAN,
    )
}
"""Quantities that every step can give."""
_NAN_STEPS = 5
_LATE = 60
"""Steps before which held-out scores, reward parts and a plateau are not judged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What a check found at a step."""

    message: str
    level: AlertLevel = WATCH
    cause: str = ""
    """Which of several causes of one kind; empty where it has one."""
    evidence: dict[str, float] = field(default_factory=dict)
    sigmas: float = math.inf
    """Standard errors from where it would be nothing."""

    @property
    def certainty(self) -> float:
        """Probability that it is no scatter, at most 0.999."""
        return min(NormalDist().cdf(min(self.sigmas, 9.0)), 0.999)


def last_part(measures: Measures, share: float = 1 / 3, least: int = 30) -> int:
    """Index at which the newest part of the run begins."""
    return measures.age - max(least, round(share * measures.age))


def expected(trace: Trace, span: int = 30) -> float:
    """The level AHEAD steps from now, at the pace of the newest steps."""
    span = max(span, 5 * trace.width)
    change = trace.change(trace.at - span)
    if change is None or not (change.rises or change.falls):
        return trace.level
    return trace.level + change.value * AHEAD / span


def reward_change(measures: Measures, first: int) -> Change | None:
    """How far the reward moved since the step of an index."""
    return measures.change(metrics.REWARD_MEAN, first)


def reward_rises(measures: Measures) -> bool:
    """Whether the reward rose over the newest third of the run, beyond its scatter."""
    change = reward_change(measures, last_part(measures))
    return change is not None and change.rises


# ---- groups


def zero_advantage(measures: Measures) -> Finding | None:
    """Most groups have one reward, so that nothing is learnt from them."""
    share, sigmas = _taught_nothing(measures)
    if share is None:
        return None
    cause = _cause_of_one_reward(measures)
    is_low = cause in {"too_hard", "lost", "cut"} or (cause in _UNNAMED and _is_low(measures))
    if is_low and share < ALL and reward_rises(measures):
        return None
    words = {
        "too_easy": "all completions are right: the problems are too easy",
        "too_hard": "all completions are wrong: the problems are too hard",
        "cut": "all completions are wrong, for most are cut at the length limit",
        "lost": "all completions are wrong, as they were not at first: the policy is lost",
        "constant": "every completion is paid the same: the reward tells nothing apart",
        "identical": "the completions of a group are the same",
        "same_score": (
            "all completions of a group have the same reward, neither the best nor the worst"
        ),
    }
    message = f"{percent(share)} of the groups teach nothing"
    if cause:
        message += f", mostly because {words[cause]}."
    else:
        message += ": all completions of such a group have the same reward."
    evidence = {"share": share}
    zero = measures.trace(metrics.ADVANTAGE_ZERO_GROUP_FRACTION)
    if zero is not None:
        evidence["early_share"] = zero.start
    effective = measures.trace(metrics.TOKEN_EFFECTIVE_FRACTION, LEAST)
    if effective is not None:
        evidence["tokens_wasted"] = 1 - effective.level
        message += f" {percent(1 - effective.level)} of the generated tokens taught nothing."
    level = _level(share > ALL and cause != "too_easy")
    return Finding(message=message, level=level, cause=cause, evidence=evidence, sigmas=sigmas)


def _level(is_urgent: bool) -> AlertLevel:
    return (WATCH, ACT)[is_urgent]


def _taught_nothing(measures: Measures) -> tuple[float | None, float]:
    """Share of the groups that taught nothing, where that is most of them or soon will be, and how
    far that is from the early share; None where it is less."""
    names = (metrics.ADVANTAGE_ZERO_GROUP_FRACTION, metrics.ADVANTAGE_ZERO_FRACTION)
    for name in names:
        zero = measures.trace(name, LEAST)
        if zero is None:
            continue
        taught, early = 1 - zero.level, 1 - zero.start
        grew = zero.level > 0.35 and zero.level > 2 * zero.start and expected(zero) > MOST
        # Most of them from the start on are no harm in a run that learns from the rest.
        is_most = zero.level > MOST and measures.trace(metrics.REWARD_MEAN) is not None
        if is_most or taught < early / 2 or grew:
            return zero.level, zero.sigmas or math.inf
    right, wrong = (
        measures.trace(name, LEAST) for name in (metrics.GROUP_ALL_RIGHT, metrics.GROUP_ALL_WRONG)
    )
    if right is not None and wrong is not None and right.level + wrong.level > MOST:
        return right.level + wrong.level, max(right.sigmas, wrong.sigmas)
    # The spread over all prompts falls less than that within groups.
    parts = {metrics.REWARD_GROUP_STD: 0.5, metrics.ADVANTAGE_STD: 0.5, metrics.REWARD_STD: 0.25}
    for name, part in parts.items():
        spread = measures.trace(name, LEAST)
        if spread is not None and spread.level == spread.highest == 0:
            return 1.0, math.inf
        if spread is not None and 0 <= spread.level < part * spread.start:
            return 1 - spread.level / spread.start, spread.sigmas
    return None, 0.0


def _cause_of_one_reward(measures: Measures) -> str:
    cause = _cause_by_place(measures)
    if cause != "too_hard":
        return cause
    if _was_better(measures):
        return "lost"
    cut = measures.trace(metrics.COMPLETION_TRUNCATED)
    if cut is not None and cut.level > MOST:
        return "cut"
    return cause


def _was_better(measures: Measures) -> bool:
    """Whether the first steps were paid three times what is paid now, and their groups taught."""
    reward = measures.trace(metrics.REWARD_MEAN)
    zero = measures.trace(metrics.ADVANTAGE_ZERO_GROUP_FRACTION)
    if reward is None or (zero is not None and zero.first > 0.8 * zero.level):
        return False
    low = _reward_range(measures)[0]
    return reward.first - low > max(3 * (reward.level - low), 2 * reward.level_error)


def _cause_by_place(measures: Measures) -> str:
    reward = measures.trace(metrics.REWARD_MEAN)
    identical = measures.trace(metrics.GROUP_IDENTICAL)
    zero = measures.trace(metrics.ADVANTAGE_ZERO_GROUP_FRACTION)
    if reward is not None and reward.count >= LEAST and reward.is_constant:
        low, high = _reward_range(measures)
        is_inside = low < reward.level < high or not _knows_range(measures)
        if is_inside and (zero is None or zero.level > ALL):
            return "constant"
    right = measures.trace(metrics.GROUP_ALL_RIGHT)
    wrong = measures.trace(metrics.GROUP_ALL_WRONG)
    if identical is not None and zero is not None and identical.level > MOST * zero.level:
        # A policy that has learnt a problem by heart answers it in one way.
        if right is None or right.level < _LEARNT * zero.level:
            return "identical"
        return "too_easy"
    if right is not None and wrong is not None:
        dead = right.level + wrong.level
        if zero is not None:
            dead = max(dead, zero.level)
        if max(right.level, wrong.level) < MOST * dead:
            return "same_score"
        return _easy_or_hard(right.level > wrong.level)
    place = _place_of_reward(measures)
    if place is None:
        return ""
    spread = measures.trace(metrics.REWARD_STD)
    has_no_spread = spread is not None and spread.level < 0.2 * spread.start
    is_one_answer = zero is not None and zero.level > ALL
    if _NEAR_END < place < 1 - _NEAR_END:
        if identical is None and (has_no_spread or is_one_answer):
            return "identical"
        return ""
    return _easy_or_hard(place > MOST)


def _easy_or_hard(is_easy: bool) -> str:
    return ("too_hard", "too_easy")[is_easy]


def _place_of_reward(measures: Measures) -> float | None:
    """Where in its range the mean reward is, 0: at the lowest; None where that is not known."""
    reward = measures.trace(metrics.REWARD_MEAN)
    low, high = _reward_range(measures)
    if reward is None or high <= low:
        return None
    return (reward.level - low) / (high - low)


def _is_low(measures: Measures) -> bool:
    """Whether the groups with one reward are rather in the lower half of its range."""
    right = measures.trace(metrics.GROUP_ALL_RIGHT)
    wrong = measures.trace(metrics.GROUP_ALL_WRONG)
    if right is not None and wrong is not None:
        return wrong.level >= right.level
    place = _place_of_reward(measures)
    return place is None or place <= MOST


def _knows_range(measures: Measures) -> bool:
    """Whether lowest and highest reward are logged, or those of 0 to 1 can be assumed."""
    reward, highest = measures.trace(metrics.REWARD_MEAN), measures.trace(metrics.REWARD_MAX)
    return highest is not None or reward is None or 0 <= reward.lowest <= reward.highest <= 1


def _reward_range(measures: Measures) -> tuple[float, float]:
    """The lowest and the highest reward: as logged, or of 0 to 1 where all means lie there, or what
    the means were so far."""
    lowest, highest = (
        measures.trace(name, LEAST) for name in (metrics.REWARD_MIN, metrics.REWARD_MAX)
    )
    if lowest is not None and highest is not None:
        return lowest.lowest, highest.highest
    reward = measures.trace(metrics.REWARD_MEAN)
    if reward is None or (reward.lowest >= 0 and reward.highest <= 1):
        return 0.0, 1.0
    return min(0.0, reward.lowest), reward.highest


# ---- completions


def truncation(measures: Measures) -> Finding | None:
    """Completions end at the length limit."""
    cut = measures.trace(metrics.COMPLETION_TRUNCATED, LEAST)
    if cut is None:
        return None
    early = min(cut.start, cut.first)
    grew = cut.level > max(0.02, 3 * early, early + 4 * cut.level_error)
    if not (grew and expected(cut) > 0.05) and not cut.level > 0.25:
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
        level=_level(cut.level > MOST and grew),
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
    gap = _gap_to_held_out(measures, 0, least=4)
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
        level=_level(share.level > MOST),
        evidence={"share": share.level, "early_share": share.start},
        sigmas=share.sigmas,
    )


# ---- reward


def reward_hacking(measures: Measures) -> Finding | None:
    """The training reward rises, the held-out score does not; or the score falls and the reward
    does not."""
    gap = _gap_to_held_out(measures, round(measures.age / 2), least=6)
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
    change = reward_change(measures, 0)
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


def _gap_to_held_out(measures: Measures, first: int, least: int) -> dict[str, float] | None:
    """What reward and held-out score gained since an index, where the score gained clearly less;
    of at least so many scores."""
    score = _held_out_change(measures, first, least)
    if score is None:
        return None
    change = reward_change(measures, first)
    if change is None or not change.rises:
        return None
    low, high = _reward_range(measures)
    is_large = change.value > max(4 * change.error, 0.05 * (high - low))
    if not is_large or score.high >= 0.5 * change.low:
        return None
    return {"reward_gain": change.value, "held_out_gain": score.value, "error": score.error}


def _held_out_change(measures: Measures, first: int, least: int) -> Change | None:
    """How far the held-out score moved since an index, by the line through it; None before there
    are so many scores."""
    points = [point for point in measures.held_out if point[0] >= first]
    if measures.age < _LATE or len(measures.held_out) < least or len(points) < 3:
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


def reward_parts(measures: Measures) -> Finding | None:
    """One part of the reward takes all the gain, another stands."""
    parts = {name: trace for name, trace in measures.parts.items() if trace.count >= LEAST}
    if len(parts) < 2 or measures.age < _LATE:
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
    patience = max(2 * LEAST + _LATE, 3.5 * trace.came_to(trace.start + 0.9 * gain))
    zero = measures.trace(metrics.ADVANTAGE_ZERO_GROUP_FRACTION)
    if zero is not None and zero.level > MOST:
        patience = _LATE
        if _cause_of_one_reward(measures) in {"too_hard", "lost", "cut"}:
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
    low = _reward_range(measures)[0]
    return Finding(
        message=f"The reward fell to {reward.level:.3g}; {before}.",
        level=_level(is_worse and reward.level - low < MOST * (begun - low)),
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
    reward = measures.trace(metrics.REWARD_MEAN, _LATE)
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
    low, high = _reward_range(measures)
    return _knows_range(measures) and reward.level - low > 0.9 * (high - low)


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
    clipped = _clipped(measures)
    if clipped is not None and clipped[0] > 0.2:
        brakes.append(f"{percent(clipped[0])} of the tokens are clipped")
    gradient = measures.trace(metrics.TRAIN_GRAD_NORM)
    if gradient is not None and gradient.level < 0.2 * gradient.start:
        brakes.append(
            f"the gradient is {percent(gradient.level / gradient.start)} of its early norm"
        )
    entropy = measures.trace(metrics.ENTROPY_MEAN)
    if entropy is not None and entropy.level < 0.25 * entropy.start:
        brakes.append(f"{percent(1 - entropy.level / entropy.start)} of the entropy is lost")
    return brakes


# ---- update


def kl(measures: Measures) -> Finding | None:
    """The KL grows faster than linearly, sits on the first tokens, or is large to what drew the
    tokens."""
    difference = measures.trace(metrics.SAMPLER_LOGPROB_DIFFERENCE_MEAN, 2 * LEAST)
    if difference is not None and difference.level - 2 * difference.level_error > _FAR_APART:
        return Finding(
            message=(
                f"The log-probs of trainer and sampler are {difference.level:.2g} nats apart, a "
                "token: what the update learns from was drawn by another policy."
            ),
            cause="sampler",
            evidence={"difference": difference.level, "early_difference": difference.start},
            sigmas=(difference.level - _FAR_APART) / (difference.level_error or 1e-9),
        )
    names = (metrics.KL_REFERENCE, metrics.KL_OLD, metrics.SAMPLER_KL_K3)
    words = ("the reference", "the old policy", "the sampler")
    for name, where in zip(names, words, strict=True):
        trace = measures.trace(name, 2 * LEAST)
        if trace is None:
            continue
        finding = _is_negative(trace, where) or _grows_faster(measures, trace, where)
        if finding is None and name != metrics.KL_REFERENCE:
            finding = _is_far(trace, where)
        if finding is None and name == metrics.KL_REFERENCE:
            finding = _is_of_another(trace)
        if finding is not None:
            return finding
    positions = measures.positions
    if len(positions) < 3 or positions[0].count < LEAST:
        return None
    total = sum(max(trace.level, 0.0) for trace in positions)
    early = sum(max(trace.start, 0.0) for trace in positions)
    if total <= 0 or early <= 0:
        return None
    share, early_share = positions[0].level / total, positions[0].start / early
    if share < max(1 / 3, 2 * early_share):
        return None
    return Finding(
        message=(
            f"{percent(share)} of the KL sits on the first of {len(positions)} positions, "
            f"{percent(early_share)} at first."
        ),
        cause="positions",
        evidence={"share": share, "early_share": early_share},
        sigmas=positions[0].sigmas,
    )


def _is_negative(trace: Trace, where: str) -> Finding | None:
    """A KL is never negative but by scatter."""
    if not trace.level + 4 * trace.level_error < -_FAR:
        return None
    return Finding(
        message=(
            f"The KL to {where} is {trace.level:.3g} nats, which it can't be: the tokens were not "
            "drawn from the policy that is scored."
        ),
        cause="negative",
        evidence={"kl": trace.level},
        sigmas=-trace.level / (trace.level_error or 1e-9),
    )


def _is_of_another(trace: Trace) -> Finding | None:
    """A run begins at its reference, and its KL at 0; where the first one is no smaller than those
    after it, the policy began elsewhere."""
    is_flat = trace.early[0] > 0.3 * trace.start
    if not is_flat or min(trace.early[0], trace.start, trace.level) < _FAR / 2:
        return None
    return Finding(
        message=(
            f"The KL to the reference was {trace.first:.3g} nats at the first steps: the reference "
            "is not the policy that the run began with."
        ),
        cause="stale_reference",
        evidence={"kl": trace.level, "early_kl": trace.first},
        sigmas=trace.start / (trace.level_error or 1e-9),
    )


def _is_far(trace: Trace, where: str) -> Finding | None:
    """The KL to what drew the tokens does not add up over a run: it is small, or they are stale."""
    if not trace.level - 2 * trace.level_error > _FAR:
        return None
    return Finding(
        message=(
            f"The KL to {where} is {trace.level:.3g} nats a token: what the update learns from "
            "was drawn by another policy."
        ),
        cause=where.removeprefix("the ").replace(" ", "_"),
        evidence={"kl": trace.level, "early_kl": trace.start},
        sigmas=(trace.level - _FAR) / (trace.level_error or 1e-9),
    )


def _grows_faster(measures: Measures, trace: Trace, where: str) -> Finding | None:
    level = trace.level
    if level < max(0.1, 3 * trace.start) or trace.level < trace.start + 6 * trace.level_error:
        return None
    third = measures.age // 3
    last, before = trace.change(measures.age - third), trace.change(0, measures.age - third)
    if last is None or before is None:
        return None
    # A power t^a has 2.5 times the pace in its last third that it had before where a = 2.
    pace, was = last.value / third, before.value / (measures.age - third)
    if not last.rises or last.low / third < 2.2 * max(was, 0.0):
        return None
    return Finding(
        message=(
            f"The KL to {where} is {level:.3g} nats and grows faster and faster: by {pace:.2g} "
            f"nats a step now, {max(was, 0.0):.2g} before."
        ),
        level=_level(level > 1),
        cause=where.removeprefix("the ").replace(" ", "_"),
        evidence={"kl": level, "early_kl": trace.start, "pace": pace, "pace_before": was},
        sigmas=last.value / (last.error or 1e-9),
    )


def _clipped(measures: Measures) -> tuple[float, float, float] | None:
    """Share of the tokens that the ratio clip cuts now, at first, and standard errors between."""
    whole = measures.trace(metrics.RATIO_CLIPPED, LEAST)
    if whole is not None:
        return whole.level, whole.start, whole.sigmas
    sides = [
        trace
        for name in (metrics.RATIO_CLIPPED_LOW, metrics.RATIO_CLIPPED_HIGH)
        if (trace := measures.trace(name, LEAST)) is not None
    ]
    if not sides:
        return None
    return (
        sum(side.level for side in sides),
        sum(side.start for side in sides),
        max(side.sigmas for side in sides),
    )


def _mean_clipped(measures: Measures) -> tuple[float, float]:
    """Over the newest steps that are kept, with its standard error: the first update of a batch has
    nothing to cut."""
    names = (metrics.RATIO_CLIPPED, metrics.RATIO_CLIPPED_LOW, metrics.RATIO_CLIPPED_HIGH)
    traces = [measures.trace(name, LEAST) for name in names]
    if traces[0] is not None:
        traces = traces[:1]
    kept = [trace for trace in traces if trace is not None]
    return sum(fmean(trace.recent) for trace in kept), max(trace.level_error for trace in kept)


def clip_saturation(measures: Measures) -> Finding | None:
    """The ratio clip cuts many tokens."""
    clipped = _clipped(measures)
    if clipped is None:
        return None
    now, early, sigmas = clipped
    is_much = now > 0.3 or (now > 0.2 and now > 1.4 * early and sigmas > 4)
    cut, error = _mean_clipped(measures)
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
                level=ACT,
                cause="not_finite",
                evidence={"values": 1.0},
            )
    for metric in (metrics.TRAIN_NOT_FINITE, metrics.TOKEN_GRADIENT_NOT_FINITE):
        count = measures.trace(metric)
        if count is not None and count.at == measures.age - 1 and count.recent[-1] > 0:
            return Finding(
                message=f"{count.recent[-1]:.0f} values of the gradient are NaN or infinite.",
                level=ACT,
                cause="not_finite",
                evidence={"values": count.recent[-1]},
            )
    norm = measures.trace(metrics.TRAIN_GRAD_NORM, LEAST)
    if norm is None:
        return None
    reward = measures.trace(metrics.REWARD_MEAN)
    tells_apart = reward is None or not reward.is_constant
    if norm.highest == 0 and tells_apart and _taught_nothing(measures)[0] is None:
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
    verb = ("is", "are")[len(names) > 1]
    return Finding(
        message=f"{', '.join(names)} {verb} NaN or infinite.",
        level=ACT,
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
    if newest < _LEAST_SECONDS:
        return None
    if newest < 1.4 * seconds.start:
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
