"""The verdict on a pushed control: what the entropy did under it, beside what would have come
without it.

What would have come is what came less what the control added: the measured part of the unit
prediction that it made, times the gain. What it adds fades as the preview has it, for a higher
entropy falls faster, and is taken away as a share, for an entropy does not fall below 0. So a run
that slows down by itself credits no control. All steps since it was applied count, up to 5 000, and
the verdict is given after 20 of them and again after 50, 100, 200 ..."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median

from isentrope_wire.control import Method
from isentrope_wire.control_answers import (
    Compared,
    ControlVersion,
    Estimate,
    Outcome,
    RewardChange,
    Verdict,
)
from isentrope_wire.diagnosis.course import AHEAD, LEAST_POINTS, OVER_LEFT, effect_in
from isentrope_wire.diagnosis.effect import EFFECT_STEPS, PROMISED_STEPS
from isentrope_wire.diagnosis.guard import reward_change
from isentrope_wire.diagnosis.slope import slope_of
from isentrope_wire.numbers import decimals_of, fixed, nats, percent

TURNED, STOPPED, NO_EFFECT = -0.5, 0.25, 0.75
"""Remaining share of the expected pace: below the first where a control turned the change, at most
the second where it stopped it, at least the third where it had no effect."""
_REVISED = (PROMISED_STEPS, 50, 100, 200, 500, 1_000, 2_000, 5_000)
"""Steps under a control after which its verdict is given, and given again."""
_CERTAIN = 0.75
"""An interval wider to each side than this share of the expected pace decides nothing, unless the
control's effect is larger still."""
_OVERSHOT = 2.0
"""A control that turns the entropy this many times as fast as it went, or was promised,
overshot."""
_NEAR = 0.05
"""A hold has reached its target where the mean entropy is within this share of it."""


def judged_after(steps: int) -> int:
    """The number of steps that a verdict after so many is made of: 20, 50, 100 ... 5 000; 0 before
    the twentieth."""
    return max((mark for mark in _REVISED if mark <= steps), default=0)


def verdict_on(
    version: ControlVersion,
    entropies: Mapping[int, float],
    clip_fractions: Mapping[int, float],
    added: Mapping[int, float],
    *,
    targets: Mapping[int, float] | None = None,
    early: float | None = None,
    end: int,
    is_over: bool = False,
) -> Verdict | None:
    """What a control did.

    Args:
        version: with its prediction.
        entropies: step -> entropy in nats, finite, of the steps under it, and of some before.
        clip_fractions: step -> share of clipped tokens, finite.
        added: step -> what the control added to the step's change, in nats.
        targets: step -> the entropy that it held, in nats; None: it holds none.
        early: the early level, in nats; None: not known.
        end: the last step under it so far.
        is_over: whether no further step will be made under it.

    Returns:
        None of a version that was not applied, and of the one that the run began with.
    """
    applied = version.applied_step
    if applied is None or version.version == 0:
        return None
    steps = sum(applied <= step <= end for step in entropies)
    # A hold is judged by where it is now.
    given = steps
    if targets is None:
        given = judged_after(steps) or (steps if is_over else 0)
    # The entropy of the step that it was applied at is still that of the steps before, so it is
    # where the slope begins.
    under = [step for step in sorted(entropies) if applied <= step <= end][: given or None]
    last = applied
    if under:
        last = under[-1]
    predicted, promised = version.predicted, None
    if predicted is not None and predicted.pace is not None:
        promised = predicted.pace.value
    levels: _Levels = (None, None, None)
    if given:
        levels = _levels(version, entropies, last)
    now = _judgement(under, entropies, added, promised)
    said = now
    if targets is not None:
        outcome = _judge_hold(under, entropies, targets, now.realised)
        said = now = replace(now, outcome=outcome, left=None)
    elif given < LEAST_POINTS:
        said = now = replace(now, outcome=Outcome.UNDECIDED, left=None)
    elif given > PROMISED_STEPS:
        said = _first_that_stands(now, under, entropies, added, promised)
    if targets is None and now.without is not None:
        said = _heed_levels(said, median_at(entropies, applied), levels)
    ends = [median_at(entropies, step) for step in (applied, last)]
    has_passed = early is not None and _passes(early, *ends)
    is_moving = now.left is not None and now.realised and now.realised.direction
    if targets is None and has_passed and is_moving:
        said = replace(said, outcome=Outcome.OVERSHOT)
    return Verdict(
        version=version.version,
        outcome=said.outcome,
        steps=steps,
        judged_steps=given,
        clip_fraction=Compared(
            before=_mean(clip_fractions, applied - EFFECT_STEPS, applied - 1),
            predicted=None if predicted is None else predicted.clip_fraction,
            realised=_mean(clip_fractions, applied, last),
        ),
        promised=promised,
        realised=None if now.realised is None else now.realised.value,
        without=now.without,
        left=now.left,
        message=_write_sentence(version, said, now, given, clip_fractions.get(last, 0.0), levels),
        level=levels[0],
        promised_level=levels[1],
        level_without=levels[2],
    )


