"""The verdict on a control, on made courses under it: what came, beside what would have come."""

from __future__ import annotations

import math
import random
from collections import Counter
from dataclasses import replace
from statistics import fmean
from typing import Any

import pytest

from isentrope_wire.control import Control
from isentrope_wire.control_answers import Estimate, Outcome, PredictedEffect, Verdict
from isentrope_wire.diagnosis.guard import reward_change
from isentrope_wire.diagnosis.slope import slope_of
from isentrope_wire.diagnosis.verdict import (
    add_reward,
    judged_after,
    outcome_of,
    pace_without,
    verdict_on,
)
from tests.wire.test_diagnosis import version

CLIP = Control(method="clip_v", mu_low=1.0, mu_high=1.0)
PACE = Estimate(value=0.0002, low=-0.001, high=0.001)
PREDICTED = PredictedEffect(
    steps=10,
    clip_fraction=0.12,
    clip_fraction_std=0.01,
    change=0.004,
    change_error=0.001,
    pace=PACE,
)


def judge(
    realised: float,
    added: float = 0.004,
    *,
    steps: int = 60,
    scatter: float = 0.002,
    seed: int = 0,
    control: Control = CLIP,
    target: float | None = None,
    predicted: PredictedEffect = PREDICTED,
    **known: Any,
) -> Verdict:
    """The verdict on a control that is applied at step 21, adds so much to each step, and under
    which the entropy moves so."""
    draw = random.Random(seed)
    noise = [draw.gauss(0, 1) for _ in range(1100)]
    last = 20 + steps
    under = range(21, last + 1)
    verdict = verdict_on(
        version(control, predicted=predicted),
        {
            step: 0.6 + realised * max(0, step - 21) + noise[step] * scatter
            for step in range(1, last + 1)
        },
        {step: 0.0 if step < 21 else 0.12 for step in range(1, last + 1)},
        {step: added + 0.0005 * noise[-step] for step in under},
        targets=None if target is None else dict.fromkeys(under, target),
        end=last,
        **known,
    )
    assert verdict is not None
    return verdict


@pytest.mark.parametrize(
    ("realised", "added", "outcome", "words"),
    [
        (0.0, 0.004, Outcome.STOPPED, "Stopped the fall:"),
        (-0.0004, 0.004, Outcome.STOPPED, "Stopped the fall:"),
        (-0.002, 0.003, Outcome.SLOWED, "Slowed the fall to "),
        (-0.004, 0.0004, Outcome.NO_EFFECT, "No effect on the fall:"),
        (0.002, 0.008, Outcome.TURNED, "Turned the fall into a rise:"),
        (0.012, 0.016, Outcome.OVERSHOT, "Overshot, the fall became a rise:"),
        (0.0, -0.004, Outcome.STOPPED, "Stopped the rise:"),
        (-0.003, -0.009, Outcome.TURNED, "Turned the rise into a fall:"),
        (0.0, 0.0, Outcome.UNDECIDED, "Not clear, the pace scatters by ±0.0"),
    ],
)
def test_the_verdict_compares_what_came_with_what_would_have_come(
    realised: float, added: float, outcome: Outcome, words: str
) -> None:
    verdict = judge(realised, added)
    assert (verdict.outcome, verdict.message[: len(words)]) == (outcome, words)


@pytest.mark.parametrize(
    ("realised", "without", "promised", "outcome"),
    [
        # A cure that worked as promised, where the run would have stood still by now.
        ((0.0033, 0.0035, 0.0037), -0.00026, 0.0021, Outcome.STOPPED),
        ((-0.0002, 0.0, 0.0002), 0.0, 0.0, Outcome.UNDECIDED),
        # Three times as fast upwards as it fell: never "not clear".
        ((0.04, 0.055, 0.07), -0.016, None, Outcome.OVERSHOT),
        ((0.0, 0.055, 0.11), -0.016, None, Outcome.STOPPED),
    ],
)
def test_a_large_effect_is_never_undecided(
    realised: tuple[float, float, float], without: float, promised: float | None, outcome: Outcome
) -> None:
    low, value, high = realised
    found, _ = outcome_of(Estimate(value=value, low=low, high=high), without, promised)
    assert found == outcome


def test_an_entropy_past_its_early_level_overshot() -> None:
    assert judge(0.002, 0.008).outcome == Outcome.TURNED
    assert judge(0.002, 0.008, early=0.605).outcome == Outcome.OVERSHOT


def test_a_run_that_slows_down_by_itself_credits_no_control() -> None:
    """It fell by 0.01 nats a step before, falls by 0.002 now, and the control adds next to
    nothing."""
    assert judge(-0.002, 0.0001).outcome == Outcome.NO_EFFECT


