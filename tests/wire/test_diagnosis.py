"""The diagnosis of made courses: its numbers, its level, its sentence, its suggestion; and previews
of controls."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from statistics import stdev
from typing import Any, TypeVar

import pytest

from isentrope_wire.answers import Alert, HealthLevel, Status
from isentrope_wire.control import Control
from isentrope_wire.control_answers import (
    Compared,
    ControlVersion,
    Estimate,
    Outcome,
    PredictedEffect,
    RewardChange,
    State,
    Verdict,
)
from isentrope_wire.diagnosis.course import name_end
from isentrope_wire.diagnosis.effect import SUGGESTED_THRESHOLDS, LastSteps, stopping_control
from isentrope_wire.diagnosis.health import Diagnosis, Measured, diagnose, preview
from isentrope_wire.diagnosis.trust import prediction_trust
from isentrope_wire.reports import AlertLevel
from isentrope_wire.what_if import EDGES, SIDES, BinSums, TokenGroup, WhatIfCurve, WhatIfSums

Value = TypeVar("Value")


def run(course: Callable[[int], float], steps: int, **known: Any) -> Measured:
    """A run of steps 1, 2 ... whose entropy follows a course."""
    entropies = {step: course(step) for step in range(1, steps + 1)}
    early = [value for value in entropies.values() if math.isfinite(value)][:3]
    return Measured(
        step=steps or None,
        first_step=1 if steps else None,
        early_entropies=early,
        entropies=entropies,
        **known,
    )


def collapse(step: float) -> float:
    """Loses 2.5 % a step."""
    return 0.6 * math.exp(-0.025 * step)


def version(control: Control, **known: Any) -> ControlVersion:
    fields = {name: getattr(control, name) for name in control.to_document()}
    state = {
        "version": 3,
        "state": State.APPLIED,
        "author": "ada",
        "requested_at": 1.0,
        "requested_step": 20,
    }
    applied = {
        "expires_at": None,
        "applied_step": 21,
        "applied_at": 1.0,
        "ended_at": None,
        "code": "",
        "message": "",
    }
    applied |= {"predicted": None, "verdict": None}
    return ControlVersion(**(fields | state | applied | known))


def verdict_of(outcome: Outcome, judged_steps: int = 20) -> Verdict:
    """On version 3."""
    return Verdict(
        version=3,
        outcome=outcome,
        steps=max(judged_steps, 3),
        judged_steps=judged_steps,
        clip_fraction=Compared(before=0.0, predicted=0.1, realised=0.1),
        promised=None,
        realised=0.0,
        without=-0.008,
        left=0.0,
        message="Stopped the fall.",
    )


def sums(change: float, *, tokens: int = 100) -> WhatIfSums:
    """Ten tokens 1.4 sigma below the centre and five beyond 3 make the whole change."""
    near, far = (
        (TokenGroup.NEGATIVE_DECREASING * SIDES) * len(EDGES) + EDGES.index(mu) for mu in (1.4, 3.0)
    )
    table = BinSums((near, far), (10, 5), (0.8 * change, 0.4 * change))
    return WhatIfSums(tokens=tokens, change_sum=change, by_method={"clip_v": table})


NOW = (1 + collapse(41) / collapse(40)) / 2
"""The entropy after 41 steps by its mean over the last two, those of `last`: an effect is a share
of it."""


TRUSTED = {"entropy/prediction_r2": 0.8, "entropy/prediction_sign_agreement": 0.9}


def last(change: float = -4.0, gain: float | None = 0.15, **known: Any) -> LastSteps:
    return LastSteps(sums=[sums(change), sums(change)], gain=gain, **known)


def some(value: Value | None) -> Value:
    assert value is not None
    return value


def found(measured: Measured) -> tuple[HealthLevel, str]:
    answer = diagnose(measured)
    return answer.level, answer.message


@pytest.mark.parametrize(
    ("noise", "pace", "span", "words"),
    [
        (
            0.0,
            0.0,
            1,
            "Its sign was right in 10 of 10 steps, it explains nearly all of how steps differ; ",
        ),
        (
            0.004,
            -0.003,
            5,
            "Its sign was right in 8 of 10 steps, it explains half of how steps differ; ",
        ),
        (
            0.03,
            0.0,
            None,
            "Its sign was right in 5 of 10 steps, it explains nothing of how steps differ; ",
        ),
    ],
)
def test_trust_says_what_the_prediction_is_for(
    noise: float, pace: float, span: int | None, words: str
) -> None:
    scatter = random.Random(3)
    predicted = {step: pace + scatter.gauss(0, 0.004) for step in range(200)}
    came = {step: change + scatter.gauss(0, noise) for step, change in predicted.items()}
    trust = some(prediction_trust(predicted, came, of_unseen=True))
    assert (trust.steps, trust.span, trust.on_trained_tokens) == (200, span, False)
    assert trust.message.startswith(words)
    # Between two runs of steps that follow each other nothing is added up.
    gaps = {2 * step: change for step, change in came.items()}
    own = some(
        prediction_trust(
            {2 * step: change for step, change in predicted.items()}, gaps, of_unseen=False
        )
    )
    assert own.span in (1, None)
    assert own.message.startswith("On trained tokens: its sign was right")
    # What the measurement scatters by is not the prediction's fault.
    measured = {step: change + scatter.gauss(0, 0.006) for step, change in came.items()}
    errors = dict.fromkeys(measured, 0.006)
    blurred = prediction_trust(predicted, measured, errors, of_unseen=True)
    raw = some(prediction_trust(predicted, measured, of_unseen=True))
    if noise < 0.01:
        assert some(blurred).explained == pytest.approx(trust.explained, abs=0.35)
        assert some(blurred).explained > raw.explained + 0.3
    few = {step: came[step] for step in range(29)}
    assert prediction_trust(predicted, few, of_unseen=True) is None


@pytest.mark.parametrize(("late", "words"), [(0.0, "do not act on it."), (0.008, "single steps.")])
def test_trust_ends_where_the_newest_predictions_miss(late: float, words: str) -> None:
    """A large first fall that was predicted says nothing of a steady one that is not."""
    noise = random.Random(1)
    came = {step: -0.1 * 0.9**step - 0.008 + noise.gauss(0, 0.002) for step in range(1, 151)}
    predicted = {step: -0.1 * 0.9**step - late for step in came}
    trust = some(prediction_trust(predicted, came, of_unseen=True))
    assert trust.explained > 0.5
    assert trust.message.endswith(words)
    assert (trust.span is None) == (late == 0)


def test_a_collapse_in_numbers() -> None:
    answer = diagnose(run(collapse, 41))
    early, entropy = collapse(2), collapse(39)
    assert (answer.level, answer.step, answer.lost_in_steps) == (HealthLevel.ACT, 41, 41)
    assert answer.early_level == pytest.approx(early)
    assert answer.entropy == pytest.approx(entropy)
    assert answer.share_lost == pytest.approx(1 - entropy / early)
    assert answer.pace is not None
    assert answer.pace.value == pytest.approx(-0.025 * entropy, rel=0.01)
    assert answer.pace.low <= answer.pace.value <= answer.pace.high < 0
    forecast = some(answer.forecast)
    assert forecast.step == [*range(42, 92)]
    assert forecast.entropy[0] == pytest.approx(entropy + answer.pace.value, rel=0.02)
    assert all(
        low < middle < high
        for low, middle, high in zip(forecast.low, forecast.entropy, forecast.high, strict=True)
    )
    assert forecast.entropy == sorted(forecast.entropy, reverse=True)
    # The sentence has the numbers of the forecast.
    ends = [f"{column[-1]:.3f}" for column in (forecast.entropy, forecast.low, forecast.high)]
    assert (
        answer.message == f"Entropy has lost 60 % and falls: to {ends[0]} nats in 50 steps"
        f" ({ends[1]} to {ends[2]})."
    )
    assert answer.steps_to_three_quarters_lost == 30
    assert answer.forecast_score is not None


@pytest.mark.parametrize(
    ("course", "steps", "level", "words"),
    [
        (collapse, 8, HealthLevel.HEALTHY, "has lost 10 % and falls"),
        (collapse, 24, HealthLevel.WATCH, "has lost 39 % and falls"),
        (lambda step: 0.6 if step < 30 else 0.42, 160, HealthLevel.WATCH, "lost 30 % and is level"),
        (lambda step: 0.6, 60, HealthLevel.HEALTHY, "is level at 0.600 nats, as at the start."),
        (
            lambda step: 0.6 * math.exp(0.02 * step),
            60,
            HealthLevel.ACT,
            "has gained 206 % and rises",
        ),
        (collapse, 0, HealthLevel.NO_DATA, "No step has been reported."),
        (lambda step: math.nan, 9, HealthLevel.WATCH, "The entropy of step 9 is NaN."),
        (collapse, 2, HealthLevel.HEALTHY, "its pace is known from the 5th step on."),
        (
            lambda step: math.nan if step == 60 else 0.6,
            60,
            HealthLevel.WATCH,
            "The entropy of step 60 is NaN.",
        ),
        (lambda step: 0.0, 60, HealthLevel.HEALTHY, "Entropy is level, at 0.00000 nats."),
    ],
)
def test_level_and_sentence_of_a_course(
    course: Callable[[int], float], steps: int, level: HealthLevel, words: str
) -> None:
    answer = found(run(course, steps))
    assert words in answer[1]
    assert answer[0] == level


def test_what_rounds_to_nothing_is_no_gain() -> None:
    over = run(lambda step: 0.6 + 1e-6 * step, 1200, status=Status.FINISHED)
    assert diagnose(over).message == "Finished: entropy kept its early level over 1,200 steps."


@pytest.mark.parametrize(
    ("status", "error", "message"),
    [
        (Status.FINISHED, "", "Finished: entropy lost 60 % over 41 steps."),
        (
            Status.FAILED,
            "Traceback\nValueError: bad batch.\n",
            "Failed: ValueError: bad batch. Entropy lost 60 % over 41 steps.",
        ),
    ],
)
def test_a_run_that_is_over_has_no_future(status: Status, error: str, message: str) -> None:
    answer = diagnose(run(collapse, 41, status=status, error=error, last=last()))
    assert (answer.level, answer.message, answer.suggestion) == (HealthLevel.ACT, message, None)
    assert (answer.forecast, answer.steps_to_three_quarters_lost) == (None, None)


def test_a_silent_run_is_watched() -> None:
    level, message = found(run(lambda step: 0.6, 41, status=Status.SILENT))
    assert level == HealthLevel.WATCH
    assert message.startswith("No report has come for a while")


@pytest.mark.parametrize(
    ("entropy", "target", "level", "words"),
    [
        (
            0.31,
            0.3,
            HealthLevel.HOLDING,
            "Entropy is held at 0.310 nats, 3 % above its target of 0.300 nats.",
        ),
        (
            0.21,
            0.3,
            HealthLevel.WATCH,
            "Entropy does not move now, 30 % below its target of 0.300 nats.",
        ),
        (
            0.45,
            0.3,
            HealthLevel.HEALTHY,
            "Entropy does not move now, 50 % above its target of 0.300 nats.",
        ),
    ],
)
def test_a_held_entropy_is_counted_from_its_target(
    entropy: float, target: float, level: HealthLevel, words: str
) -> None:
    steps = range(1, 161)
    answer = diagnose(
        run(lambda step: 0.6 if step < 30 else entropy, 160, targets=dict.fromkeys(steps, target))
    )
    assert (answer.level, answer.message, answer.target) == (level, words, target)
    is_held = level == HealthLevel.HOLDING
    assert (some(answer.forecast).entropy == pytest.approx([target] * 50)) == is_held


def test_forecast_of_a_hold_follows_its_curve() -> None:
    control = Control.from_document({"hold": {"target_curve": [[1, 0.6], [101, 0.4]]}})
    targets = {step: 0.6 - 0.002 * (step - 1) for step in range(1, 42)}
    held = run(
        lambda step: targets[int(step)],
        41,
        targets=targets,
        is_acting=True,
        active=version(control),
    )
    line, shown = some(diagnose(held).forecast), some(diagnose(held).entropy)
    assert shown > 0.52
    assert line.step == list(range(42, 92))
    assert line.entropy[-1] == pytest.approx(0.6 - 0.002 * 90 + 0.02, abs=0.005)


@pytest.mark.parametrize(("steps", "goes"), [(20, True), (120, False)])
def test_a_hold_that_acts_is_forecast_to_come_to_its_target_unless_it_has_not_for_long(
    steps: int, goes: bool
) -> None:
    """Its course so far falls: what the threshold does shows there later. After 120 steps it would
    have."""
    held = run(collapse, steps, targets=dict.fromkeys(range(1, steps + 1), 0.5), is_acting=True)
    answer, unheld = diagnose(held), diagnose(run(collapse, steps))
    line, entropy = some(answer.forecast), some(answer.entropy)
    assert entropy < 0.5
    assert (answer.steps_to_three_quarters_lost is None) == goes
    if not goes:
        assert line.entropy == pytest.approx(some(unheld.forecast).entropy)
        return
    left = [(0.5 - value) / (0.5 - entropy) for value in line.entropy]
    assert left == pytest.approx([math.exp(-step / 10) for step in range(1, 51)])
    assert some(answer.mean_pace).value == pytest.approx((line.entropy[19] - entropy) / 20)
    assert preview(held, Control()).unchanged == answer.mean_pace
    width = some(unheld.forecast)
    assert line.high[9] / line.entropy[9] == pytest.approx(width.high[9] / width.entropy[9])


def test_a_control_that_stops_the_fall_ends_the_alarm_while_it_does() -> None:
    active = version(Control(method="clip_v", mu_low=1.0, mu_high=1.0), applied_step=40)
    known = {
        "verdict": verdict_of(Outcome.STOPPED),
        "active": active,
        "newest": active,
        "applied_steps": [40],
    }
    stopped = run(lambda step: max(collapse(step), collapse(40)), 80, **known)
    words = (
        "Entropy holds at 0.221 nats, 61 % below its early level, 40 steps after version 3 was"
        " applied."
    )
    assert found(stopped) == (HealthLevel.HOLDING, words)
    assert found(run(collapse, 80, **known))[0] == HealthLevel.ACT
    # Level again, but at less than seven eighths of what it was in the first steps under it.
    assert (
        found(run(lambda step: max(collapse(step), collapse(70)), 120, **known))[0]
        == HealthLevel.WATCH
    )
    # Of a long run the first steps under it are no longer read.
    long = run(lambda step: max(collapse(step), collapse(40)), 700, **known)
    newest = {step: value for step, value in long.entropies.items() if step > 200}
    assert found(replace(long, entropies=newest))[0] == HealthLevel.HOLDING
    rising = run(lambda step: max(collapse(step), collapse(40) + 0.002 * (step - 40)), 80, **known)
    assert found(rising)[0] == HealthLevel.HOLDING


@pytest.mark.parametrize(
    ("lost", "word"),
    [
        (0.9, "collapsed"),
        (0.3, "fallen"),
        (-0.3, "risen"),
        (-0.9, "exploded"),
        (0.1, ""),
        (None, ""),
    ],
)
def test_an_end_is_named_by_what_was_lost(lost: float | None, word: str) -> None:
    assert name_end(lost) == word


def test_the_cause_is_the_largest_quadrant_with_its_share() -> None:
    parts = {"change/negative_low": -0.6, "change/positive_high": -0.3, "change/positive_low": 0.5}
    falling = some(diagnose(run(collapse, 41, parts={40: parts, 41: parts})).cause)
    assert (falling.quadrant, falling.mechanism, falling.share) == (
        "change/negative_low",
        None,
        pytest.approx(2 / 3),
    )  # type: ignore[comparison-overlap]
    assert falling.message == "Unlikely tokens, punished, make 67 % of the pull."
    by_bonus = parts | {"change/by_policy_loss": -0.1, "change/by_kl_penalty": -0.3}
    named = some(diagnose(run(collapse, 41, parts={41: by_bonus})).cause)
    assert "kl penalty" in named.message
    audited = by_bonus | {"influence/negative_low": -0.001, "influence/positive_high": -0.003}
    steps = {32: parts | {"influence/negative_low": -9.0}, 35: audited, 41: by_bonus}
    newest = some(diagnose(run(collapse, 41, parts=steps)).cause)
    assert (newest.quadrant, newest.share, newest.influence_step) == (
        "change/positive_high",
        0.75,
        35,
    )
    assert "by influence in step 35" in newest.message
    assert diagnose(run(lambda step: 0.6, 41, parts={41: parts})).cause is None


# ---- what to do
# --------------------------------------------------------------------------------------------------


def test_the_suggestion_is_the_cheapest_control_under_which_the_forecast_does_not_fall() -> None:
    measured = run(collapse, 41, last=last())
    answer = diagnose(measured)
    suggestion = some(answer.suggestion)
    assert suggestion.pace is not None
    control = Control.from_document(suggestion.control)
    assert (control.method, control.mu_low, control.mu_high, control.scope) == (
        "clip_v",
        1.0,
        1.0,
        "decreasing",
    )
    assert suggestion.stops
    assert suggestion.pace.value >= 0
    assert (
        suggestion.clip_fraction
        == WhatIfCurve(sums(-4.0), control.scope, control.method).evaluate(1.0, 1.0).clip_fraction
    )
    # A higher threshold of the list does not: five of the fifteen tokens lie beyond it.
    weaker = preview(measured, replace(control, mu_low=2.0, mu_high=2.0))
    assert weaker.pace is not None
    assert weaker.pace.value < 0
    # What is drawn, promised and said is one number.
    drawn = preview(measured, control)
    assert drawn.pace == suggestion.pace
    assert drawn.forecast is not None
    assert drawn.unchanged is not None
    assert answer.forecast is not None
    assert answer.mean_pace == drawn.unchanged
    gained = drawn.forecast.entropy[19] - answer.forecast.entropy[19]
    assert gained / 20 == pytest.approx(suggestion.pace.value - drawn.unchanged.value)
    assert suggestion.message.startswith("Clip_V µ 1.0 would stop it: clips 15.0 %, ΔH −0.00")
    assert suggestion.message.endswith("More reward is not shown.")
    assert "and falls" in control.reason


def test_nothing_is_suggested_where_groups_teach_nothing() -> None:
    for kind, suggests in (("truncation", True), ("zero_advantage", False)):
        answer = diagnose(run(collapse, 41, last=last(), findings=[alert_at(30, kind)]))
        assert (answer.suggestion is not None) == suggests
    assert "while so many groups teach nothing" in answer.message


def test_the_same_situation_gives_the_same_threshold() -> None:
    thresholds = set()
    for seed in range(10):
        draw = random.Random(seed)
        measured = run(lambda step: collapse(step) * math.exp(draw.gauss(0, 0.05)), 41, last=last())  # noqa: B023
        suggestion = some(diagnose(measured).suggestion)
        thresholds.add(suggestion.control["mu_low"])
    assert len(thresholds) == 1
    assert thresholds <= set(SUGGESTED_THRESHOLDS[0])


def test_the_suggested_method_does_not_alternate_while_the_trend_is_unclear() -> None:
    draw = random.Random(5)
    noise = [draw.gauss(0, 0.08) for _ in range(140)]

    def slower(step: int) -> float:
        return 0.6 * math.exp(noise[step] - 0.008 * min(step, 60) - 0.003 * max(step - 60, 0))

    weak = last(gain=0.03)
    found = [some(diagnose(run(slower, steps, last=weak)).suggestion) for steps in range(80, 140)]
    holds = [one.control["hold"] is not None for one in found]
    assert 0 < sum(holds) < len(holds)
    assert sum(before != after for before, after in pairwise(holds)) <= 7
    unclear = next(one for one in found if "keep it from falling" in one.message)
    assert unclear.control["method"] == "clip_v"


@pytest.mark.parametrize("way", [-1, 1])
def test_a_suggestion_is_safe(way: int) -> None:
    """Over random curves, gains and errors, of falls and rises: it clips something. Even the far
    end of its interval turns the entropy no faster than it went, and that of its forecast's band
    stays on this side of the early level; and none is made of a gain that may be 0."""
    draw = random.Random(7)
    count = 0
    for _ in range(70):
        known = drawn_steps(draw, way)
        rate = draw.uniform(0.004, 0.05)
        measured = run(
            lambda step: 0.6 * math.exp(way * rate * step),  # noqa: B023
            draw.randint(20, 80),
            last=known,
        )
        answer = diagnose(measured)
        suggestion = answer.suggestion
        if suggestion is None or suggestion.control["hold"] is not None:
            continue
        count += 1
        pace, before = some(suggestion.pace), some(answer.mean_pace)
        assert some(known.gain) > 1.64 * some(known.gain_error)
        assert some(suggestion.clip_fraction) > 0.001
        assert way * before.value > 0
        assert ("More reward is not shown" in suggestion.message) == (way < 0)
        fastest = pace.high if way < 0 else pace.low
        assert -way * fastest <= abs(before.value)
        drawn = some(preview(measured, Control.from_document(suggestion.control)).forecast)
        edge = drawn.high if way < 0 else drawn.low
        assert all(way * (value - some(answer.early_level)) >= 0 for value in edge[:20])
    assert count > 10


@pytest.mark.parametrize(
    ("pace", "rises", "is_told_to_wait"),
    [(0.02, True, True), (0.02, False, False), (0.05, True, False)],
    ids=["learns", "level reward", "most is lost"],
)
def test_nothing_is_suggested_while_it_learns(
    pace: float, rises: bool, is_told_to_wait: bool
) -> None:
    draw = random.Random(3)
    rewards = {step: 0.3 + 0.008 * step * rises + draw.gauss(0, 0.02) for step in range(1, 41)}
    answer = diagnose(
        run(lambda step: 0.6 * math.exp(-pace * step), 40, last=last(), rewards=rewards)
    )
    assert ("The reward still rises, so" in answer.message) == is_told_to_wait
    assert (answer.suggestion is None) == is_told_to_wait


@pytest.mark.parametrize(("steps", "is_offered"), [(60, False), (120, True)])
def test_what_merely_slows_a_small_loss_is_not_offered(steps: int, is_offered: bool) -> None:
    measured = run(lambda step: 0.6 * math.exp(-0.005 * step), steps, last=last(gain=0.03))
    course = some(measured.course)
    assert (some(course.share_lost) > 0.25) == is_offered
    offered = stopping_control(course, measured.last, -1)
    assert (offered is not None) == is_offered
    assert offered is None or not offered.stops


def drawn_steps(draw: random.Random, way: int) -> LastSteps:
    """Twelve groups of tokens that move the entropy one way, beyond random thresholds."""
    cells = sorted(draw.sample(range(20, len(EDGES)), 12))
    weights = [way * abs(draw.gauss(-0.6, 1)) * draw.choice([0.1, 0.3, 1.0]) for _ in cells]
    group = TokenGroup.NEGATIVE_DECREASING if way < 0 else TokenGroup.NEGATIVE_INCREASING
    places = tuple(group * SIDES * len(EDGES) + cell for cell in cells)
    table = BinSums(places, (draw.randint(1, 9),) * 12, tuple(weights))
    drawn = WhatIfSums(tokens=100, change_sum=sum(weights), by_method={"clip_v": table})
    gain, error = draw.uniform(0.01, 0.4), draw.choice([0.0, 0.0, 0.1, 0.5])
    return LastSteps(sums=[drawn] * 3, gain=gain, gains=[gain] * 3, gain_error=error)


def test_a_suggestion_never_clips_less_than_what_acts() -> None:
    """A gain below 0, as just after a cure, made removing the cure look like one."""
    active = Control(method="clip_v", mu_low=1.0, mu_high=1.0, scope="decreasing")
    for gain in (-0.2, 0.15):
        known = last(gain=gain, active=active, intervention=0.048)
        suggestion = diagnose(run(collapse, 41, last=known)).suggestion
        if suggestion is not None and suggestion.control["hold"] is None:
            assert some(suggestion.clip_fraction) > 0.15


def test_the_effect_is_the_mean_of_each_steps_product() -> None:
    """One step with a clipped gradient has a tenth of the gain: it does not stand for all."""
    control = Control(method="clip_v", mu_low=1.0, mu_high=1.0, scope="decreasing")
    flat = run(lambda step: 0.5, 41, last=last(gain=0.015, gains=[0.15, 0.015], of_unseen=True))
    effect = preview(flat, control)
    assert some(effect.change) == pytest.approx((0.15 + 0.015) / 2 * 0.048, rel=1e-6)


def test_the_clip_fraction_is_told_with_its_scatter() -> None:
    steps = LastSteps(sums=[sums(-4.0, tokens=100), sums(-4.0, tokens=200)], gain=0.15)
    control = Control(method="clip_v", mu_low=1.0, mu_high=1.0, scope="decreasing")
    answer = preview(run(lambda step: 0.5, 41, last=steps), control)
    assert answer.clip_fraction == pytest.approx(30 / 300)
    assert answer.clip_fraction_std == pytest.approx(stdev([0.15, 0.075]))


def test_a_policy_that_is_random_again_is_not_healthy() -> None:
    """The entropy is back at its early level, and the reward is gone."""

    def back(step: int) -> float:
        return 3.4 - 1.2 * math.exp(-(((step - 60) / 25) ** 2))

    draw = random.Random(0)
    rewards = {step: 0.85 if 40 < step < 80 else 0.19 for step in range(1, 141)}
    rewards = {step: value + draw.gauss(0, 0.02) for step, value in rewards.items()}
    level, message = found(run(back, 140, rewards=rewards))
    assert level == HealthLevel.ACT
    assert "The reward fell from 0.8" in message
    kept = {step: 0.5 + draw.gauss(0, 0.02) for step in range(1, 141)}
    assert found(run(back, 140, rewards=kept))[0] == HealthLevel.HEALTHY


def test_an_ended_hold_is_not_healthy() -> None:
    why = "The reward guard ended the hold: the reward is lower."
    measured = run(lambda step: 0.6, 60, hold_state="ended", hold_why=why)
    level, message = found(measured)
    assert level == HealthLevel.WATCH
    assert message.startswith(why)
    assert found(run(lambda step: 0.6, 60))[0] == HealthLevel.HEALTHY
    waits = run(lambda step: 0.6, 60, hold_state="fallback", hold_why="No measurements yet.")
    assert found(waits)[1].endswith("The hold waits: No measurements yet.")


def test_harm_is_acted_on_and_taken_back() -> None:
    harm = Alert(
        id="a",
        kind="overshoot",
        level=AlertLevel.ACT,
        step=55,
        recorded_at=1.0,
        message="Version 1 overshoots.",
        cause=None,
        evidence={},
        suggestion=Control().to_document(),
        acknowledged_by=None,
        acknowledged_at=None,
    )
    answer = diagnose(run(lambda step: 0.6, 60, overshoot=harm))
    assert answer.level == HealthLevel.ACT
    assert answer.message.startswith("Version 1 overshoots.")
    assert some(answer.suggestion).control["method"] == "none"


@pytest.mark.parametrize(
    ("known", "words"),
    [
        (last(gain=None, scalars=TRUSTED), "The gain is not known: it takes steps"),
        (LastSteps(gain=0.15, scalars=TRUSTED), "No step has what-if sums."),
        (
            LastSteps(sums=[replace(sums(-4.0), by_method={})], gain=0.15, scalars=TRUSTED),
            "A hold would clip as hard as it may",
        ),
        (last(gain=None), ""),  # as a list of runs reads it
    ],
)
def test_where_nothing_is_safe_the_health_line_says_why(known: LastSteps, words: str) -> None:
    answer = diagnose(run(collapse, 41, last=known))
    assert answer.suggestion is None
    assert ("No control is known to be safe." in answer.message) == bool(words)
    assert words in answer.message


def test_with_a_gain_that_may_be_zero_a_hold_waits() -> None:
    doubtful = last(gain_error=0.1, scalars={"entropy/prediction_sign_agreement": 0.4})
    suggestion = some(diagnose(run(collapse, 41, last=doubtful)).suggestion)
    assert suggestion.control["hold"] is not None
    assert "It would wait at first: The prediction's sign was right in 40% of" in suggestion.message


def test_an_effect_is_counted_from_the_active_control() -> None:
    under = last(intervention=0.048)  # all fifteen tokens are clipped: -0.04 would be +0.008
    active = version(Control(method="clip_v", mu_low=1.0, mu_high=1.0, scope="decreasing"))
    same = preview(run(collapse, 41, last=under, active=active, newest=active), active.control)
    assert same.change == pytest.approx(0.0, abs=1e-12)
    off = preview(run(collapse, 41, last=under), Control())
    assert off.change == pytest.approx(0.75 * 0.15 * -0.048 * NOW)
    assert off.clip_fraction == 0.0


@pytest.mark.parametrize("lost", [0.3, 0.6, 0.99])
def test_from_a_quarter_lost_there_is_something_to_do(lost: float) -> None:
    known = last(scalars=TRUSTED)
    level = run(lambda step: 0.6 if step < 30 else 0.6 * (1 - lost), 160, last=known)
    suggestion = some(diagnose(level).suggestion)
    assert suggestion.control["hold"]["target_entropy"] == pytest.approx(0.6 * (1 - lost), rel=0.05)
    assert (suggestion.stops, suggestion.pace, suggestion.clip_fraction) == (True, None, None)
    Control.from_document(suggestion.control)


def test_no_hold_beyond_any_vocabularys_entropy() -> None:
    """A loop's own number by the name of the entropy, 300 times what can be."""
    answer = diagnose(run(lambda step: 600.0 if step < 20 else 300.0, 41))
    assert answer.level == HealthLevel.ACT
    assert answer.suggestion is None


