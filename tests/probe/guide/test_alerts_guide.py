"""The page on alerts names every alert there is, and its rules are those of the code."""

from __future__ import annotations

import re
from pathlib import Path

from isentrope.statistics import alerts
from isentrope_wire.control_answers import Outcome
from isentrope_wire.diagnosis import course
from isentrope_wire.metrics import EARLY_STEPS
from isentrope_wire.reports import ALERT_KINDS

GUIDE = (Path(__file__).parents[3] / "docs" / "alerts.md").read_text(encoding="utf-8")


def test_every_kind_has_its_line_with_what_to_do() -> None:
    rules = GUIDE[: GUIDE.index("## Forecast")]
    lines = re.findall(r"^\| `(\w+)` \| (.+) \| (.+) \|$", rules, flags=re.MULTILINE)
    assert [kind for kind, _, _ in lines] == list(ALERT_KINDS)


def test_the_numbers_in_the_rules_are_those_of_the_code() -> None:
    assert (course.WATCH_LEFT, course.ACT_LEFT, course.OVER_LEFT, course.BACK_LEFT) == (
        0.75,
        0.5,
        0.875,
        0.625,
    )
    for words in (
        f"median of its first three steps{'' if EARLY_STEPS == 3 else ' no more'}",
        f"over {alerts.WINDOW} steps the mean of S_c is {alerts.SIGMAS:g} standard errors",
        (
            f"must hold for {alerts.PERSISTENCE} steps in a row, and be absent for {alerts.REARM}"
            " before"
        ),
    ):
        assert words in GUIDE.replace("\n", " "), words
    for outcome in Outcome:
        assert f"`{outcome}`" in GUIDE
