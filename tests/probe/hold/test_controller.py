"""The threshold of each step is the one whose predicted change is wanted, within every bound."""

from __future__ import annotations

import itertools
from dataclasses import replace
from statistics import fmean

import pytest

from isentrope.methods.targets import adds_to_entropies
from isentrope_wire.control import LARGEST_CHANGE, Control, Hold, HoldLever, HoldSide, Method, Scope
from isentrope_wire.hold_action import HoldStatus, control_under
from isentrope_wire.hold_decision import (
    BONUS_STEP,
    HYSTERESIS,
    LARGEST_LAG,
    RATE,
    SLEW_FACTOR,
    SLEW_STEP,
    Calibrated,
    EntropyEstimate,
    HoldState,
    Measured,
    Plan,
)
from isentrope_wire.what_if import WhatIfCurve, WhatIfSums
from tests.probe.hold.collapsing_plant import GAIN, TRUSTED, CollapsingPlant, decided, step_sums

# With nothing clipped the unit prediction is -0.04: at a gain of 0.5 the entropy falls by 0.02 nats
# a step.
FALLING = step_sums(lowering=0.09, raising=0.05)
RISING = step_sums(lowering=0.05, raising=0.09)
HOLD = Hold(target_entropy=0.5)


def measured(
    entropy: float = 0.5,
    *,
    to_come: float = 0.0,
    drift: float = 0.0,
    calibrated: Calibrated = TRUSTED,
    gain: float | None = GAIN,
    what_if: WhatIfSums = FALLING,
) -> Measured:
    """At rest by default."""
    estimate = EntropyEstimate(mean_entropy=entropy, gain=gain, to_come=to_come, drift=drift)
    return Measured(step=9, entropy=estimate, calibrated=calibrated, what_if=what_if)


def clipping_at(mu: float, scope: Scope = Scope.DECREASING) -> HoldState:
    return HoldState(acting=True, scope=scope, mu=mu)


@pytest.mark.parametrize("entropy", [0.46, 0.49, 0.5, 0.54])
def test_the_threshold_gives_the_correction_that_is_wanted(entropy: float) -> None:
    state, action = decided(HOLD, clipping_at(1.0), measured(entropy), step=10)
    assert (action.status, action.scope) == (HoldStatus.HOLDING, Scope.DECREASING)
    curve = WhatIfCurve(FALLING, Scope.DECREASING, Method.CLIP_V)
    reached = curve.evaluate(action.mu, action.mu).unit_predicted_change
    assert 0.5 * reached == pytest.approx(RATE * (0.5 - entropy), abs=1e-6)
    assert state.mu == action.mu
    assert state.plans[-1] == Plan(10, reached)


def test_below_the_target_tokens_that_lower_it_are_clipped() -> None:
    level = step_sums(lowering=0.05, raising=0.05)
    assert (
        decided(HOLD, HoldState(), measured(0.45, what_if=level), step=10)[1].scope
        == Scope.DECREASING
    )
    assert (
        decided(HOLD, HoldState(), measured(0.55, what_if=level), step=10)[1].scope
        == Scope.INCREASING
    )


@pytest.mark.parametrize(
    ("side", "entropy", "what_if"), [("lower", 0.4, FALLING), ("raise", 0.9, RISING)]
)
def test_a_side_that_is_not_allowed_is_left_alone(
    side: str, entropy: float, what_if: WhatIfSums
) -> None:
    numbers = measured(entropy, what_if=what_if)
    state, action = decided(replace(HOLD, side=HoldSide(side)), HoldState(), numbers, step=10)
    assert (action.status, action.mu, state.mu) == (HoldStatus.SIDE, None, None)
    assert "side does not allow it" in action.reason


def test_a_correction_is_never_larger_than_asked_for() -> None:
    hold = replace(HOLD, max_change_per_step=0.002)
    state, _ = decided(hold, clipping_at(1.0), measured(0.1), step=10)
    assert 0.5 * state.plans[-1].unit_prediction == pytest.approx(0.002, abs=1e-6)


