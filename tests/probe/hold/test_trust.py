"""The prediction is acted on once it has proved itself, and given up only on clear evidence."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest

from isentrope_wire.hold_decision import COMPARED_STEPS, Calibrated, distrust

PROVED = Calibrated(r2=0.3, sign_agreement=0.7, compared_steps=COMPARED_STEPS)


@pytest.mark.parametrize(
    ("calibrated", "gain", "words"),
    [
        (PROVED, None, "gain is not known .*rescore="),
        (PROVED, 0.0, "gain is 0:"),
        (PROVED, -0.1, r"gain is -0.1:.*begins when the gain is above 0\.$"),
        (PROVED, math.nan, "gain is nan:"),
        (replace(PROVED, compared_steps=4), 0.4, "compared in 4 steps; 5 "),
        (replace(PROVED, sign_agreement=0.6), 0.4, "right in 60% of the steps, and its R² is 0.30"),
    ],
)
def test_one_that_did_not_is_refused_with_the_reason(
    calibrated: Calibrated, gain: float | None, words: str
) -> None:
    assert re.search(words, distrust(calibrated, gain, acting=False))


def test_signs_that_are_chance_end_no_hold_but_signs_and_sizes_that_are_wrong_do() -> None:
    assert distrust(replace(PROVED, sign_agreement=0.45), 0.4, acting=True) == ""
    assert distrust(replace(PROVED, sign_agreement=0.3), 0.4, acting=True) == ""
    assert distrust(replace(PROVED, sign_agreement=0.45, r2=-0.5), 0.4, acting=True) == ""
    assert "R² is -0.50" in distrust(replace(PROVED, sign_agreement=0.3, r2=-0.5), 0.4, acting=True)
