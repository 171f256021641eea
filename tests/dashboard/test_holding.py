"""A held entropy on the page: the band around its target, what the controller says, and what it would do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from isentrope_dashboard.components.facts import hold_props
from isentrope_dashboard.components.what_if import expected_action, hold_reading, measured_step
from isentrope_dashboard.figures.entropy import LIVE_TRACES, appended, drawn, entropy_figure, extension
from isentrope_dashboard.figures.held_entropy import BAND_HIGH, BAND_LOW, banded_rows, hold_at, holding, with_band
from isentrope_dashboard.figures.lines import StepRow
from isentrope_dashboard.figures.what_if import change_of, with_gain
from isentrope_wire.answers import SeriesColumns
from isentrope_wire.control import Control, Hold, Scope
from isentrope_wire.control_answers import CurveColumns, RunControl, WhatIfAnswer, WhatIfCurves
from isentrope_wire.hold_decision import HoldState, HoldStatus, Measured, decide
from isentrope_wire.methods import Method
from isentrope_wire.what_if import WhatIfCurve
from tests.dashboard.made_answers import columns as made
from tests.dashboard.made_answers import run_control, version
from tests.dashboard.test_run_content import words
from tests.probe.hold.collapsing_plant import step_sums

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


def test_hold_at_a_step_is_the_one_active_then() -> None:
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


def test_each_step_is_compared_with_its_own_target() -> None:
    rows = [
        StepRow(step=i, scalars={"hold/target": h, "entropy/mean": e}) for i, h, e in ((1, 2.0, 2.2), (2, 1.0, 0.7))
    ]
    held = holding(state(HOLD), {"hold/state": "holding"}, [*rows, StepRow(step=3, scalars={"entropy/mean": 9.0})])
    assert held is not None
    assert held.distance == pytest.approx(0.2)
    assert held.distance_steps == 2


def test_an_approach_shows_its_steps_to_go() -> None:
    rows = [StepRow(step=1, scalars={"hold/target": 0.5, "hold/steps_to_target": 12.0, "entropy/mean": 0.9})]
    held = holding(state(Hold(target_share=0.75)), {"hold/state": "approaching"}, rows)
    said = words(hold_props(held)["hold-facts"]["children"])
    for part in ("Approaching", "0.5000 nats", "about 12 steps to go"):
        assert part in said
    assert "75% of the early level" in words(
        hold_props(holding(state(Hold(target_share=0.75)), {}, []))["hold-facts"]["children"]
    )


def test_a_fallback_names_no_threshold() -> None:
    rows = [StepRow(step=1, scalars={"entropy/mean": 2.0})]
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


# With nothing clipped the unit prediction is -0.04: at a gain of 0.5 the entropy falls by 0.02 nats a step.
FALLING = step_sums(lowering=0.09, raising=0.05)
CURVE = CurveColumns(mu=[0.0], clip_fraction=[0.4], unit_predicted_change=[0.05], predicted_change=None)
STEP = WhatIfAnswer(
    step=7,
    method="clip_v",
    scope=Scope.ALL,
    mu_low=None,
    mu_high=None,
    max_fraction=None,
    denominator="keep",
    not_included=[],
    tokens=100,
    capped=False,
    clip_fraction=0.0,
    unit_predicted_change=-0.04,
    predicted_change=-0.02,
    gain=0.5,
    clip_fraction_bound=0.0,
    unit_predicted_change_bound=0.0,
    unclipped_unit_predicted_change=-0.04,
    curve=WhatIfCurves(low=CURVE, high=CURVE),
    sums=FALLING,
)
TRUSTED = {"entropy/prediction_r2": 0.6, "entropy/prediction_sign_agreement": 0.9}
OWN = TRUSTED | {"hold/gain": 0.4, "hold/drift": -0.001, "hold/resting_point": 0.97}


def measured(entropy: float, newest: dict[str, float] = TRUSTED) -> Measured:
    return measured_step(newest, entropy, STEP, None, 2.0)


def test_the_expected_action_is_the_probe_s_decision() -> None:
    action = expected_action(HELD, measured(1.0), held=False)
    assert (action.status, action.scope) == (HoldStatus.HOLDING, Scope.DECREASING)
    curve = WhatIfCurve(FALLING, Scope.DECREASING, Method.CLIP_V)
    assert curve.at(action.mu, action.mu).unit_predicted_change == pytest.approx(0.0, abs=1e-6)
    _, decided = decide(HOLD, HoldState(acting=True, scope=action.scope, mu=action.mu), measured(1.0), step=1)
    assert decided.mu == action.mu


@pytest.mark.parametrize(
    ("entropy", "control", "status"),
    [
        (1.5, HELD, HoldStatus.APPROACHING),
        (0.97, Control(hold={**HOLD.to_document(), "mu_min": 1.9}), HoldStatus.LIMIT),
        (0.97, Control(hold={**HOLD.to_document(), "side": "lower"}), HoldStatus.SIDE),
        (1.0, Control(hold=0.5), HoldStatus.FALLBACK),  # the early level is not known
    ],
)
def test_the_expected_action_knows_every_bound(entropy: float, control: Control, status: HoldStatus) -> None:
    assert expected_action(control, measured(entropy), held=False).status == status


def test_a_prediction_without_trust_is_expected_to_fall_back() -> None:
    for newest in ({}, {"entropy/prediction_r2": -0.5, "entropy/prediction_sign_agreement": 0.5}):
        assert expected_action(HELD, measured(1.0, newest), held=False).status == HoldStatus.FALLBACK


def test_the_probe_s_own_numbers_count_where_it_reported_them() -> None:
    own, other = measured(1.0, OWN).entropy, measured(1.0).entropy
    assert (own.gain, own.drift, own.resting_point) == pytest.approx((0.4, -0.001, 0.97))
    assert (other.gain, other.drift, other.resting_point) == (0.5, 0.0, 1.0)


def test_the_preview_names_distance_threshold_and_effect() -> None:
    action = expected_action(HELD, measured(1.02, OWN), held=True)
    assert action.mu is not None
    said = words(hold_reading(measured(1.02, OWN), action, replace(STEP, unit_predicted_change=-0.01), held=True))
    for part in (
        "H 1.020",
        "0.970",
        "0.030 nats below the target",
        f"µ {action.mu:.2f}",
        "ΔH −0.017",
        "own gain 0.400",
    ):
        assert part in said, said
    assert "By entropy/gain 0.500" in words(hold_reading(measured(1.02), action, STEP, held=False))


def test_a_step_is_drawn_with_the_gain_that_the_controller_steers_by() -> None:
    scaled = with_gain(STEP, 2.0)
    assert (scaled.gain, change_of(scaled)) == (2.0, -0.08)
    assert scaled.curve is not None
    assert scaled.curve.low.predicted_change == [0.1]