def test_a_verdict_in_numbers() -> None:
    verdict = judge(-0.001, 0.003)
    assert (verdict.version, verdict.steps, verdict.judged_steps) == (3, 60, 50)
    assert (verdict.clip_fraction.before, verdict.clip_fraction.predicted) == (0.0, 0.12)
    assert verdict.clip_fraction.realised == pytest.approx(0.12)
    assert verdict.promised == 0.0002
    assert verdict.realised == pytest.approx(-0.001, abs=1e-4)
    assert verdict.realised is not None
    assert verdict.without is not None
    assert verdict.left == pytest.approx(verdict.realised / verdict.without)


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        (20, "0.600 nats after 20 steps; promised 0.580, without it 0.520."),
        (100, "0.600 nats after 50 steps; promised 0.550, without it 0.400."),
    ],
)
def test_a_verdict_compares_levels_with_the_promise(steps: int, words: str) -> None:
    promised = replace(
        PREDICTED,
        forecast=[0.6 - 0.001 * step for step in range(1, 51)],
        unchanged=[0.6 - 0.004 * step for step in range(1, 51)],
    )
    verdict = judge(0.0, scatter=0.0, steps=steps, predicted=promised)
    assert verdict.message == f"Stopped the fall: {words}"
    assert verdict.promised_level == pytest.approx(0.58 if steps == 20 else 0.55)


@pytest.mark.parametrize(
    ("realised", "scatter", "promised", "unchanged", "outcome", "words"),
    [
        # Slower than it would have gone, and yet below what was forecast without it.
        (-0.0001, 0.0, 0.007, 0.001, Outcome.NO_EFFECT, "No effect on the fall: "),
        (-0.002, 0.0, 0.001, 0.0, Outcome.NO_EFFECT, "No effect on the fall: "),
        (-0.002, 0.0, 0.001, -0.008, Outcome.SLOWED, "Slowed the fall to 49 %: "),
        # Its pace decides nothing.
        (0.003, 0.05, 0.0001, -0.005, Outcome.STOPPED, "Stopped the fall: "),
        (-0.003, 0.05, -0.0001, 0.005, Outcome.STOPPED, "Stopped the rise: "),
        (0.003, 0.05, 0.02, -0.005, Outcome.UNDECIDED, "Not clear, the pace scatters by ±0.0"),
    ],
)
def test_a_verdict_agrees_with_its_own_levels(
    realised: float,
    scatter: float,
    promised: float,
    unchanged: float,
    outcome: Outcome,
    words: str,
) -> None:
    forecasts = [[0.6 + pace * step for step in range(1, 51)] for pace in (promised, unchanged)]
    predicted = replace(PREDICTED, forecast=forecasts[0], unchanged=forecasts[1])
    added = 0.003
    if scatter:
        added = realised
    verdict = judge(realised, added, steps=20, scatter=scatter, predicted=predicted)
    assert (verdict.outcome, verdict.message[: len(words)]) == (outcome, words)


@pytest.mark.parametrize(
    ("unchanged", "outcome", "words"),
    [
        (
            0.001,
            Outcome.NO_EFFECT,
            "Sped up the rise: 0.651 nats after 20 steps; without it 0.620.",
        ),
        (-0.001, Outcome.UNDECIDED, "Not clear, the pace scatters by ±0.0000 nats a step: 0.651 "),
    ],
)
def test_without_a_promise_the_forecast_is_heeded(
    unchanged: float, outcome: Outcome, words: str
) -> None:
    """The entropy rose, by its pace twice as fast as without the control. That proves nothing where
    it was forecast to fall without it."""
    forecast = [0.6 + unchanged * step for step in range(1, 51)]
    predicted = replace(PREDICTED, pace=None, forecast=[], unchanged=forecast)
    verdict = judge(0.003, 0.002, steps=20, scatter=0.0, predicted=predicted)
    assert (verdict.outcome, verdict.message[: len(words)]) == (outcome, words)


@pytest.mark.parametrize(
    ("promised", "outcome"), [(0.009, Outcome.TURNED), (0.002, Outcome.OVERSHOT)]
)
def test_less_than_twice_the_promise_is_no_overshoot(promised: float, outcome: Outcome) -> None:
    """The pace turned threefold in both; the level is 1.2 and 2.7 promised effects above what was
    forecast without the control."""
    forecasts = [[0.6 + pace * step for step in range(1, 51)] for pace in (promised, -0.004)]
    predicted = replace(PREDICTED, forecast=forecasts[0], unchanged=forecasts[1])
    assert judge(0.012, 0.016, steps=20, predicted=predicted).outcome == outcome