def test_a_recovery_is_not_stopped() -> None:
    back = run(
        lambda step: 0.6 if step < 4 else 0.1 + 0.002 * step, 60, last=last(4.0, scalars=TRUSTED)
    )
    answer = diagnose(back)
    assert answer.pace is not None
    assert answer.pace.low > 0
    assert answer.suggestion is not None
    assert answer.suggestion.control["hold"] is not None
    assert answer.suggestion.message == (
        "Hold 0.220 nats: so that it does not fall further. More reward is not shown."
    )


def test_two_steps_have_no_early_level() -> None:
    assert diagnose(run(collapse, 2)).early_level is None
    assert diagnose(run(collapse, 3)).early_level == collapse(2)
    late = Measured(
        step=900,
        first_step=1,
        early_entropies=[3.0, 2.0, 1.0],
        entropies=dict.fromkeys(range(401, 901), 1.0),
    )
    assert diagnose(late).early_level == 2.0


def test_nothing_is_suggested_where_nothing_is_needed_or_one_is_on_its_way() -> None:
    assert diagnose(run(collapse, 8, last=last())).suggestion is None  # healthy
    asked = Control(method="clip_v", mu_low=1.2, mu_high=1.2, scope="decreasing")
    open_ = version(asked, state=State.DELIVERED, applied_step=None)
    assert diagnose(run(collapse, 41, last=last(), newest=open_)).suggestion is None
    assert (
        diagnose(run(collapse, 41, last=last(), newest=replace(open_, mu_low=9.0))).suggestion
        is not None
    )
    active = version(Control(method="clip_v", mu_low=1.0, mu_high=1.0))
    judged_soon = {"active": active, "newest": active, "verdict": verdict_of(Outcome.UNDECIDED, 0)}
    assert diagnose(run(collapse, 41, last=last(), **judged_soon)).suggestion is None
    promised = PredictedEffect(
        steps=10, clip_fraction=0.1, clip_fraction_std=0.0, change=0.01, change_error=0.0, pace=None
    )
    enough = replace(promised, pace=Estimate(value=0.001, low=0.0, high=0.002))
    other = version(Control(method="clip_b", mu_low=1.0), predicted=enough)
    assert (
        diagnose(
            run(collapse, 41, last=last(), **judged_soon | {"active": other, "newest": other})
        ).suggestion
        is None
    )
    refused = replace(open_, state=State.REJECTED)
    assert diagnose(run(collapse, 41, last=last(), newest=refused)).suggestion is not None