def test_a_threshold_stays_within_its_limits_and_says_when_it_would_leave_them() -> None:
    hold = replace(HOLD, mu_min=1.3, mu_max=1.9)
    _, low = decided(hold, clipping_at(1.35), measured(0.45), step=10)
    assert (low.status, low.mu) == (HoldStatus.LIMIT, 1.3)
    hold = replace(HOLD, mu_min=0.8, mu_max=1.2)
    _, high = decided(hold, clipping_at(1.1), measured(0.599), step=10)
    assert (high.status, high.mu) == (HoldStatus.APPROACHING, 1.2)


def test_where_the_cap_binds_no_lower_threshold_is_looked_for_and_the_plan_is_what_it_leaves() -> (
    None
):
    curve = WhatIfCurve(FALLING, Scope.DECREASING, Method.CLIP_V)
    # 40 tokens lie from 0 to 2: a tenth of the 100 is reached at 1.5, and the correction asks for
    # more.
    state, action = decided(HOLD, clipping_at(1.6), measured(0.46), step=10, max_fraction=0.1)
    assert action.status == HoldStatus.LIMIT
    assert action.mu == pytest.approx(1.5, abs=1e-6)
    capped = curve.evaluate(0.5, 0.5, max_fraction=0.1).unit_predicted_change
    assert state.plans[-1].unit_prediction == pytest.approx(capped, abs=1e-6)
    state, action = decided(HOLD, clipping_at(1.0), measured(0.46), step=10, max_fraction=0.9)
    assert state.plans[-1].unit_prediction > capped
    _, action = decided(HOLD, clipping_at(1.6), measured(0.57), step=10, max_fraction=0.1)
    assert action.status == HoldStatus.APPROACHING
    assert action.mu is not None
    assert action.mu > 1.5


@pytest.mark.parametrize("entropy", [0.46, 0.5, 0.53])
def test_a_mean_over_the_kept_tokens_alone_is_solved_for_as_such(entropy: float) -> None:
    state, action = decided(
        HOLD, clipping_at(1.0), measured(entropy), step=10, denominator="shrink"
    )
    curve = WhatIfCurve(FALLING, Scope.DECREASING, Method.CLIP_V)
    reached = curve.evaluate(action.mu, action.mu, shrink_denominator=True).unit_predicted_change
    assert action.status == HoldStatus.HOLDING
    assert 0.5 * reached == pytest.approx(RATE * (0.5 - entropy), abs=1e-6)
    assert state.plans[-1].unit_prediction == reached


def test_bonus_acts_where_no_threshold_suffices() -> None:
    hold = replace(HOLD, mu_min=1.3, mu_max=1.9)
    numbers = replace(measured(0.45), bonus_effect=0.1)
    state, action = clipping_at(1.35), None
    _, alone = decided(replace(hold, lever=HoldLever.THRESHOLDS), state, numbers, step=10)
    assert (alone.status, alone.mu, alone.bonus) == (HoldStatus.LIMIT, 1.3, None)
    before = WhatIfCurve(FALLING, Scope.DECREASING, Method.CLIP_V).evaluate(1.35, 1.35)
    last = before.unit_predicted_change
    for _ in range(20):
        state = replace(state, plans=(Plan(9, last),))
        state, action = decided(hold, state, numbers, step=10)
        assert (action.mu, action.status) == (None, HoldStatus.HOLDING)
        assert "no threshold moves the entropy as far" in action.reason
        # A bonus goes on from what the thresholds added, and moves no faster than it may.
        moved = state.plans[-1].unit_prediction - last
        assert 0 <= 0.5 * moved <= max(BONUS_STEP * LARGEST_CHANGE * 0.5, 0.5 * 0.1) + 1e-9
        last = state.plans[-1].unit_prediction
    assert action is not None
    assert action.bonus is not None
    assert 0.5 * (-0.04 + 0.1 * action.bonus) == pytest.approx(RATE * 0.05)
    control = Control(method="clip_v", hold={"target_entropy": 0.5}, parameters={"epsilon_low": 1})
    acting = control_under(action, control)
    assert (acting.method, acting.mu_low) == (Method.ENTROPY_BONUS, None)
    assert acting.parameters == {"epsilon_low": 1.0, "coefficient": action.bonus}
    # At the target thresholds suffice, with some to spare: they go on where they are needed.
    back, there = decided(HOLD, state, replace(measured(0.5), bonus_effect=0.1), step=11)
    assert (there.status, there.bonus, back.bonus) == (HoldStatus.HOLDING, None, None)
    unmeasured = replace(numbers, bonus_effect=None)
    assert decided(hold, clipping_at(1.35), unmeasured, step=10)[1].status == HoldStatus.LIMIT


