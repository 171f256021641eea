"""How numbers are printed."""

from __future__ import annotations

import math

import pytest

from isentrope_dashboard.formatting import (
    change,
    count,
    hold_target,
    number,
    percent,
    seconds,
    significant,
    threshold,
    told_apart,
)
from isentrope_wire.control import Hold


@pytest.mark.parametrize(
    ("written", "words"),
    [
        # What was not measured is a dash, a zero is a zero, what is not finite has its name.
        (number(None), "–"),
        (percent(None), "–"),
        (count(None), "–"),
        (significant(None), "–"),
        (number(0.0), "0.000"),
        (percent(0.0), "0.0\N{NO-BREAK SPACE}%"),
        (count(0), "0"),
        (significant(0.0), "0"),
        (number(math.nan), "NaN"),
        (number(-math.inf), "−∞"),
        (percent(math.nan), "NaN"),
        # A true minus sign, and none for what rounds to nothing.
        (number(-0.0016, 4, signed=True), "−0.0016"),
        (number(0.0016, 4, signed=True), "+0.0016"),
        *(
            (number(tiny, 4, signed=signed), "0.0000")
            for tiny in (-0.00001, -0.0, 0.00004)
            for signed in (False, True)
        ),
        # Three digits of a duration, few of any number.
        (seconds(0.617), "0.62 s"),
        (seconds(12.34), "12.3 s"),
        (seconds(345.6), "346 s"),
        (significant(0.125), "0.125"),
        (significant(12345.6), "12,346"),
        (significant(-3e-6), "−3e−6"),
        (change(1.6e-5), "+0.000016"),
        # A hold's target: an anneal in a few words, whatever else as it was typed.
        (
            hold_target(Hold(target_curve=((82, "100%"), (1382, "40%")))),
            "100 → 40\N{NO-BREAK SPACE}%, steps 82 to 1,382",
        ),
        (hold_target(Hold(target_curve=((82, 0.5), (382, 0.2)))), "0.5 → 0.2, steps 82 to 382"),
        (hold_target(Hold(target_curve=((1, 0.5),))), "1:0.5"),
        (hold_target(Hold(target_share=0.75)), "75% of the early level"),
        (change(-1.6e-6), "−1.6e−6"),
        # Digits that tell values of one chart apart; whole numbers in full.
        (told_apart(1000007680.0), "1,000,007,680"),
        (told_apart(-3.0), "−3"),
        (told_apart(None), "–"),
        (told_apart(0.123456789), "0.12346"),
        (told_apart(12345.01, 0.6), "12,345.01"),
        (told_apart(3.4e38), "3.4e38"),
        (told_apart(1e9 + 0.002, 0.002), "1,000,000,000.002"),
        (told_apart(-2e-310, 1e-310), "−2e−310"),
        (told_apart(math.nan, math.nan), "NaN"),
        # A side that does not clip is off and not zero; a threshold stays short however large or
        # small it is.
        (threshold(None), "off"),
        (threshold(0.0), "0.00"),
        (threshold(0.001), "0.001"),
        (threshold(1.5), "1.50"),
        (threshold(1234.0), "1234.00"),
        (threshold(1e300), "1e+300"),
    ],
)
def test_numbers_are_written(written: str, words: str) -> None:
    assert written == words