def test_a_control_that_was_too_weak_is_followed_by_a_stronger_one() -> None:
    active = version(Control(method="clip_v", mu_low=3.0, mu_high=3.0, scope="decreasing"))
    weak = run(
        collapse,
        41,
        last=last(intervention=0.016),
        active=active,
        newest=active,
        verdict=verdict_of(Outcome.SLOWED),
    )
    suggestion = some(diagnose(weak).suggestion)
    assert suggestion.control["mu_low"] < 3.0


def test_would_stop_is_said_only_where_the_drawn_line_does_not_fall() -> None:
    """Over random runs: sentence, number and line agree."""
    draw = random.Random(4)
    said: list[Diagnosis] = []
    for _ in range(40):
        rate, scatter, size = draw.uniform(0.01, 0.05), draw.uniform(0, 0.04), draw.uniform(-8, 0)
        measured = run(
            lambda step: 0.6 * math.exp(-rate * step + draw.gauss(0, scatter)),  # noqa: B023
            draw.randint(12, 120),
            last=last(size, gain=draw.choice([0.05, 0.2, 1.0])),
        )
        answer = diagnose(measured)
        if answer.suggestion is None or answer.suggestion.pace is None:
            continue
        said.append(answer)
        shown = preview(measured, Control.from_document(answer.suggestion.control))
        assert shown.pace == answer.suggestion.pace
        assert answer.suggestion.stops == ("would stop it" in answer.suggestion.message)
        assert answer.forecast is not None
        assert answer.entropy is not None
        left = answer.suggestion.pace.value / some(answer.mean_pace).value
        assert answer.suggestion.stops == (left <= 0.25)
        assert -0.5 <= left <= 0.5
    assert len(said) > 5