@pytest.mark.parametrize(("target", "exact"), [(0.17, True), (0.19, False), (0.5, False)])
def test_low_target_takes_an_exact_bonus(target: float, exact: bool) -> None:
    hold = Hold(target_entropy=target, lever=HoldLever.BONUS)
    numbers = replace(measured(0.45, what_if=RISING), bonus_effect=0.1, early_level=0.6)
    _, action = decided(hold, HoldState(), numbers, step=10)
    assert action.exact == exact
    acting = control_under(action, Control(hold={"target_entropy": target}))
    assert adds_to_entropies(acting) == exact
    _, unknown = decided(hold, HoldState(), replace(numbers, early_level=None), step=10)
    assert not unknown.exact


@pytest.mark.parametrize(
    ("share", "lever"), [(1.3, "auto"), (0.1, "auto"), (1.3, "bonus"), (0.5, "bonus")]
)
def test_bonus_reaches_what_thresholds_do_not(share: float, lever: str) -> None:
    mild = {"mu_min": 1.9, "lever": lever}
    plant = CollapsingPlant(lag=1, drift=-0.002, noise=0.002, bonus_effect=0.05)
    target = share * plant.entropy
    plant.run(Hold(target_entropy=target, **mild), 200)  # type: ignore[arg-type]  # checked there
    assert max(abs(entropy / target - 1) for entropy in plant.entropies[120:]) < 0.05
    assert any(action.bonus is not None for action in plant.actions)
    assert lever == "auto" or all(action.mu is None for action in plant.actions)
    thresholds = CollapsingPlant(lag=1, drift=-0.002, noise=0.002, bonus_effect=0.05)
    thresholds.run(Hold(target_entropy=target, **{**mild, "lever": "thresholds"}), 200)  # type: ignore[arg-type]
    off = max(abs(entropy / target - 1) for entropy in thresholds.entropies[120:])
    assert off > 0.05 or share == 0.5


def test_a_threshold_moves_only_so_far_in_a_step() -> None:
    _, down = decided(HOLD, clipping_at(1.9), measured(0.46), step=10)
    _, up = decided(HOLD, clipping_at(0.1), measured(0.5), step=10)
    assert down.status == up.status == HoldStatus.SLEWING
    assert down.mu == pytest.approx(0.9)
    assert up.mu == pytest.approx(0.3)


def test_clipping_sets_out_from_the_furthest_score_there_is() -> None:
    # No token of these lies beyond 2 standard deviations: thresholds from there to mu_max clip
    # nothing.
    for state in (HoldState(), clipping_at(8.0), clipping_at(1.0, Scope.INCREASING)):
        after, action = decided(HOLD, state, measured(0.4), step=10)
        assert action.mu == pytest.approx((2.0 - SLEW_STEP) / SLEW_FACTOR)
        assert after.plans[-1].unit_prediction > FALLING.change_sum / FALLING.tokens
    _, bounded = decided(replace(HOLD, mu_max=1.5), HoldState(), measured(0.4), step=10)
    assert bounded.mu == pytest.approx((1.5 - SLEW_STEP) / SLEW_FACTOR)


def test_clipping_begins_beyond_a_band_and_ends_at_its_middle() -> None:
    # Falls by itself just as fast as is wanted, but for half the band.
    band = HYSTERESIS * HOLD.largest_change(0.5)
    entropy = 0.5 + (0.02 - band / 2) / RATE
    assert decided(HOLD, HoldState(), measured(entropy), step=10)[1].mu is None
    assert decided(HOLD, clipping_at(1.9), measured(entropy), step=10)[1].scope == Scope.DECREASING
    assert decided(HOLD, clipping_at(1.9), measured(entropy + band / RATE), step=10)[1].mu is None
    assert (
        decided(HOLD, HoldState(), measured(entropy - band / RATE), step=10)[1].scope
        == Scope.DECREASING
    )