@dataclass(frozen=True, slots=True)
class _Judgement:
    """What the steps under a control say of it."""

    realised: Estimate | None
    """Pace, in nats a step; None of fewer steps than a pace needs."""
    without: float | None
    """The pace that would have come; None: not known."""
    outcome: Outcome = Outcome.UNDECIDED
    left: float | None = None


def _judgement(
    steps: Sequence[int],
    entropies: Mapping[int, float],
    added: Mapping[int, float],
    promised: float | None,
) -> _Judgement:
    """Of the steps under a control, the first being that at which it was applied."""
    values = [entropies[step] for step in steps]
    realised = slope_of(steps, values)
    part = [value for step, value in added.items() if steps and steps[0] <= step <= steps[-1]]
    if realised is None or not part:
        return _Judgement(realised, None)
    without = pace_without(values, steps, fmean(part), steps[0])
    return _Judgement(realised, without, *outcome_of(realised, without, promised))


def _first_that_stands(
    now: _Judgement,
    steps: Sequence[int],
    entropies: Mapping[int, float],
    added: Mapping[int, float],
    promised: float | None,
) -> _Judgement:
    """The verdict as it was first given, while the pace may be the one that it was given by; else
    today's."""
    for mark in _REVISED:
        if mark >= len(steps):
            break
        then = _judgement(steps[:mark], entropies, added, promised)
        if then.outcome != Outcome.UNDECIDED and _agree(then.realised, now.realised):
            return then
    return now


def _agree(then: Estimate | None, now: Estimate | None) -> bool:
    """Whether two paces may be one: their 90 % intervals meet."""
    return then is not None and now is not None and then.low <= now.high and now.low <= then.high


_Levels = tuple[float | None, float | None, float | None]
"""Entropy that came, that was promised, and that was forecast without the control, in nats."""


def _levels(version: ControlVersion, entropies: Mapping[int, float], last: int) -> _Levels:
    """Levels at the last judged step, at most the fiftieth after the push, where a forecast ends.
    No forecast where the control was applied only after that step."""
    predicted, pushed, applied = version.predicted, version.requested_step, version.applied_step
    if pushed is not None and applied is not None and applied < pushed + AHEAD:
        last = min(last, pushed + AHEAD)
    level = median_at(entropies, last)
    if not math.isfinite(level):
        return None, None, None
    if predicted is None or pushed is None:
        return level, None, None
    if not pushed < last <= pushed + AHEAD:
        return level, None, None
    promised, without = (
        column[min(last - pushed, len(column)) - 1] if column else None
        for column in (predicted.forecast, predicted.unchanged)
    )
    return level, promised, without


def _heed_levels(said: _Judgement, start: float, levels: _Levels) -> _Judgement:
    """The verdict by the pace, unless the levels contradict it.

    A fall that ended below what was forecast without the control was neither stopped nor slowed.
    What added less than _OVERSHOT times what was promised did not overshoot. Where the pace decides
    nothing, a level clearly on the promised side of both forecasts does. Of a rise likewise.
    Where nothing was promised, a pace without the control that goes the other way than the forecast
    without it proves nothing.

    Args:
        start: entropy when it was applied, in nats.
    """
    level, promised, without = levels
    if level is None or without is None:
        return said
    if promised is None:
        contradicts = said.without is not None and said.without * (without - start) < 0
        if contradicts and said.outcome == Outcome.NO_EFFECT:
            return replace(said, outcome=Outcome.UNDECIDED, left=None)
        return said
    if said.outcome in (Outcome.STOPPED, Outcome.SLOWED) and said.without is not None:
        fell_further = said.without < 0 and level < without < promised
        rose_further = said.without > 0 and level > without > promised
        if fell_further or rose_further:
            return replace(said, outcome=Outcome.NO_EFFECT)
    if said.outcome == Outcome.OVERSHOT and promised != without:
        share = (level - without) / (promised - without)
        if 0 <= share < _OVERSHOT:
            return replace(said, outcome=Outcome.TURNED)
    fall_ended = without < min(start, OVER_LEFT * level) and without < promised <= level
    rise_ended = OVER_LEFT * without > max(start, level) and without > promised >= level
    if said.outcome == Outcome.UNDECIDED and (fall_ended or rise_ended):
        gone = without - start
        left = (level - start) / gone
        if left <= STOPPED:
            return replace(said, outcome=Outcome.STOPPED, left=left, without=gone)
        return replace(said, outcome=Outcome.SLOWED, left=left, without=gone)
    return said


