"""What of a control could not act is said before it is pushed, as far as the newest report lets one know."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from isentrope_dashboard.controls import ControlValues
from isentrope_dashboard.foreseen import foreseen
from isentrope_dashboard.predictions import WhatIf
from tests.dashboard.test_holding import STEP

NEWEST = {
    "score/discriminator_mean": 0.0,
    "score/discriminator_std": 0.1,
    "ratio/mean": 1.02,
    "token/count": 1000.0,
    "token/effective_fraction": 0.5,
    "clip/fraction": 0.0,
    "clip/fraction_positive": 0.0,
    "clip/fraction_negative": 0.0,
}
DEFAULTS: dict[str, object] = {"max_fraction": None, "denominator": "keep", "epsilon_low": None, "epsilon_high": None}
CLIP = ControlValues(method="clip_b", mu_low=1.0)
FOUND = replace(STEP, clip_fraction=0.1, asked=replace(STEP.asked, mu_low=1.0))


def told(wanted: ControlValues, newest: dict[str, float] = NEWEST, found: WhatIf | None = FOUND) -> list[str]:
    return foreseen(wanted, DEFAULTS, newest, found)


def without(name: str) -> dict[str, float]:
    return {key: value for key, value in NEWEST.items() if key != name}


def test_a_control_whose_knobs_all_act_is_not_warned_of() -> None:
    assert told(CLIP) == []
    assert told(ControlValues(method="none")) == []


@pytest.mark.parametrize(
    ("wanted", "newest", "found", "said"),
    [
        (replace(CLIP, mu_low=2.5), NEWEST, FOUND, "µ₋ 2.50 lies beyond 2.24"),
        (replace(CLIP, scope="negative"), without("clip/fraction_negative"), FOUND, "scope negative holds no token"),
        (replace(CLIP, scope="positive"), without("clip/fraction_positive"), FOUND, "scope positive holds no token"),
        (CLIP, NEWEST | {"token/effective_fraction": 0.0}, FOUND, "Every advantage of the newest step is 0"),
        (replace(CLIP, parameters={"epsilon_high": 0.2}), NEWEST | {"ratio/mean": 1.0}, FOUND, "epsilon_high can't act"),
        (ControlValues(method="kl_cov", parameters={"beta": 1.0}), without("ratio/mean"), None, "does not tell the probe"),
        (ControlValues(method="kl_cov", parameters={"beta": 0.0}), NEWEST, None, "beta is 0: no penalty."),
        (ControlValues(method="top_entropy", parameters={"fraction": 1.0}), NEWEST, None, "every token is updated"),
        (replace(CLIP, parameters={"max_fraction": 0.1}), NEWEST, replace(FOUND, capped=True), "max_fraction 0.1 would bind"),
        (CLIP, NEWEST, replace(FOUND, clip_fraction=0.0), "No token of step 7 lies beyond"),
    ],
)  # fmt: skip
def test_a_knob_that_could_not_act_is_named_with_its_reason(
    wanted: ControlValues, newest: dict[str, Any], found: WhatIf | None, said: str
) -> None:
    (sentence,) = told(wanted, newest, found)
    assert said in sentence


def test_what_the_report_does_not_show_is_not_claimed() -> None:
    assert told(replace(CLIP, scope="negative", parameters={"epsilon_low": 0.2}), {}, None) == []