# ---- previews
# --------------------------------------------------------------------------------------------------


def test_a_preview_past_the_early_level_is_warned_of() -> None:
    control = Control(method="clip_v", mu_low=1.0, mu_high=1.0)
    for gain, is_past in ((0.15, False), (1.5, True)):
        shown = preview(run(collapse, 41, last=last(gain=gain)), control)
        early = diagnose(run(collapse, 41)).early_level
        assert (max(some(shown.forecast).entropy) > some(early)) == is_past
        assert any("above its early level" in text for text in shown.warnings) == is_past


def test_no_preview_promises_more_than_ln_v() -> None:
    scalars = {**TRUSTED, "token/vocabulary": 2.0}
    known = last(gain=1.5, scalars=scalars)
    measured = run(collapse, 41, last=known, largest_entropy=math.log(2))
    clips = preview(measured, Control(method="clip_v", mu_low=1.0, mu_high=1.0))
    promised = some(diagnose(measured).entropy) + 20 * some(clips.pace).high
    assert max(some(clips.forecast).high) == pytest.approx(math.log(2))
    assert promised == pytest.approx(math.log(2), rel=0.1)
    for target, is_above in ((0.69, False), (0.7, True)):
        held = preview(measured, Control(hold={"target_entropy": target}))
        assert ("above ln V = 0.6931" in held.message) == is_above
        assert max(some(held.forecast).high) <= math.log(2) + 1e-9


