"""How numbers are printed."""

from __future__ import annotations

import math

import pytest

from isentrope_dashboard import formatting


def test_what_was_not_measured_is_a_dash_and_zero_is_a_zero() -> None:
    assert formatting.number(None) == "–"
    assert formatting.number(0.0) == "0.000"
    assert formatting.percent(None) == "–"
    assert formatting.percent(0.0) == "0.0\N{NO-BREAK SPACE}%"
    assert formatting.count(None) == "–"
    assert formatting.count(0) == "0"


def test_numbers_have_a_true_minus_sign() -> None:
    assert formatting.number(-0.0016, 4, signed=True) == "−0.0016"
    assert formatting.number(0.0016, 4, signed=True) == "+0.0016"


def test_what_is_not_finite_is_named() -> None:
    assert formatting.number(math.nan) == "NaN"
    assert formatting.number(-math.inf) == "−∞"
    assert formatting.percent(math.nan) == "NaN"


def test_durations_have_three_digits() -> None:
    assert [formatting.seconds(s) for s in (0.617, 12.34, 345.6)] == ["0.62 s", "12.3 s", "346 s"]


def test_a_side_that_does_not_clip_is_off_and_not_zero() -> None:
    assert formatting.threshold(None) == "off"
    assert formatting.threshold(0.0) == "0.00"


def test_a_threshold_stays_short_however_large_or_small_it_is() -> None:
    assert [formatting.threshold(v) for v in (0.001, 1.5, 1234.0, 1e300)] == ["0.001", "1.50", "1234.00", "1e+300"]


@pytest.mark.parametrize(("value", "text"), [(-0.00001, "0.0000"), (-0.0, "0.0000"), (0.00004, "0.0000")])
def test_what_rounds_to_nothing_has_no_sign(value: float, text: str) -> None:
    assert formatting.number(value, 4) == text
    assert formatting.number(value, 4, signed=True) == text
