"""What a control changed, in words, and the control that the form's fields describe."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from isentrope_dashboard.components.control_panel import outcome_text, parameter_fields, reference
from isentrope_dashboard.figures.lines import rows_of
from isentrope_dashboard.formatting import ControlMarker, describe, history_rows, markers, short_label
from isentrope_dashboard.pages.control_form import Form, FormError, form_parameters, form_values, unseen_parameters
from isentrope_wire.control import Control, Hold, Scope
from isentrope_wire.methods import METHODS, Method
from tests.dashboard.made_answers import columns, run_control, run_detail, version

NONE = Control()
CLIP = Control(method=Method.CLIP_V, mu_low=1.0)
TIGHTER = Control(method=Method.CLIP_V, mu_low=0.5, scope=Scope.NEGATIVE)
item = version


def test_only_what_changed_is_described() -> None:
    assert describe(TIGHTER, CLIP) == "µ₋ 1.00 → 0.50, scope all → negative"
    assert describe(CLIP, NONE) == "method None → Clip_V, µ₋ off → 1.00"
    assert describe(CLIP, CLIP) == "no change"


def clip_cov(**parameters: object) -> Control:
    return Control.from_document({"method": "clip_cov", "parameters": parameters})


def test_a_change_of_the_parameters_alone_is_named() -> None:
    old, new = clip_cov(ratio=2e-4), clip_cov(ratio=0.001)
    assert describe(new, old) == "ratio 0.0002 → 0.001"
    assert describe(clip_cov(), old) == "ratio 0.0002 → default"
    assert describe(clip_cov(epsilon_high=None, seed=3), clip_cov()) == "epsilon_high default → off, seed default → 3"
    assert describe(old, CLIP) == "method Clip_V → Clip-Cov, µ₋ 1.00 → off, ratio default → 0.0002"
    assert describe(new, None) == "Clip-Cov, µ₋ off, µ₊ off, scope all, ratio 0.001"
    history = [item(2, "APPLIED", new, 9), item(1, "SUPERSEDED", old, 5), item(0, "APPLIED", NONE, 0)]
    assert markers(history)[-1] == ControlMarker(9, "ratio 0.001")
    both = [item(2, "APPLIED", clip_cov(ratio=1, seed=1), 9), item(1, "SUPERSEDED", old, 5)]
    assert markers(both)[-1] == ControlMarker(9, "parameters")


FORMS: dict[str, dict[str, Any]] = {
    "ratio": {"kind": "number", "default": 2e-4, "range": "a number from 0 to 1"},
    "seed": {"kind": "whole", "default": 0, "range": "a whole number"},
    "denominator": {"kind": "choice", "default": "keep", "range": ""},
    "epsilon_high": {"kind": "number", "default": None, "range": "a number"},
}


def test_fields_become_parameters_and_those_at_their_default_are_left_out() -> None:
    entered = {"ratio": "0.0002", "seed": "0", "denominator": "keep", "epsilon_high": ""}
    assert form_parameters(FORMS, entered) == {}
    entered = {"ratio": " 1e-3 ", "seed": "7", "denominator": "shrink", "epsilon_high": "0.28"}
    parameters = form_parameters(FORMS, entered)
    assert parameters == {"ratio": 0.001, "seed": 7, "denominator": "shrink", "epsilon_high": 0.28}
    assert isinstance(parameters["seed"], int)


@pytest.mark.parametrize("text", ["", "-", "nan", "1e999", "two", None])
def test_field_without_number_names_what_it_takes(text: str | None) -> None:
    with pytest.raises(FormError, match=r"ratio .*0 to 1"):
        form_parameters(FORMS, {"ratio": text})


def test_parameters_the_form_has_no_fields_for_are_pushed_as_they_stand() -> None:
    base = {"method": "mine", "parameters": {"a": 1}}
    assert unseen_parameters("mine", base) == {"a": 1}
    assert unseen_parameters("clip_v", base) == {}


def test_a_control_pushed_again_is_marked_by_its_version_and_a_side_switched_off_by_its_name() -> None:
    both = Control(method=Method.CLIP_V, mu_low=1.0, mu_high=2.0)
    history = [item(6, "APPLIED", CLIP, 9), item(5, "SUPERSEDED", CLIP, 7), item(4, "SUPERSEDED", both, 5)]
    assert [mark.label for mark in markers(history)][1:] == ["µ₊ off", "v6"]


def test_change_is_compared_with_what_ran() -> None:
    history = [item(2, "APPLIED", TIGHTER, 9), item(1, "REJECTED", CLIP), item(0, "APPLIED", NONE, 0)]
    rows = history_rows(history)
    assert [row["version"] for row in rows] == [2, 1, 0]
    assert rows[0]["change"] == "method None → Clip_V, µ₋ off → 0.50, scope all → negative"


def test_the_chart_marks_applied_changes_only() -> None:
    history = [
        item(3, "PENDING", NONE),
        item(2, "APPLIED", TIGHTER, 9),
        item(1, "SUPERSEDED", CLIP, 5),
        item(0, "APPLIED", NONE, 0),
    ]
    assert markers(history) == [ControlMarker(5, "Clip_V · µ₋ 1.00"), ControlMarker(9, "µ₋ 0.50 · negative")]


@pytest.mark.parametrize(
    ("state", "text"),
    [
        ("PENDING", "pending, waiting for the probe"),
        ("DELIVERED", "delivered, waiting for the next step"),
        ("APPLIED", "applied at step 1,204"),
        ("REJECTED", "rejected (out_of_range: too far)"),
        ("SUPERSEDED", "superseded by a later version"),
    ],
)
def test_each_state_has_its_phrase(state: str, text: str) -> None:
    assert outcome_text(version(1, state, CLIP, 1204, code="out_of_range", message="too far")) == text


@pytest.mark.parametrize(("state", "compared"), [("PENDING", CLIP), ("REJECTED", NONE)])
def test_the_form_compares_itself_with_an_open_version_else_with_the_active_one(state: str, compared: Control) -> None:
    active = version(1, "APPLIED", NONE)
    assert reference(run_control(version(2, state, CLIP), active)) == compared


def test_an_unknown_active_version_is_not_taken_for_none() -> None:
    assert reference(run_control(version(3, "REJECTED", CLIP), None)) == CLIP


def test_thresholds_are_sent_only_with_a_method_that_has_them() -> None:
    assert form_values(Form("none", "all", low_on=True, low="", high_on=True, high=2.0), {}) == Control()
    assert form_values(Form("clip_b", "positive", low_on=False, low="", high_on=True, high=2), {}) == Control(
        method=Method.CLIP_B, mu_high=2.0, scope=Scope.POSITIVE
    )


@pytest.mark.parametrize("value", ["", None, "-", "many", -1, "-0.5", "9" * 400, math.nan])
def test_a_threshold_that_is_switched_on_needs_a_number(value: object) -> None:
    with pytest.raises(FormError, match=r"lower threshold .*\b0\b"):
        form_values(Form("clip_v", "all", low_on=True, low=value, high_on=True, high=1.0), {})


def test_latency_is_from_the_request_to_the_acknowledgement() -> None:
    assert version(1, "APPLIED", CLIP, requested_at=10.0, applied_at=12.5).latency_seconds == 2.5
    assert version(1, "PENDING", CLIP).latency_seconds is None


def test_columns_become_rows_in_which_what_is_missing_is_absent() -> None:
    rows = rows_of({"a": columns([1], [0.5]), "b": columns([2], [7.0])})
    assert [(row.step, dict(row.scalars)) for row in rows] == [(1, {"a": 0.5}), (2, {"b": 7.0})]


def test_methods_are_read_from_the_capabilities() -> None:
    assert run_detail(capabilities=["method:clip_v", "hold", "method:none"]).methods == ["clip_v", "none"]


HELD = Hold(target_entropy=0.4635, max_change_per_step=0.02, mu_min=0.0, mu_max=10.0)


def test_change_of_a_hold_is_described() -> None:
    held = replace(CLIP, hold=HELD.to_document())
    moved = replace(CLIP, hold={**HELD.to_document(), "target_entropy": 0.4, "side": "raise"})
    assert describe(held, CLIP) == "hold off → 0.4635 nats"
    assert describe(moved, held) == "hold 0.4635 nats → 0.4 nats, side both → raise"
    assert describe(CLIP, moved) == "hold 0.4 nats → off"
    assert describe(held, None).endswith("hold 0.4635 nats")
    assert (short_label(held, CLIP), short_label(CLIP, held), short_label(held, held)) == (
        "hold 0.4635 nats",
        "hold off",
        "",
    )


HOLD_FORM = Form("clip_v", "all", True, 1.0, False, "", True, "0.5", "", "0.5", " 8 ", "raise")


def test_the_forms_hold_is_pushed_with_its_defaults() -> None:
    wanted = form_values(HOLD_FORM, {})
    assert wanted.held == Hold(target_entropy=0.5, mu_min=0.5, mu_max=8.0, side="raise")  # type: ignore[arg-type]
    assert form_values(replace(HOLD_FORM, hold_on=False), {}).hold is None


@pytest.mark.parametrize(
    ("field", "value", "said"), [("hold_target", "", "needs its target"), ("hold_mu_max", "x", "µ max")]
)
def test_a_hold_that_is_half_filled_in_is_refused(field: str, value: str, said: str) -> None:
    with pytest.raises(FormError, match=said):
        form_values(replace(HOLD_FORM, **{field: value}), {})  # type: ignore[arg-type]


def test_each_preset_is_a_whole_control_in_the_page() -> None:
    stores = parameter_fields(list(METHODS.values())).children[:2]
    presets = stores[1].data
    assert presets["clip_v"]["trinity"]["parameters"] == METHODS["clip_v"].presets["trinity"]["parameters"]
    for method, row in METHODS.items():
        assert [Control.from_document(control).method for control in presets[method].values()] == [row] * len(
            row.presets
        )