def test_a_preview_names_what_would_have_no_effect() -> None:
    measured = run(collapse, 41, last=last())
    far = preview(measured, Control(method="clip_v", mu_low=50.0, mu_high=50.0))
    assert far.clip_fraction == 0.0
    assert far.warnings == ["No token of these steps lies beyond the thresholds."]
    capped = preview(
        measured, Control(method="clip_v", mu_low=1.0, parameters={"max_fraction": 0.05})
    )
    assert capped.clip_fraction == pytest.approx(0.05)
    assert any("max_fraction binds" in warning for warning in capped.warnings)
    assert preview(measured, Control(method="clip_v", mu_low=1.0, mu_high=1.0)).warnings == []


def test_clip_cov_and_kl_cov_are_previewed_from_their_own_sums() -> None:
    """Ten tokens have covariances of 0.8 to 1, five of 12 to 12.2."""
    cells = tuple(
        (TokenGroup.POSITIVE_DECREASING * SIDES + 1) * len(EDGES) + EDGES.index(u)
        for u in (0.2, 3.0)
    )
    by_method = {
        "clip_cov": BinSums(cells, (10, 5), (-3.0, -1.0)),
        "kl_cov": BinSums(cells, (10, 5), (0.4, 0.2)),
    }
    both = replace(sums(-4.0), by_method=by_method)
    measured = run(collapse, 41, last=LastSteps(sums=[both, both], gain=0.15, of_unseen=True))
    band = {"omega_low": 0.8, "omega_high": 5.0}
    half = preview(measured, Control(method="clip_cov", parameters={"ratio": 0.05, **band}))
    assert [half.clip_fraction, half.change] == pytest.approx([0.05, 0.15 * 0.015 * NOW])
    assert (
        0.5 < (some(half.pace).value - some(half.unchanged).value) / some(half.change) < 0.8
    )  # it fades
    assert some(half.forecast).entropy[-1] > some(diagnose(measured).forecast).entropy[-1]
    assert half.warnings == []
    every = preview(measured, Control(method="clip_cov", parameters={"ratio": 0.3, **band}))
    assert [every.clip_fraction, every.change] == pytest.approx([0.1, 0.15 * 0.03 * NOW])
    assert any("all of them" in warning for warning in every.warnings)
    penalty = preview(measured, Control(method="kl_cov", parameters={"k": 0.05, "beta": 0.5}))
    assert [penalty.clip_fraction, penalty.change] == pytest.approx([0.0, 0.15 * 0.001 * NOW])
    assert "Penalises 5.0 % of the tokens" in penalty.message
    older = run(collapse, 41, last=last())
    assert preview(older, Control(method="clip_cov")).clip_fraction is None