def outcome_of(
    realised: Estimate, without: float, promised: float | None = None
) -> tuple[Outcome, float | None]:
    """Outcome, and the share of the pace without the control that is left; paces in nats a step. A
    large effect is never undecided: where that pace is near 0, the effect is compared with the
    error of the actual pace."""
    margin = (realised.high - realised.low) / 2
    effect = realised.value - without
    if margin > _CERTAIN * abs(without) and abs(effect) <= margin:
        return Outcome.UNDECIDED, None
    expected = max(abs(without), margin)
    if not expected:
        return Outcome.UNDECIDED, None
    # Which way it would have gone; where it would have stood still, against what it did.
    way = math.copysign(1, without or -realised.value)
    left = way * realised.value / expected
    asked = max(-way * (promised or 0.0), 0.0)
    if realised.direction and -left > _OVERSHOT * max(1.0, asked / expected):
        return Outcome.OVERSHOT, left
    if left < TURNED and realised.direction and -left > _OVERSHOT * asked / expected:
        return Outcome.TURNED, left
    if left <= STOPPED:
        return Outcome.STOPPED, left
    if left <= NO_EFFECT:
        return Outcome.SLOWED, left
    return Outcome.NO_EFFECT, left


def median_at(entropies: Mapping[int, float], step: int) -> float:
    """The median of the five steps up to this one, in nats: a step's mean scatters."""
    known = [entropies[at] for at in sorted(entropies) if at <= step][-LEAST_POINTS:]
    if known:
        return median(known)
    return math.nan


def _passes(early: float, before: float, now: float) -> bool:
    """Whether an entropy went through its early level, from either side, by more than an eighth."""
    return before < early < OVER_LEFT * now or before > early > now / OVER_LEFT


def pace_without(
    entropies: Sequence[float], steps: Sequence[int], added: float, applied: int
) -> float:
    """Pace without a control, in nats a step.

    Args:
        entropies: under it, in nats, of `steps`, two at least.
        added: what it added to each of these steps on average, in nats.
        applied: the step that it was applied at.
    """
    now, lasting = fmean(entropies), [effect_in(step - applied, applied) for step in steps]
    if added > 0 and now > 0:
        course = [
            entropy * math.exp(-added / now * last)
            for entropy, last in zip(entropies, lasting, strict=True)
        ]
    else:
        course = [entropy - added * last for entropy, last in zip(entropies, lasting, strict=True)]
    found = slope_of(steps, course)
    assert found is not None, "the same steps have a slope with the control"
    return found.value


def _judge_hold(
    under: Sequence[int],
    entropies: Mapping[int, float],
    targets: Mapping[int, float],
    realised: Estimate | None,
) -> Outcome:
    newest = [step for step in under if step in targets][-2 * LEAST_POINTS :]
    if len(newest) < LEAST_POINTS or realised is None:
        return Outcome.WAITING
    share = fmean(entropies[step] for step in newest) / fmean(targets[step] for step in newest)
    if 1 - _NEAR <= share <= 1 + _NEAR:
        return Outcome.REACHED
    if realised.direction * (1 - share) > 0:
        return Outcome.APPROACHING
    if OVER_LEFT <= share <= 1 / OVER_LEFT or len(under) < PROMISED_STEPS:
        return Outcome.WAITING
    return Outcome.FAILED


