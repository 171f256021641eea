"""The control that the form's fields describe, read field by field."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from isentrope_dashboard.controls import ControlValues, HoldValues
from isentrope_dashboard.errors import FormError
from isentrope_wire.methods import threshold_methods


@dataclass(frozen=True, slots=True)
class Form:
    """What stands in the fields, in their order: numbers, or the text of one that is half typed."""

    method: str
    scope: str
    low_on: bool = False
    low: object = None
    high_on: bool = False
    high: object = None
    hold_on: bool = False
    hold_target: object = None
    hold_change: object = None
    hold_mu_min: object = None
    hold_mu_max: object = None
    hold_side: str | None = None


def form_values(
    form: Form,
    reference: Mapping[str, Any],
    texts: Mapping[str, object] | None = None,
    parameter_forms: Mapping[str, Mapping[str, Any]] | None = None,
) -> ControlValues:
    """The control to push; thresholds only with a method that has them.

    Args:
        reference: the control the form started from: what there is no field for is taken from it.
        texts: what stands in the fields of the method's parameters, by name.
        parameter_forms: what each of them takes; None for a method without fields.

    Raises:
        FormError: a field that needs a number has none.
    """
    if parameter_forms is None:
        parameters = unseen_parameters(form.method, reference)
    else:
        parameters = form_parameters(parameter_forms, texts or {})
    clips = form.method in threshold_methods()
    return ControlValues(
        method=form.method,
        mu_low=_threshold("lower", form.low) if clips and form.low_on else None,
        mu_high=_threshold("upper", form.high) if clips and form.high_on else None,
        scope=form.scope,
        parameters=parameters,
        hold=_hold(form, reference) if form.hold_on else None,
    )


def form_parameters(forms: Mapping[str, Mapping[str, Any]], entered: Mapping[str, object]) -> dict[str, Any]:
    """What the fields of one method say, by name; a field that shows the default says nothing.

    Args:
        forms: what each parameter takes, by its name.
        entered: what stands in each field.

    Raises:
        FormError: a field that needs a number has none. Whether it is within its bounds is the server's to say.
    """
    values = {name: _parameter(name, forms[name], value) for name, value in entered.items() if name in forms}
    return {name: value for name, value in values.items() if value != forms[name]["default"]}


def unseen_parameters(method: str, reference: Mapping[str, Any]) -> dict[str, Any]:
    """Of a method the form has no fields for, those it started from: a push must not drop them."""
    return dict(reference.get("parameters") or {}) if reference.get("method") == method else {}


def _hold(form: Form, reference: Mapping[str, Any]) -> HoldValues:
    """With the fields that this page does not know as they were."""
    before = HoldValues.from_json(reference["hold"]) if reference.get("hold") else HoldValues(target_entropy=0)
    target = _bound("The entropy to hold", form.hold_target)
    if target is None:
        raise FormError("The hold needs its target: the mean entropy of a step's tokens, in nats.")
    return HoldValues(
        target_entropy=target,
        max_change_per_step=_bound("The largest change per step", form.hold_change),
        mu_min=_bound("µ min", form.hold_mu_min),
        mu_max=_bound("µ max", form.hold_mu_max),
        side=form.hold_side or "both",
        others=before.others,
    )


def _bound(label: str, value: object) -> float | None:
    if value is None or not str(value).strip():
        return None
    number = _finite(value)
    if number is None:
        raise FormError(f"{label} must be a number, got {value!r:.40}.")
    return number


def _parameter(name: str, form: Mapping[str, Any], value: object) -> float | int | str | None:
    text = "" if value is None else str(value).strip()
    if form["kind"] == "choice":
        return text
    if not text and form["default"] is None:
        return None
    number = _finite(text)
    if number is None:
        raise FormError(f"{name} must be {form['range']}, got {text!r:.40}.")
    return int(number) if form["kind"] == "whole" and number == int(number) else number


def _threshold(side: str, value: object) -> float:
    number = _finite(value)
    if number is None or number < 0:
        raise FormError(
            f"The {side} threshold counts standard deviations and must be a number of at least 0, got {value!r:.40}. "
            f"Enter a number, or switch the threshold off."
        )
    return number


def _finite(value: object) -> float | None:
    try:
        number = float(value) if isinstance(value, int | float | str) else math.nan
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None