def test_a_preview_compares_with_the_active_control_on_the_same_steps() -> None:
    """It was applied two steps ago: most of the steps that effects are counted from ran without
    it."""
    control = Control(method="clip_v", mu_low=1.0, mu_high=1.0)
    measured = run(
        collapse, 41, last=last(active=control, intervention=0.001), active=version(control)
    )
    same, weaker = (preview(measured, replace(control, mu_low=mu, mu_high=mu)) for mu in (1.0, 2.0))
    assert (same.change, same.pace) == (0.0, same.unchanged)
    assert same.forecast == diagnose(measured).forecast
    assert some(weaker.change) < 0


@pytest.mark.parametrize(
    ("course", "outcome", "level"),
    [
        (lambda step: collapse(min(step, 50)), Outcome.APPROACHING, HealthLevel.WATCH),
        (lambda step: collapse(min(step, 50)), Outcome.FAILED, HealthLevel.ACT),
        (collapse, Outcome.APPROACHING, HealthLevel.ACT),
    ],
)
def test_a_hold_on_its_way_is_no_reason_to_act(
    course: Callable[[int], float], outcome: Outcome, level: HealthLevel
) -> None:
    held = dict.fromkeys(range(1, 61), 0.5)
    assert (
        found(run(course, 60, targets=held, is_acting=True, verdict=verdict_of(outcome)))[0]
        == level
    )


