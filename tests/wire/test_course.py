"""The course of made runs: forecasts that score, bands that hold, and alarms of 18 shapes of
entropy."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Sequence

import pytest

from isentrope_wire.diagnosis.course import AHEAD, Course
from isentrope_wire.numbers import document_of, read_exactly

Shape = Callable[[int], float]
WATCH, ACT = 1, 2


def noisy(shape: Shape, steps: int, *, scatter: float = 0.05, seed: int = 0) -> list[float]:
    draw = random.Random(seed)
    return [shape(step) * math.exp(draw.gauss(0, scatter)) for step in range(steps)]


def walked(
    values: Sequence[float], observed: Shape | None = None
) -> tuple[Course, list[int], list[tuple[int, str, int]]]:
    """The course after all steps, its urgency at each, and what was raised."""
    course, urgencies, raised = Course(), list[int](), list[tuple[int, str, int]]()
    for step, value in enumerate(values):
        news = course.add(step, value, observed=None if observed is None else observed(step))
        raised += [(step, kind, urgency) for kind, urgency in news.items()]
        urgencies.append(course.urgency)
    return course, urgencies, raised


def falling(constant: float, floor: float = 0.0) -> Shape:
    return lambda step: 2 * (floor + (1 - floor) * math.exp(-step / constant))


def after(rest: int, then: Shape) -> Shape:
    return lambda step: then(max(0, step - rest))


def format_first(step: int) -> float:
    """The format is learnt: 60 % are lost in 20 steps. A real collapse comes 480 steps later."""
    return 2 - 1.2 * min(step, 20) / 20 if step < 500 else 0.8 * math.exp(-(step - 500) / 30)


def back_and_down(step: int) -> float:
    marks = ((0, 2.0), (60, 0.7), (120, 1.6), (220, 1.6), (300, 0.4))
    for (first, low), (last, high) in itertools.pairwise(marks):
        if step <= last:
            return low + (high - low) * (step - first) / (last - first)
    return 0.4


@pytest.mark.parametrize("constant", [60, 200])
@pytest.mark.parametrize("seed", range(3))
def test_a_forecast_of_a_fall_beats_that_nothing_changes(constant: float, seed: int) -> None:
    values = noisy(falling(constant, 0.2), 300, seed=seed)
    course, ahead, nothing = Course(), list[float](), list[float]()
    for step, value in enumerate(values):
        course.add(step, value)
        found = course.forecast()
        if found is not None and step < 200:
            assert found.step == [*range(step + 1, step + 1 + AHEAD)]
            come = falling(constant, 0.2)(step + AHEAD)
            ahead.append(abs(found.entropy[-1] - come))
            nothing.append(abs(course.entropy - come))
    assert sum(ahead) < 0.6 * sum(nothing)
    score = course.score
    assert score is not None
    assert (score.horizon, score.forecasts) == (50, 49)
    assert score.mean_error < 0.75 * score.unchanged_error


@pytest.mark.parametrize("scatter", [0.03, 0.15])
def test_a_course_that_stays_is_forecast_to_stay(scatter: float) -> None:
    course, urgencies, _ = walked(noisy(lambda step: 2.0, 300, scatter=scatter))
    found = course.forecast()
    assert found is not None
    assert found.entropy[-1] == pytest.approx(2.0, rel=3 * scatter)
    assert set(urgencies) == {0}


def wandering(seed: int) -> list[float]:
    draw, place = random.Random(seed), 0.0
    values = []
    for _ in range(600):
        place = 0.98 * place + draw.gauss(0, 0.03)
        values.append(2 * math.exp(place + draw.gauss(0, 0.05)))
    return values


@pytest.mark.parametrize("horizon", [10, 20, 50])
def test_the_band_holds_nine_of_ten(horizon: int) -> None:
    """Of falls of three paces, of a flat course, and of prompts that wander."""
    shapes = [
        noisy(shape, 400, seed=seed)
        for seed in range(2)
        for shape in (falling(60, 0.1), falling(150), lambda _: 2.0)
    ]
    inside = []
    for values in [*shapes, *(wandering(seed) for seed in range(4))]:
        course = Course()
        for step, value in enumerate(values):
            course.add(step, value)
            found = course.forecast() if step % 5 == 0 and step + horizon < len(values) else None
            if found is not None:
                inside.append(
                    found.low[horizon - 1] <= values[step + horizon] <= found.high[horizon - 1]
                )
    assert 0.85 <= sum(inside) / len(inside) <= 0.99


@pytest.mark.parametrize(
    ("shape", "steps", "by"),
    [
        (falling(60), 120, 60),
        (falling(200), 300, 190),
        (lambda step: 2 - step / 220, 400, 300),
        (after(1000, falling(100)), 1150, 1090),
        (after(100, lambda step: 2 * (1 - 0.98 * min(step, 15) / 15)), 180, 117),
    ],
    ids=["fast", "slow", "straight", "after a rest", "in 15 steps"],
)
@pytest.mark.parametrize("scatter", [0.03, 0.1])
def test_a_collapse_is_announced(shape: Shape, steps: int, by: int, scatter: float) -> None:
    for seed in range(3):
        _, _, raised = walked(noisy(shape, steps, scatter=scatter, seed=seed))
        first = next(step for step, kind, urgency in raised if urgency == ACT)
        assert {kind for _, kind, _ in raised} == {"collapse"}
        assert first <= by


@pytest.mark.parametrize(
    ("shape", "steps", "second"), [(format_first, 640, 545), (back_and_down, 300, 299)]
)
def test_a_second_collapse_is_announced_too(shape: Shape, steps: int, second: int) -> None:
    for seed in range(3):
        _, _, raised = walked(noisy(shape, steps, seed=seed))
        acts = [step for step, _, urgency in raised if urgency == ACT]
        assert any(step < 100 for step in acts)
        assert any(step > 200 for step in acts if step <= second)


@pytest.mark.parametrize(("is_measured", "urgency", "by"), [(False, ACT, 10), (True, WATCH, 7)])
def test_few_completions_of_a_real_model_scatter_and_the_collapse_is_announced_all_the_same(
    is_measured: bool, urgency: int, by: int
) -> None:
    """SmolLM2-135M, 24 completions a step: neighbouring steps differ by a quarter, what an update
    changes by much less."""
    entropies = [1.86, 1.82, 2.43, 1.70, 1.41, 1.10, 0.77, 1.17, 0.69, 0.62, 0.62, 0.39, 0.57, 0.40]
    changes = [
        -0.02,
        -0.01,
        -0.08,
        -0.15,
        -0.08,
        -0.12,
        -0.09,
        -0.08,
        -0.08,
        -0.05,
        -0.07,
        -0.05,
        0.0,
        0.0,
    ]
    _, _, raised = walked(entropies, changes.__getitem__ if is_measured else None)
    assert raised[0][1:] == ("collapse", urgency)
    assert raised[0][0] <= by


def test_a_further_halving_is_announced_again() -> None:
    _, _, raised = walked([falling(40)(step) for step in range(160)])
    halves = [step for step, _, urgency in raised if urgency == ACT]
    assert len(halves) == 5
    assert all(20 < later - earlier < 36 for earlier, later in itertools.pairwise(halves))


@pytest.mark.parametrize(
    ("shape", "highest"),
    [
        (lambda step: 2 * (1 + 0.35 * math.sin(step / 30)), WATCH),
        (lambda step: 2 * (1 + 0.2 * math.sin(step / 15)), WATCH),
        (lambda step: 2.0 if step % 40 else 0.6, 0),
        (falling(100, 0.55), WATCH),
        (lambda step: 2 * (1 - 0.45 * step / 1500), WATCH),
        (lambda step: 2 * math.exp(step / 3000), WATCH),
    ],
    ids=[
        "a third up and down",
        "a fifth up and down",
        "one step in forty",
        "settles",
        "slow",
        "rises slowly",
    ],
)
def test_what_is_no_collapse_raises_no_act(shape: Shape, highest: int) -> None:
    for seed in range(3):
        _, urgencies, _ = walked(noisy(shape, 1500, seed=seed))
        assert max(urgencies) <= highest


@pytest.mark.parametrize("left", [0.4, 0.6, 1.6])
def test_new_prompts_that_move_nothing_raise_no_act(left: float) -> None:
    values = noisy(lambda step: 2.0 if step < 200 else 2 * left, 400)
    assert max(walked(values, observed=lambda step: 0.0)[1]) == WATCH


def test_act_does_not_end_before_the_pace_is_over() -> None:
    """At most four changes in a run of 400 steps that no control touches."""
    for constant in (60, 120, 200):
        for seed in range(3):
            _, urgencies, _ = walked(noisy(falling(constant, 0.1), 400, scatter=0.1, seed=seed))
            assert sum(a != b for a, b in itertools.pairwise(urgencies)) <= 4
            first = urgencies.index(ACT)
            assert all(urgency == ACT for urgency in urgencies[first : first + constant])


def test_the_unit_of_the_entropy_changes_nothing() -> None:
    values = noisy(falling(80), 150)
    (one, _, raised), (other, _, again) = walked(values), walked([100 * value for value in values])
    assert raised == again
    assert other.entropy == pytest.approx(100 * one.entropy)
    assert other.rate == pytest.approx(one.rate)


def test_a_held_entropy_is_counted_from_its_target() -> None:
    course = Course()
    for step in range(80):
        course.add(step, 2.0 if step < 5 else max(1.0, 2.0 - step / 20), target=1.0)
    assert course.urgency == 0


def test_what_a_control_adds_fades() -> None:
    course, _, _ = walked([falling(100)(step) for step in range(60)])
    unchanged, added, cut = (course.ahead(20, change) for change in (0.0, 0.01, -0.2))
    assert 0.1 < added - unchanged < 0.2
    assert added - unchanged < course.ahead(50, 0.01) - course.ahead(50) < 0.3
    assert 0 < cut < unchanged
    # What would end the fall at first ends it for good.
    stops = -course.rate * course.ahead(0)
    assert [course.ahead(steps, stops) for steps in (20, 50)] == pytest.approx(
        [course.ahead(0)] * 2, rel=0.1
    )
    pace, wide = course.mean_pace(20, 0.01, 0.0), course.mean_pace(20, 0.01, 0.005)
    assert pace is not None
    assert wide is not None
    unchanged_pace = course.mean_pace(20)
    assert unchanged_pace is not None
    assert (
        pace.value == wide.value == pytest.approx(unchanged_pace.value + (added - unchanged) / 20)
    )
    assert wide.high - wide.low > pace.high - pace.low
    found, wider = course.forecast(0.01), course.forecast(0.01, 0.005)
    assert found is not None
    assert wider is not None
    assert found.entropy == wider.entropy
    assert wider.high[-1] > found.high[-1]


def test_a_band_is_finite_and_above_0_where_nearly_no_entropy_is_left() -> None:
    course, _, _ = walked([0.7**step for step in range(60)])
    found = course.forecast(0.01, 0.5)
    assert found is not None
    assert all(
        0 <= low <= middle <= high < math.inf
        for low, middle, high in zip(found.low, found.entropy, found.high, strict=True)
    )


def test_a_band_has_the_scatter_of_the_steps_and_narrows_nowhere() -> None:
    far = {}
    for scatter, steps in ((0.03, 15), (0.3, 15), (0.3, 80)):
        course, _, _ = walked(noisy(lambda step: 2.0, steps, scatter=scatter))
        found = course.forecast()
        assert found is not None
        widths = [math.log(high / low) for low, high in zip(found.low, found.high, strict=True)]
        assert widths == pytest.approx(sorted(widths))
        far[scatter, steps] = widths[-1]
    # No forecast of a run of 15 steps has come to its time.
    assert far[0.3, 15] > 2 * far[0.03, 15]


@pytest.mark.parametrize(("pace", "least", "most"), [(0.08, 0.9, 1.5), (0.002, 0.0, 0.25)])
def test_a_run_that_moves_faster_than_recorded_ones_has_a_wider_band(
    pace: float, least: float, most: float
) -> None:
    course, _, _ = walked([math.exp(-pace * step) for step in range(12)])
    found = course.forecast()
    assert found is not None
    moved = course.level - math.log(found.entropy[19])
    width = math.log(found.high[19] / found.entropy[19])
    assert least * moved < width < most


def test_a_forecast_begins_nearer_to_the_entropy_than_its_last_steps() -> None:
    truth = falling(80, 0.2)
    course, off, unchanged = Course(), 0.0, 0.0
    for step, value in enumerate(noisy(truth, 150, scatter=0.03)):
        course.add(step, value, observed=truth(step + 1) - truth(step))
        if step > 20:
            off += abs(course.ahead(1) - truth(step + 1))
            unchanged += abs(course.entropy - truth(step + 1))
    assert off < 0.5 * unchanged


def test_what_updates_changed_brings_a_forecast_nearer_where_steps_scatter() -> None:
    truth = falling(100)
    known, plain, off = Course(), Course(), {True: 0.0, False: 0.0}
    for step, value in enumerate(noisy(truth, 150, scatter=0.2)):
        known.add(step, value, observed=truth(step + 1) - truth(step))
        plain.add(step, value)
        for course in (known, plain) if step > 20 else ():
            off[course is known] += abs(course.ahead(20) - truth(step + 20))
    assert off[True] < 0.8 * off[False]


def test_one_odd_measured_change_does_not_carry_the_forecast_away() -> None:
    course = Course()
    for step, value in enumerate(noisy(lambda step: 0.6, 40, scatter=0.3)):
        course.add(step, value, observed=-0.5 if step == 38 else 0.05 * (-1) ** step)
    assert 0.4 < course.ahead(1) < 0.8


def test_steps_to_come_are_where_the_forecast_is() -> None:
    course, _, _ = walked([falling(30)(step) for step in range(40)])
    steps = course.steps_until(0.6)
    assert steps is not None
    assert course.ahead(round(steps)) == pytest.approx(0.6 * course.entropy, rel=0.02)
    assert course.steps_until(0.01) is None


def test_another_control_makes_the_past_count_less() -> None:
    plain, known = Course(), Course()
    for step in range(48):
        value = falling(50)(min(step, 40))
        plain.add(step, value)
        known.add(step, value, is_new_control=step == 41)
    assert plain.rate < -0.002
    assert abs(known.rate) < 0.5 * abs(plain.rate)


def test_a_forecast_right_after_a_control_does_not_carry_the_fall_on() -> None:
    """The fall goes on for six steps under it, as momentum makes it, and is over."""
    values = noisy(lambda step: 2 * math.exp(-min(step, 46) / 40), 90, scatter=0.03)
    off = {}
    for known in (True, False):
        course, off[known] = Course(), 0.0
        for step, value in enumerate(values):
            course.add(step, value, is_new_control=known and step == 40)
            if 40 <= step < 60:
                off[known] += abs(course.ahead(20) - values[60])
    assert off[True] < 0.6 * off[False]


def test_what_a_control_adds_is_in_the_forecast_before_the_course_shows_it() -> None:
    """A control adds 0.02 nats a step to a fall, shown by steps that scatter as much as ten of them
    add."""
    values = noisy(
        lambda step: 2 - 0.01 * step if step < 40 else 1.6 + 0.01 * (step - 40), 75, scatter=0.05
    )
    off = {}
    for known in (True, False):
        course, off[known] = Course(), 0.0
        for step, value in enumerate(values):
            is_new = known and step == 40
            by_control = 0.02 / 0.75 * (step >= 40) if known else None
            course.add(step, value, is_new_control=is_new, by_control=by_control, explained=0.9)
            if 40 < step < 60:
                off[known] += abs(course.ahead(15) - (1.6 + 0.01 * (step - 25)))
    assert off[True] < 0.4 * off[False]


def test_no_forecast_is_above_ln_v() -> None:
    values = [0.5 * 1.06**step for step in range(40)]
    free, _, _ = walked(values)
    bounded, _, _ = walked(values)
    bounded.largest = math.log(200)
    forecast, pace = bounded.forecast(1.0, 0.2), bounded.mean_pace(20, 1.0, 0.2)
    assert forecast
    assert pace
    assert free.ahead(50, 1.0) > 2 * math.log(200)
    assert [max(forecast.entropy), max(forecast.high)] == pytest.approx([math.log(200)] * 2)
    assert pace.value == pytest.approx(pace.high)
    assert 0 < pace.value < (math.log(200) - bounded.entropy) / 20
    assert bounded.ahead(50, 1.0) == pytest.approx(math.log(200))


def test_a_measured_level_above_ln_v_counts() -> None:
    course, _, _ = walked([2.0] * 30)
    course.largest = math.log(4)
    forecast = course.forecast(0.1)
    assert forecast is not None
    assert [forecast.entropy[-1], forecast.high[-1]] == pytest.approx([2.0, 2.0])


def test_a_course_continues_from_plain_values() -> None:
    values = noisy(falling(60), 120)
    course, _, _ = walked(values[:70])
    again = read_exactly(Course, document_of(course))
    for step, value in enumerate(values[70:], start=70):
        assert course.add(step, value) == again.add(step, value)
    assert again == course
    assert read_exactly(Course, document_of(Course())) == Course()