def _mean(values: Mapping[int, float], first: int, last: int) -> float | None:
    found = [value for step, value in values.items() if first <= step <= last]
    if found:
        return fmean(found)
    return None


def _write_sentence(
    version: ControlVersion,
    said: _Judgement,
    now: _Judgement,
    steps: int,
    clipped: float,
    levels: _Levels,
) -> str:
    """The verdict as it was given, `said`, with the numbers of `now`."""
    outcome, realised, without = said.outcome, now.realised, now.without
    if version.hold is not None:
        why = ""
        if clipped and outcome == Outcome.FAILED:
            why = f", with {percent(clipped)} of the tokens clipped"
        return f"{_HOLDS[outcome]}{why}."
    if steps < LEAST_POINTS or realised is None:
        return f"Too early to say: judged after {PROMISED_STEPS} steps."
    if version.method == Method.NONE:
        return f"Clips nothing: {_pace(realised.value)} nats a step, over {steps} steps."
    if without is None or said.without is None:
        return "Not judged: the steps under it don't tell what it adds to each."
    beside = _levels_in_words(levels, steps)
    margin = (realised.high - realised.low) / 2
    if outcome == Outcome.UNDECIDED:
        beside = beside or f"{_pace(realised.value)} nats a step, {_pace(without)} without it"
        return f"Not clear, the pace scatters by ±{fixed(margin, 4)} nats a step: {beside}."
    change, turned = "rise", "fall"
    if said.without < 0:
        change, turned = "fall", "rise"
    beside = beside or (
        f"{_pace(realised.value)} nats a step, {_pace(without)} without it, over {steps} steps"
    )
    unslowed = f"No effect on the {change}"
    if (said.left or 0.0) > 1 / NO_EFFECT and abs(realised.value - without) > margin:
        unslowed = f"Sped up the {change}"
    words = {
        Outcome.STOPPED: f"Stopped the {change}",
        Outcome.SLOWED: f"Slowed the {change} to {percent(said.left or 0.0)}",
        Outcome.NO_EFFECT: unslowed,
        Outcome.OVERSHOT: f"Overshot, the {change} became a {turned}",
        Outcome.TURNED: f"Turned the {change} into a {turned}",
    }
    return f"{words[outcome]}: {beside}."


def add_reward(verdict: Verdict, rewards: Mapping[int, float], applied: int, end: int) -> Verdict:
    """A verdict that says what the reward did, too; as it is where that is not known.

    Args:
        rewards: step -> mean reward, finite, of the steps around `applied` and up to `end`.
        applied: the step that the control was applied at.
        end: the last step under it so far.
    """
    steps = sorted(rewards)
    change = reward_change(
        [rewards[step] for step in steps if step < applied],
        [rewards[step] for step in steps if applied <= step <= end],
    )
    if change is None:
        return verdict
    message = f"{verdict.message} {reward_in_words(change)}"
    return replace(verdict, reward=change, message=message)


def reward_in_words(change: RewardChange) -> str:
    """`The reward fell from 0.40 to 0.27.`"""
    shown = change.since - change.before
    if not change.direction:
        shown = change.before / 10
    decimals = max(2, decimals_of(shown, 1))
    before, since = (fixed(reward, decimals) for reward in (change.before, change.since))
    if change.direction < 0:
        return f"The reward fell from {before} to {since}."
    if change.direction > 0:
        return f"The reward rose from {before} to {since}."
    return f"No clear change of the reward: {before} before, {since} now."


def _levels_in_words(levels: _Levels, steps: int) -> str:
    """`0.300 nats after 50 steps; promised 0.281, without it 0.175`; empty where nothing was
    forecast."""
    level, promised, without = levels
    if level is None or without is None:
        return ""
    forecasts = f"without it {nats(without)}"
    if promised is not None:
        forecasts = f"promised {nats(promised)}, {forecasts}"
    return f"{nats(level)} nats after {min(steps, AHEAD)} steps; {forecasts}"


_HOLDS = {
    Outcome.REACHED: "The entropy is at its target",
    Outcome.APPROACHING: "The entropy approaches its target",
    Outcome.WAITING: "The entropy has not come to its target yet",
    Outcome.FAILED: "The entropy does not come to its target",
}


def _pace(pace: float) -> str:
    text = fixed(pace, max(4, decimals_of(pace, 1)))
    if pace > 0 and text.strip("0."):
        return f"+{text}"
    return text