@pytest.mark.parametrize("steps", [20, 50, 200])
def test_what_would_have_come_is_a_twin_without_the_control(steps: int) -> None:
    """What the control adds is a share of the entropy that fades to 1 / e in three memories of
    twelve steps."""
    twin = [0.6 * math.exp(-0.01 * step) for step in range(steps)]
    lasting = [sum(math.exp(-one / 36) for one in range(1, step + 1)) for step in range(steps)]
    under = [
        entropy * math.exp(0.008 * share) for entropy, share in zip(twin, lasting, strict=True)
    ]
    expected = slope_of(range(steps), twin)
    assert expected is not None
    found = pace_without(under, range(21, 21 + steps), 0.008 * fmean(under), 21)
    assert found == pytest.approx(expected.value, rel=1e-6)


def test_an_entropy_without_the_control_does_not_fall_below_0() -> None:
    assert 50 * pace_without([0.43] * 50, range(16, 66), 0.02, 16) > -0.43
    # Nothing is left to take a share of.
    for entropy, added in ((1e-9, 0.02), (1e-9, -0.02), (0.0, 0.02), (0.0, -0.02)):
        assert abs(pace_without([entropy] * 50, range(16, 66), added, 16)) <= 0.02


def test_a_verdict_is_revised_after_20_50_100_200_steps() -> None:
    assert [judged_after(steps) for steps in (0, 19, 20, 49, 50, 99, 100, 250, 999, 1000)] == [
        0, 0, 20, 20, 50, 50, 100, 200, 500, 1000
    ]  # fmt: skip
    assert judge(0.0, steps=49).realised == judge(0.0, steps=20).realised
    assert judge(0.0, steps=50).realised != judge(0.0, steps=49).realised


@pytest.mark.parametrize(
    ("realised", "added"), [(0.0, 0.004), (-0.002, 0.003), (-0.004, 0.0002), (0.0006, 0.003)]
)
def test_a_verdict_that_was_given_stays(realised: float, added: float) -> None:
    """On a constant course, with the noise of the reference run, where it is given again: in 19 of
    20."""
    changed = 0
    for seed in range(20):
        given = [
            judge(realised, added, steps=steps, scatter=0.015, seed=seed) for steps in (20, 50, 100)
        ]
        outcomes = {verdict.outcome for verdict in given} - {Outcome.UNDECIDED}
        words = {verdict.message.partition(":")[0] for verdict in given}
        changed += max(len(outcomes), len(words)) > 1
    assert changed <= 1


def test_a_verdict_gives_way_to_what_contradicts_it() -> None:
    """Stopped for twenty steps; then the fall goes on as before."""
    entropies = {step: 0.8 - 0.004 * max(0, step - 50) for step in range(1, 221)}
    added = dict.fromkeys(range(21, 50), 0.004)
    given = [verdict_on(version(CLIP), entropies, {}, added, end=end) for end in (45, 220)]
    assert [verdict and verdict.outcome for verdict in given] == [Outcome.STOPPED, Outcome.SLOWED]


def test_before_twenty_steps_it_is_too_early() -> None:
    early = judge(0.0, steps=12)
    assert (early.outcome, early.judged_steps) == (Outcome.UNDECIDED, 0)
    assert early.message == "Too early to say: judged after 20 steps."
    assert judge(0.0, steps=12, is_over=True).outcome == Outcome.STOPPED
    assert judge(0.0, steps=3, is_over=True).outcome == Outcome.UNDECIDED


@pytest.mark.parametrize(
    ("realised", "added"), [(0.0, 0.004), (-0.002, 0.003), (-0.004, 0.0002), (0.004, 0.012)]
)
def test_over_any_window_of_a_constant_course_it_says_the_same(
    realised: float, added: float
) -> None:
    """Of a hundred windows of fifty steps, with the noise of the reference run, in ninety; what is
    said after twenty is kept."""
    outcomes = Counter(
        judge(realised, added, steps=50, scatter=0.015, seed=seed).outcome for seed in range(100)
    )
    assert outcomes.most_common(1)[0][1] >= 90


@pytest.mark.parametrize(
    ("realised", "target", "steps", "outcome"),
    [
        (0.0, 0.6, 60, Outcome.REACHED),
        (-0.004, 0.2, 60, Outcome.APPROACHING),
        (0.0, 0.2, 60, Outcome.FAILED),
        (-0.004, 0.8, 60, Outcome.FAILED),
        (0.0, 0.2, 3, Outcome.WAITING),
        (0.0, 0.64, 60, Outcome.WAITING),
    ],
    ids=["there", "on its way", "far and level", "away from it", "just begun", "near"],
)
def test_a_hold_is_judged_by_its_target_whenever_that_is(
    realised: float, target: float, steps: int, outcome: Outcome
) -> None:
    control = Control(hold={"target_entropy": target})
    verdict = judge(realised, control=control, target=target, steps=steps)
    assert verdict.outcome == outcome
    if outcome == Outcome.WAITING:
        # A hold may act all the while, by thresholds or by a bonus.
        assert verdict.message == "The entropy has not come to its target yet."