def test_what_momentum_and_steps_not_yet_measured_will_do_is_counted_in() -> None:
    falling = measured(0.5, to_come=-0.045)
    state = replace(
        clipping_at(1.0), plans=(Plan(8, -1.0), Plan(9, -1.0), Plan(10, 0.02), Plan(11, 0.04))
    )
    after, _ = decided(HOLD, state, falling, step=12)
    standing = 0.5 - 0.045 + 0.5 * (0.02 + 0.04)
    assert 0.5 * after.plans[-1].unit_prediction == pytest.approx(RATE * (0.5 - standing), abs=1e-6)
    assert [plan.step for plan in after.plans] == [10, 11, 12]


def test_what_the_prediction_misses_on_average_is_made_up_for() -> None:
    standing_still = measured(0.5, drift=-0.001)
    after, _ = decided(HOLD, clipping_at(1.0), standing_still, step=10)
    assert 0.5 * after.plans[-1].unit_prediction == pytest.approx(0.001, abs=1e-6)


def test_without_numbers_or_trust_the_pushed_control_stays_with_the_reason() -> None:
    for numbers, step, words in (
        (None, 10, "No measurements"),
        (measured(), 10 + LARGEST_LAG, "6 steps old"),
        (measured(gain=-0.1), 10, "gain is -0.1"),
        (measured(calibrated=replace(TRUSTED, compared_steps=3)), 10, "compared in 3 steps"),
    ):
        state, action = decided(HOLD, clipping_at(1.0), numbers, step=step)
        assert (action.status, action.mu, state.acting, state.scope) == (
            HoldStatus.FALLBACK,
            None,
            False,
            None,
        )
        assert words in action.reason


def test_an_approach_is_slowed_only_near_the_target_or_where_asked() -> None:
    # Nothing clipped, it falls by 0.02 a step: a fifth of the distance is more until 0.1 nats above
    # the target.
    for entropy, slowed in ((2.0, False), (0.7, False), (0.55, True)):
        _, action = decided(HOLD, HoldState(), measured(entropy), step=10)
        assert (action.scope == Scope.DECREASING) == slowed
        assert action.status == HoldStatus.APPROACHING
    _, asked = decided(
        replace(HOLD, max_change_per_step=0.005), HoldState(), measured(2.0), step=10
    )
    assert asked.scope == Scope.DECREASING


@pytest.mark.parametrize("entropy", [2.0, 0.1])
def test_a_far_target_is_corrected_towards_by_a_share_of_the_distance(entropy: float) -> None:
    state, numbers = HoldState(), measured(entropy, what_if=step_sums(0.05, 0.049), gain=5.0)
    for _ in range(20):  # the threshold moves only so far in a step
        state, action = decided(HOLD, replace(state, plans=()), numbers, step=10)
    change = 5.0 * abs(state.plans[-1].unit_prediction)
    assert change == pytest.approx(LARGEST_CHANGE * max(abs(0.5 - entropy), 0.5), rel=1e-3)
    assert action.status == HoldStatus.APPROACHING
    assert action.steps_to_target == pytest.approx(abs(0.5 - entropy) / change, abs=2)


def test_an_entropy_that_moves_away_does_not_approach() -> None:
    _, action = decided(replace(HOLD, mu_min=1.9), clipping_at(1.95), measured(0.3), step=10)
    assert (action.status, action.steps_to_target) == (HoldStatus.LIMIT, None)


def test_a_target_no_policy_can_have_is_refused() -> None:
    small = replace(measured(2.0), vocabulary=24)
    for target, status in (
        (3.17, HoldStatus.APPROACHING),
        (3.19, HoldStatus.FALLBACK),
        (19.0, HoldStatus.FALLBACK),
    ):
        state, action = decided(
            Hold(target_entropy=target), HoldState(), replace(small, what_if=RISING), step=10
        )
        assert (action.status, action.target, state.acting) == (
            status,
            target,
            status != HoldStatus.FALLBACK,
        )