@pytest.mark.parametrize(
    "control",
    [Control(method="top_entropy"), Control(method="kl_cov", parameters={"estimator": "k3"})],
)
def test_a_method_that_the_sums_do_not_know_has_no_preview_and_says_so(control: Control) -> None:
    answer = preview(run(collapse, 41, last=last()), control)
    assert (answer.forecast, answer.clip_fraction, answer.pace) == (None, None, None)
    assert "No preview" in answer.message


def test_a_hold_is_previewed_by_the_decision_that_the_probe_would_make() -> None:
    measured = run(collapse, 41, last=last(scalars=TRUSTED))
    entropy = some(diagnose(measured).entropy)
    answer = preview(measured, Control(hold={"target_entropy": round(1.2 * entropy, 3)}))
    assert answer.clip_fraction is not None
    assert answer.clip_fraction > 0
    assert "µ" in answer.message
    assert answer.forecast is not None
    assert max(answer.forecast.entropy) == pytest.approx(1.2 * entropy, rel=0.01)
    assert some(answer.pace).value == pytest.approx((answer.forecast.entropy[19] - entropy) / 20)
    there = preview(measured, Control(hold={"target_entropy": entropy}))
    assert "would hold it" in there.message
    assert some(there.forecast).entropy == pytest.approx([entropy] * 50)
    begins = {"anneal": [entropy, entropy / 2], "steps": 25, "start": some(measured.step)}
    annealed = some(preview(measured, Control(hold=begins)).forecast).entropy
    assert entropy / 2 < annealed[24] < annealed[9] < entropy
    assert annealed[-1] == pytest.approx(entropy / 2, rel=0.05)
    waits = preview(run(collapse, 41, last=last()), Control(hold={"target_entropy": 0.5}))
    assert waits.message.startswith("The hold would wait")
    assert waits.clip_fraction == 0.0


