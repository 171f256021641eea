"""Knobs that could not act are named before a push, as far as the newest report shows it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from isentrope_dashboard.components.what_if import dead_before_push
from isentrope_wire.control import Control
from isentrope_wire.control_answers import WhatIfAnswer
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
FOUND = replace(STEP, clip_fraction=0.1, mu_low=1.0)


def control(method: str = "clip_b", mu_low: float | None = 1.0, scope: str = "all", **parameters: object) -> Control:
    return Control.from_document({"method": method, "mu_low": mu_low, "scope": scope, "parameters": parameters})


def without(name: str) -> dict[str, float]:
    return {key: value for key, value in NEWEST.items() if key != name}


def test_a_control_whose_knobs_all_act_is_not_warned_of() -> None:
    assert dead_before_push(control(), NEWEST, FOUND) == []
    assert dead_before_push(Control(), NEWEST, FOUND) == []


@pytest.mark.parametrize(
    ("wanted", "newest", "found", "named"),
    [
        (control(mu_low=2.5), NEWEST, FOUND, "mu_low 2.5 lies beyond 2.24"),
        (control(scope="negative"), without("clip/fraction_negative"), FOUND, "scope negative"),
        (control(scope="positive"), without("clip/fraction_positive"), FOUND, "scope positive"),
        (control(), NEWEST | {"token/effective_fraction": 0.0}, FOUND, "Every advantage"),
        (control(epsilon_high=0.2), NEWEST | {"ratio/mean": 1.0}, FOUND, "epsilon_high can't act"),
        (control("kl_cov", None, beta=1.0), without("ratio/mean"), None, "beta can't act"),
        (control("kl_cov", None, beta=0.0), NEWEST, None, "beta"),
        (control("top_entropy", None, fraction=1.0), NEWEST, None, "fraction"),
        (control(max_fraction=0.1), NEWEST, replace(FOUND, capped=True), "max_fraction 0.1 would bind"),
        (control(), NEWEST, replace(FOUND, clip_fraction=0.0), "No token of step 7"),
    ],
)
def test_a_knob_that_could_not_act_is_named(
    wanted: Control, newest: dict[str, Any], found: WhatIfAnswer | None, named: str
) -> None:
    (sentence,) = dead_before_push(wanted, newest, found)
    assert named in sentence


def test_what_the_report_does_not_show_is_not_claimed() -> None:
    assert dead_before_push(control(scope="negative", epsilon_low=0.2), {}, None) == []
