"""A held entropy on the page: the band around its target, what the controller says, and what it would do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from isentrope_dashboard.components.facts import hold_props
from isentrope_dashboard.components.what_if import hold_reading
from isentrope_dashboard.figures.entropy import LIVE_TRACES, appended, drawn, entropy_figure, extension
from isentrope_dashboard.figures.held_entropy import BAND_HIGH, BAND_LOW, banded_rows, hold_at, holding, with_band
from isentrope_dashboard.figures.lines import StepRow
from isentrope_dashboard.figures.what_if import change_of, with_gain
from isentrope_dashboard.hold_preview import HoldPreview, Steering, preview, scope_in_the_way, steering
from isentrope_wire.answers import SeriesColumns
from isentrope_wire.control import Control, Hold, Scope
from isentrope_wire.control_answers import CurveColumns, RunControl, WhatIfAnswer, WhatIfCurves
from tests.dashboard.made_answers import columns as made
from tests.dashboard.made_answers import run_control, version
from tests.dashboard.test_run_content import words

HOLD = Hold(target_entropy=1.0, max_change_per_step=0.05, mu_min=0.0, mu_max=10.0)
HELD = Control(hold=HOLD.to_document())
HISTORY = [version(2, "APPLIED", Control(), 6), version(1, "SUPERSEDED", HELD, 3), version(0, "APPLIED", Control(), 0)]
STEERED = {"hold/target": 1.0, "hold/mu": 2.0, "control/mu_low": 2.0, "control/mu_high": 2.0}


def row(step: int, **scalars: float) -> StepRow:
    held = STEERED if 3 <= step < 6 else {}
    return StepRow(step=step, scalars={"entropy/mean": 1.2, **held, **scalars})


def columns(rows: list[StepRow], name: str) -> SeriesColumns:
    measured = [one for one in rows if name in one.scalars]
    return made([one.step for one in measured], [one.scalars[name] for one in measured])


def series(rows: list[StepRow]) -> dict[str, SeriesColumns]:
    return {name: columns(rows, name) for name in ("entropy/mean", *STEERED)}


def test_what_was_held_at_a_step_is_what_was_in_force_then() -> None:
    assert [hold_at(step, HISTORY) for step in (0, 2, 3, 5, 6, 9)] == [None, None, HOLD, HOLD, None, None]


def test_the_band_is_the_largest_correction_around_the_target_and_has_no_height_where_nothing_is_held() -> None:
    rows = [row(step) for step in range(1, 9)]
    band = with_band(series(rows), HISTORY)
    ends = dict(zip(band[BAND_HIGH].step, zip(band[BAND_LOW].value, band[BAND_HIGH].value, strict=True), strict=True))
    assert ends[4] == (0.95, 1.05)
    assert ends[2] == ends[7] == (1.2, 1.2)
    assert list(ends) == list(range(1, 9))
    extended = {one.step: (one.scalars[BAND_LOW], one.scalars[BAND_HIGH]) for one in banded_rows(rows, HISTORY)}
    assert extended == ends


def test_a_run_that_was_never_held_has_no_band() -> None:
    rows = [StepRow(step=1, scalars={"entropy/mean": 1.0})]
    assert banded_rows(rows, HISTORY[2:]) == rows
    assert BAND_LOW not in with_band(series(rows), HISTORY[2:])


def test_buckets_beside_a_held_one_are_held_and_those_farther_off_are_not() -> None:
    steps = list(range(0, 1000, 10))
    entropy = made(steps, [1.2] * 100, [1.1] * 100, [1.3] * 100)
    target = made(list(range(500, 705, 5)), [1.0] * 41)
    band = with_band({"entropy/mean": entropy, "hold/target": target}, HISTORY)[BAND_HIGH]
    ends = dict(zip(band.step, band.value, strict=True))
    assert ends[400] == 1.2
    assert 490 not in ends  # within a bucket's width of the first held step
    assert ends[900] == 1.2


def test_the_chart_gets_a_panel_of_thresholds_only_where_any_were_moved() -> None:
    rows = [row(step) for step in range(1, 9)]
    held = entropy_figure(with_band(series(rows), HISTORY), [], revision="r")
    assert held.layout.xaxis.anchor == "y3"
    target, chosen = held.data[LIVE_TRACES[5]], held.data[LIVE_TRACES[10]]
    assert (target.name, target.showlegend, list(target.y)) == (
        "target H*",
        True,
        [None, None, 1.0, 1.0, 1.0, None, None, None],
    )
    assert (chosen.name, chosen.yaxis, list(chosen.y)[2:6]) == ("µ chosen", "y3", [2.0, 2.0, 2.0, None])
    free = entropy_figure({"entropy/mean": series(rows)["entropy/mean"]}, [], revision="r")
    assert free.layout.xaxis.anchor == "y2"
    assert all(trace.yaxis != "y3" for trace in free.data)  # an axis without a panel would cover the others'
    assert not free.data[LIVE_TRACES[5]].showlegend


def test_the_first_held_step_draws_the_chart_anew_and_later_ones_extend_it() -> None:
    rows = [row(step) for step in range(1, 6)]
    assert appended(drawn(series(rows[:2])), rows[2:3]) is None
    assert appended(drawn(series(rows[:4])), rows[4:5]) is not None
    data, traces, _ = extension(banded_rows(rows[3:5], HISTORY), 100, held=True)
    assert traces == list(LIVE_TRACES)
    assert data["y"][5:] == [[1.0, 1.0], [1.05, 1.05], [0.95, 0.95], [2.0, 2.0], [2.0, 2.0], [2.0, 2.0]]
    assert len(extension(rows, 100)[1]) == 5


def state(hold: Hold | None) -> RunControl:
    item = version(1, "APPLIED", Control(hold=None if hold is None else hold.to_document()))
    return run_control(item, item)


def test_how_the_hold_goes_is_said_in_words_with_the_distance_from_the_target() -> None:
    rows = [StepRow(step=i, scalars={**STEERED, "entropy/mean": value}) for i, value in enumerate((1.1, 0.9, 1.04))]
    held = holding(state(HOLD), {"hold/state": "limit", "hold/why": "µ min is reached"}, rows)
    assert held is not None
    assert held.distance == pytest.approx(0.08)
    said = words(hold_props(held)["hold-facts"]["children"])
    for part in ("At its limit", "1.0000 nats", "±0.0500", "µ 2.00", "8.0%", "last 3 steps", "µ min is reached"):
        assert part in said


def test_steps_under_another_target_do_not_count_and_a_fallback_names_no_threshold() -> None:
    rows = [StepRow(step=1, scalars={**STEERED, "hold/target": 2.0, "entropy/mean": 2.0})]
    held = holding(state(HOLD), {"hold/state": "fallback"}, rows)
    assert held is not None
    assert held.distance is None
    said = words(hold_props(held)["hold-facts"]["children"])
    assert "the pushed method and thresholds are active" in said
    assert "µ 2.00" not in said


def test_nothing_is_said_where_nothing_is_held_and_a_word_of_a_newer_probe_is_shown_as_it_is() -> None:
    assert hold_props(holding(state(None), {}, [])) == {"hold-facts": {"children": []}}
    assert holding(None, {}, []) is None
    assert "gliding" in words(hold_props(holding(state(HOLD), {"hold/state": "gliding"}, []))["hold-facts"]["children"])
    assert "No report of it yet" in words(hold_props(holding(state(HOLD), {}, []))["hold-facts"]["children"])


MU = [0.0, 1.0, 2.0, 3.0]
CLIPPED = [0.4, 0.2, 0.1, 0.0]


def curve(units: list[float]) -> CurveColumns:
    return CurveColumns(mu=MU, clip_fraction=CLIPPED, unit_predicted_change=units, predicted_change=None)


CURVE = curve([0.03, 0.01, -0.01, -0.02])
STEP = WhatIfAnswer(
    step=7,
    method="clip_v",
    scope=Scope.DECREASING,
    mu_low=None,
    mu_high=None,
    max_fraction=None,
    denominator="keep",
    not_included=[],
    tokens=1000,
    capped=False,
    clip_fraction=0.0,
    unit_predicted_change=-0.02,
    predicted_change=-0.01,
    gain=0.5,
    clip_fraction_bound=0.0,
    unit_predicted_change_bound=0.0,
    unclipped_unit_predicted_change=-0.02,
    curve=WhatIfCurves(low=CURVE, high=CURVE),
)
"""With both thresholds at µ: ΔH = 0.5 (2 u - (-0.02)), so 0.04, 0.02, 0.0, -0.01 at 0, 1, 2, 3."""


@pytest.mark.parametrize(
    ("entropy", "changed", "outcome", "mu"),
    [
        (0.985, {}, "reached", 1.0),  # +0.015 wanted
        (0.97, {}, "reached", 0.0),  # +0.03 wanted: only µ 0 gives it
        (0.5, {}, "limit", 0.0),  # +0.05 allowed, +0.04 is all there is
        (0.5, {"mu_min": 1.0}, "limit", 1.0),
        (0.985, {"side": "lower"}, "side", None),
        (1.04, {}, "resting", None),  # down by at most 0.04, and 0.01 comes by itself
        (1.008, {}, "reached", 2.0),  # down by at most 0.008: it falls too fast
        (1.008, {"side": "lower"}, "side", None),
        (1.004, {}, "there", None),
        (0.996, {"side": "lower"}, "there", None),
    ],
)
def test_what_the_controller_would_have_to_do_follows_from_the_newest_steps_curves(
    entropy: float, changed: dict[str, object], outcome: str, mu: float | None
) -> None:
    expected = preview(replace(HOLD, **changed), entropy, STEP, steering({}, entropy, STEP))  # type: ignore[arg-type]
    assert expected is not None
    assert (expected.outcome, expected.mu) == (outcome, mu)
    assert abs(expected.correction) <= 0.05 + 1e-12


def test_an_entropy_that_has_to_fall_is_brought_down_by_clipping_what_raises_it() -> None:
    rising = curve([-0.03, -0.01, 0.01, 0.02])
    step = replace(
        STEP,
        unit_predicted_change=0.02,
        predicted_change=0.01,
        unclipped_unit_predicted_change=0.02,
        curve=WhatIfCurves(low=rising, high=rising),
    )
    expected = preview(HOLD, 1.015, step, steering({}, 1.015, step))  # -0.04, -0.02, 0.0, +0.01 at 0, 1, 2, 3
    assert expected is not None
    assert (expected.outcome, expected.mu) == ("reached", 1.0)
    assert expected.change == pytest.approx(-0.02)
    assert scope_in_the_way(HOLD, 1.015, unclipped=0.01) == "increasing"


def test_the_preview_is_silent_without_a_gain_and_looks_at_the_tokens_in_the_way() -> None:
    for gain in (None, -0.1):
        step = replace(STEP, gain=gain)
        assert preview(HOLD, 0.9, step, steering({}, 0.9, step)) is None
    assert (scope_in_the_way(HOLD, 0.9), scope_in_the_way(HOLD, 1.1)) == ("decreasing", "increasing")
    assert scope_in_the_way(HOLD, 1.01, unclipped=-0.03) == "decreasing"


def test_the_preview_says_where_the_entropy_stands_what_is_wanted_and_what_it_takes() -> None:
    expected = preview(HOLD, 0.985, STEP, steering({}, 0.985, STEP))
    assert isinstance(expected, HoldPreview)
    said = words(hold_reading(expected))
    for part in ("H 0.985 is 0.015 nats below the target", "at most +0.015 nats", "µ 1.00", "clips 40.00%"):
        assert part in said
    assert "By entropy/gain 0.500, without drift" in said


OWN = {"hold/gain": 1.0, "hold/drift": -0.01, "hold/resting_point": 0.975}


def test_the_controller_s_own_gain_drift_and_resting_point_count_where_it_reported_them() -> None:
    own = steering(OWN, 0.985, STEP)
    assert own == Steering(gain=1.0, drift=-0.01, standing=0.975, by_controller=True)
    # With both thresholds at µ: ΔH = 2 u + 0.02 - 0.01, so 0.07, 0.03, -0.01, -0.03 at 0, 1, 2, 3.
    expected = preview(HOLD, 0.985, STEP, own)
    assert expected is not None
    assert (expected.outcome, expected.mu) == ("reached", 1.0)
    assert (expected.correction, expected.unclipped_change, expected.change) == pytest.approx((0.025, -0.03, 0.03))
    said = words(hold_reading(expected))
    for part in (
        "H 0.985 would come to rest at 0.975, 0.025 nats below",
        "controller's own gain 1.000",
        "drift −0.010 nats",
    ):
        assert part in said, said
    assert steering({"hold/gain": float("nan")}, 0.985, STEP) == Steering(gain=0.5, standing=0.985)
    assert preview(HOLD, 0.985, STEP, steering({**OWN, "hold/gain": -1.0}, 0.985, STEP)) is None


def test_a_step_is_drawn_with_the_gain_that_the_controller_steers_by() -> None:
    scaled = with_gain(STEP, 2.0)
    assert (scaled.gain, change_of(scaled)) == (2.0, -0.04)
    assert scaled.curve is not None
    assert scaled.curve.high.predicted_change == [0.06, 0.02, -0.02, -0.04]