def test_before_any_sums_a_preview_says_that_nothing_is_known() -> None:
    answer = preview(run(collapse, 41), Control(method="clip_v", mu_low=1.0))
    assert (answer.forecast, answer.pace) == (None, None)
    assert "no step has what-if sums" in answer.message


def alert_at(step: int, kind: str, level: AlertLevel = AlertLevel.WATCH) -> Alert:
    return Alert(
        id=f"{step}-{kind}",
        step=step,
        recorded_at=1.0,
        kind=kind,
        level=level,
        message="Found.",
        cause=None,
        evidence={},
        suggestion=None,
        acknowledged_by=None,
        acknowledged_at=None,
    )


@pytest.mark.parametrize(
    ("findings", "level", "words"),
    [
        ([], HealthLevel.HEALTHY, ""),
        (
            [alert_at(190, "plateau"), alert_at(170, "truncation")],
            HealthLevel.WATCH,
            " Found at step 170: completions are cut off.",
        ),
        (
            [alert_at(190, "truncation"), alert_at(170, "throughput")],
            HealthLevel.WATCH,
            " Found at step 190: completions are cut off.",
        ),
        (
            [alert_at(190, "kl", AlertLevel.ACT), alert_at(170, "truncation")],
            HealthLevel.ACT,
            (
                " Found at step 170: completions are cut off; most urgent, at step 190: KL"
                " runs away."
            ),
        ),
        (
            [alert_at(190, "not_finite", AlertLevel.ACT)],
            HealthLevel.ACT,
            " Found at step 190: NaN or infinite values.",
        ),
        ([alert_at(100, "truncation", AlertLevel.ACT)], HealthLevel.HEALTHY, ""),
    ],
)
def test_the_health_line_names_the_first_and_the_most_urgent(
    findings: list[Alert], level: HealthLevel, words: str
) -> None:
    """A finding of long ago says nothing of now."""
    found = diagnose(run(lambda step: 1.0, 200, findings=findings))
    assert (found.level, found.message) == (
        level,
        f"Entropy is level at 1.000 nats, as at the start.{words}",
    )


def test_a_reward_that_fell_under_a_control_offers_its_revert() -> None:
    """Not where it fell before, nor where a newer version is on its way."""
    control, before = Control(method="clip_v", mu_low=2.0), Control(method="clip_b", mu_low=1.0)
    pushed = version(control)
    change = RewardChange(before=0.4, since=0.27, steps_before=20, steps=30, direction=-1)
    judged = replace(verdict_of(Outcome.STOPPED), reward=change)
    level = run(lambda step: 0.5, 60, rewards=dict.fromkeys(range(1, 61), 0.4))
    fell = replace(level, active=pushed, newest=pushed, before=before, verdict=judged)
    found = diagnose(fell)
    assert "The reward fell from 0.40 to 0.27 since version 3 was applied." in found.message
    suggestion = some(found.suggestion)
    assert suggestion.control == replace(before, reason="Reverts version 3").to_document()
    assert suggestion.message == "Revert version 3: the reward fell under it."
    waits = replace(pushed, version=4, state=State.DELIVERED)
    falls = {step: 0.9 - 0.02 * step for step in range(1, 21)}
    unchanged = replace(judged, reward=replace(change, direction=0))
    for other in ({"newest": waits}, {"rewards": falls}, {"verdict": unchanged}):
        assert diagnose(replace(fell, **other)).suggestion is None


@pytest.mark.parametrize(
    ("control", "scalars", "why"),
    [
        (
            Control(method="kl_cov"),
            {"ratio/mean": 1.0},
            "beta can't act: the importance ratio is 1",
        ),
        (Control(method="clip_v", mu_low=90.0), {"ratio/mean": 1.0}, "No token of these steps"),
        (Control(method="rank_reward", parameters={"beta": 0}), {}, "beta is 0: every right"),
    ],
)
def test_a_control_that_does_nothing_says_only_that(
    control: Control, scalars: dict[str, float], why: str
) -> None:
    known = {"token/count": 100.0, "clip/fraction_negative": 0.0, "clip/fraction_positive": 0.0}
    measured = run(collapse, 41, last=last(scalars=known | scalars))
    found = preview(measured, control)
    assert found.message.startswith(f"Would do nothing: {why}")
    assert (len(found.warnings), found.clip_fraction, found.change) == (1, 0.0, 0.0)


def test_a_small_share_is_shown() -> None:
    acts = {"token/count": 100.0, "ratio/mean": 1.1, "kl/old": 0.1}
    measured = run(collapse, 41, last=last(scalars=acts))
    kl_cov = Control(method="kl_cov", parameters={"k": 0.0002})
    assert "0.0 %" not in preview(measured, kl_cov).message


def test_a_curve_warns_of_its_start_and_end() -> None:
    measured = run(lambda step: 0.5, 60, planned_steps=300)
    curve = Control(hold={"target_curve": [[61, 0.75], [361, 0.3]]})
    start, end = preview(measured, curve).warnings[-2:]
    assert start == "The curve starts 0.250 nats above the present level of 0.500 nats."
    assert end == (
        "The curve ends at step 361, after the run's last step 300, where it is at 0.392 nats."
    )
    fits = Control(hold={"target_curve": [[61, 0.5], [300, 0.3]]})
    assert not [text for text in preview(measured, fits).warnings if "curve" in text]
