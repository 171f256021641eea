"""The page on alerts names every alert there is, and its rules are those of the code."""

from __future__ import annotations

import re
from pathlib import Path

from isentrope.statistics import alerts
from isentrope_wire.diagnosis import course
from isentrope_wire.metrics import EARLY_STEPS

GUIDE = (Path(__file__).parents[3] / "docs" / "alerts.md").read_text(encoding="utf-8")
CODE = Path(alerts.__file__).read_text(encoding="utf-8")


def test_every_kind_has_its_line_with_what_to_do() -> None:
    rules = GUIDE[: GUIDE.index("## Measured")]
    lines = re.findall(r"^\| `(\w+)` \| (.+) \| (.+) \|$", rules, flags=re.MULTILINE)
    kinds = ("collapse", "explosion", "self_check", "prediction", "dead_knob", "zero_advantage", "not_finite")
    assert tuple(kind for kind, _, _ in lines) == kinds
    for kind in kinds:
        assert f'"{kind}"' in CODE


def test_the_numbers_in_the_rules_are_those_of_the_code() -> None:
    assert (course.FLOOR, course.CEILING, course.PART_OF_THE_WAY, course.FOLLOWED) == (0.25, 2.0, 0.25, 0.25)
    for words in (
        f"median of its first three steps{'' if EARLY_STEPS == 3 else ' no more'}",
        f"over {course.WINDOW} steps the mean of S_c is {alerts.SIGMAS:g} standard errors",
        f"must hold for {alerts.PERSISTENCE} steps in a row before they are raised, but for `not_finite`",
        f"and be absent for {alerts.REARM} before they are raised again",
    ):
        assert words in GUIDE.replace("\n", " "), words