def test_a_target_the_run_never_had_is_named() -> None:
    for highest, named in ((0.49, True), (0.5, False)):
        _, action = decided(
            HOLD, clipping_at(1.0), replace(measured(0.49), highest_entropy=highest), step=10
        )
        assert (action.status, f"{highest:.4g}, the highest" in action.reason) == (
            HoldStatus.HOLDING,
            named,
        )


def test_a_share_is_of_the_early_level_once_it_is_known() -> None:
    half = Hold(target_share=0.5)
    _, early = decided(half, clipping_at(1.0), measured(0.5), step=10)
    assert (early.status, early.target) == (HoldStatus.FALLBACK, None)
    _, later = decided(half, clipping_at(1.0), replace(measured(0.5), early_level=1.0), step=10)
    assert (later.status, later.target) == (HoldStatus.HOLDING, 0.5)


def test_a_curve_s_target_is_that_of_the_step_that_begins() -> None:
    hold = Hold(target_curve=((100, 0.6), (200, 0.4)))
    # It steers to 0.482, which the curve has nine steps later.
    _, action = decided(hold, clipping_at(1.0), replace(measured(0.482), run_step=148), step=11)
    assert action.status == HoldStatus.HOLDING
    assert action.target == pytest.approx(0.5)


@pytest.mark.parametrize(("drift", "steps"), [(-0.002, 100), (-0.02, 200)])
def test_entropy_stays_on_a_moving_target(drift: float, steps: int) -> None:
    plant = CollapsingPlant(lag=1, drift=drift, noise=0.002, bonus_effect=0.05)
    hold = Hold(target_curve=((0, plant.entropy), (steps, plant.entropy / 2)))
    plant.run(hold, steps)
    targets = [some_target(hold, step) for step in range(steps)]
    off = [of / to - 1 for of, to in zip(plant.entropies, targets, strict=True)]
    assert fmean(map(abs, off[steps // 3 :])) < 0.01


def some_target(hold: Hold, step: int) -> float:
    target = hold.target_at(step, None)
    assert target is not None
    return target


@pytest.mark.parametrize("share", [0.75, 0.25, 0.1, 0.01])
def test_a_far_target_is_reached_and_then_held(share: float) -> None:
    alone, held = (CollapsingPlant(lag=1, drift=-0.004, noise=0.002) for _ in range(2))
    target = share * held.entropy
    alone.run(Hold(target_entropy=target, mu_min=10.0), 300)
    held.run(Hold(target_entropy=target), 300)
    reached, by_itself = (
        next((step for step, entropy in enumerate(plant.entropies) if entropy < 1.2 * target), 300)
        for plant in (held, alone)
    )
    assert reached <= by_itself
    assert max(abs(entropy - target) for entropy in held.entropies[200:]) < max(0.2 * target, 0.004)


@pytest.mark.parametrize("lag", [1, 2, 3])
@pytest.mark.parametrize(("drift", "bias"), [(-0.02, 0.0), (-0.02, -0.004), (0.01, 0.004)])
def test_a_run_that_collapses_or_explodes_is_held_however_late_its_numbers_are(
    lag: int, drift: float, bias: float
) -> None:
    alone, held = (CollapsingPlant(lag=lag, drift=drift, bias=bias) for _ in range(2))
    alone.run(replace(HOLD, target_entropy=0.5, mu_min=10.0), 150)
    held.run(HOLD, 150)
    assert abs(alone.entropies[-1] - 0.5) > 1.0
    assert max(abs(entropy - 0.5) for entropy in held.entropies[60:]) < 0.03
    assert sum(abs(entropy - 0.5) for entropy in held.entropies[60:]) / 90 < 0.01


@pytest.mark.parametrize("gain", [0.25, 1.5])
@pytest.mark.parametrize("memory", [0.9, 0.6])
def test_a_gain_that_changes_under_the_hold_makes_it_neither_swing_nor_drift_away(
    gain: float, memory: float
) -> None:
    plant = CollapsingPlant(lag=1, bias=-0.003, gain=gain, memory=memory)
    plant.run(HOLD, 260)
    late = plant.entropies[160:]
    changes = [after - before for before, after in itertools.pairwise(late)]
    assert sum(abs(entropy - 0.5) for entropy in late) / len(late) < 0.015
    assert sum(map(abs, changes)) / len(changes) < 0.008