def test_a_hold_that_reached_its_target_late_has_reached_it() -> None:
    entropies = {step: min(0.6, 0.2 + 0.005 * (step - 21)) for step in range(21, 171)}
    hold = version(Control(hold={"target_entropy": 0.6}))
    verdict = verdict_on(hold, entropies, {}, {}, targets=dict.fromkeys(entropies, 0.6), end=170)
    assert verdict is not None
    assert (verdict.outcome, verdict.judged_steps) == (Outcome.REACHED, 150)


def test_only_an_applied_and_pushed_version_has_a_verdict() -> None:
    for known in ({"applied_step": None}, {"version": 0}):
        assert verdict_on(version(CLIP, **known), {1: 0.6}, {}, {}, end=1) is None


def test_without_a_gain_nothing_is_decided() -> None:
    values = dict.fromkeys(range(1, 80), 0.6)
    verdict = verdict_on(version(CLIP), values, {}, {}, end=79)
    assert verdict is not None
    assert (verdict.outcome, verdict.without, verdict.promised) == (Outcome.UNDECIDED, None, None)
    assert verdict.message.startswith("Not judged")
    plain = verdict_on(version(Control()), values, {}, {}, end=79)
    assert plain is not None
    assert plain.message == "Clips nothing: 0.0000 nats a step, over 50 steps."


def test_one_odd_step_does_not_move_the_slope() -> None:
    values = [0.6 - 0.002 * step for step in range(20)]
    values[17] = 5.0
    slope = slope_of(range(20), values)
    assert slope is not None
    assert slope.value == pytest.approx(-0.002, rel=0.02)
    assert slope.direction == -1
    assert slope_of(range(4), values[:4]) is None
    long = slope_of(range(1000), [0.6 - 0.002 * step for step in range(1000)])
    assert long is not None
    assert long.value == pytest.approx(-0.002)


@pytest.mark.parametrize("persistence", [0.0, 0.6])
def test_a_level_course_seldom_has_a_clear_slope(persistence: float) -> None:
    """Of 90 % intervals one in ten misses 0; with steps that resemble each other not many more."""
    draw = random.Random(1)
    misses = 0
    for _ in range(200):
        values, rest = [], 0.0
        for _ in range(20):
            rest = persistence * rest + draw.gauss(0, 0.01)
            values.append(0.6 + rest)
        slope = slope_of(range(20), values)
        misses += slope is not None and slope.direction != 0
    assert misses < (40 if persistence == 0 else 70)


def rewards_around(before: float, since: float, *, slope: float = 0.0, steps: int = 40) -> Verdict:
    """The verdict on a control at step 21 of a run whose reward changes there."""
    draw = random.Random(3)
    rewards = {
        step: (before + slope * (step - 21) if step < 21 else since) + draw.gauss(0, 0.004)
        for step in range(-20, 21 + steps)
    }
    return add_reward(judge(0.0, steps=steps), rewards, 21, 20 + steps)


@pytest.mark.parametrize(
    ("before", "since", "slope", "words"),
    [
        (0.40, 0.27, 0.0, "The reward fell from 0.40 to 0.27."),
        (0.27, 0.40, 0.0, "The reward rose from 0.27 to 0.40."),
        (0.40, 0.40, 0.0, "No clear change of the reward: 0.40 before, 0.40 now."),
        # It rose before the control: what counts is the level at which that began.
        (0.60, 0.40, 0.02, "The reward fell from 0.49 to 0.40."),
    ],
)
def test_a_verdict_tells_of_the_reward(
    before: float, since: float, slope: float, words: str
) -> None:
    verdict = rewards_around(before, since, slope=slope)
    assert verdict.message.endswith(f" {words}")
    assert verdict.reward is not None
    assert verdict.reward.direction == (("fell" not in words) - ("rose" not in words))


def test_few_rewards_make_no_claim() -> None:
    assert rewards_around(0.4, 0.1, steps=9).reward is None
    assert add_reward(judge(0.0), {}, 21, 60) == judge(0.0)


def test_a_level_reward_seldom_changes() -> None:
    """Of 200 runs, looked at nine times each."""
    claims = 0
    for seed in range(200):
        draw = random.Random(seed)
        rewards = [0.5 + draw.gauss(0, 0.05) for _ in range(130)]
        looks = (reward_change(rewards[:40], rewards[40:end]) for end in range(50, 131, 10))
        claims += any(change is not None and change.direction for change in looks)
    assert claims <= 4
