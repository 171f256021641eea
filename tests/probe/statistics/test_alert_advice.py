"""The cause of a collapse is the part that pulls most; the suggestion is the cheapest threshold that stops it."""

from __future__ import annotations

import pytest

from isentrope.statistics.alerts import AlertWatch, cause_of
from isentrope_wire.control import Control, Scope
from isentrope_wire.diagnosis.course import change_parts
from isentrope_wire.metrics import CHANGE_NEGATIVE_LOW, CHANGE_POSITIVE_HIGH
from isentrope_wire.reports import Alert
from isentrope_wire.what_if import EDGES, SIDES, BinSums, TokenGroup, WhatIfSums, cheapest_control, what_if

PARTS = {
    "change/positive_high": -0.1,
    "change/positive_low": 0.2,
    "change/negative_high": 0.3,
    "change/negative_low": -0.3,
    "change/by_policy_loss": -0.1,
    "change/by_kl_penalty": -0.2,
    "change/by_entropy_bonus": 0.4,
}


def test_the_cause_is_the_part_that_pulls_most() -> None:
    fall, rise = cause_of([PARTS], -1), cause_of([PARTS], 1)
    assert fall is not None
    assert rise is not None
    assert (fall.quadrant, fall.mechanism) == (CHANGE_NEGATIVE_LOW, "change/by_kl_penalty")
    assert (rise.quadrant, rise.mechanism) == ("change/negative_high", "change/by_entropy_bonus")
    assert fall.changes == PARTS
    assert "75%" in fall.message
    assert "kl penalty" in fall.message


def test_parts_are_averaged_over_the_steps_that_measured_them() -> None:
    steps = [{"change/positive_high": -0.1}, {"change/positive_high": -0.3, "change/by_kl_penalty": -0.2}, {}]
    cause = cause_of(steps, -1)
    assert cause is not None
    assert cause.changes == {"change/positive_high": pytest.approx(-0.2), "change/by_kl_penalty": -0.2}


def test_no_cause_where_no_part_pulls_that_way_or_none_is_measured() -> None:
    assert cause_of([{"change/positive_low": 0.1, "change/by_kl_penalty": -1.0}], -1) is None
    assert cause_of([{}], -1) is None
    assert change_parts({"entropy/mean": 1.0, "change/by_anything": 1.0, "change/positive_high": 2.0}) == {
        "change/by_anything": 1.0,
        "change/positive_high": 2.0,
    }


def cell(group: TokenGroup, side: int, edge: float) -> int:
    return (group * SIDES + side) * len(EDGES) + EDGES.index(edge)


def sums(*cells: tuple[TokenGroup, float, int, float], kept: int = 100) -> WhatIfSums:
    """Tokens of group, bin and count with the sum of their changes, all on the upper side, beside `kept` that change nothing."""
    rows = sorted((cell(group, 1, edge), count, change) for group, edge, count, change in cells)
    table = BinSums(*(tuple(row[column] for row in rows) for column in range(3)))  # type: ignore[arg-type]
    tokens = kept + sum(row[1] for row in rows)
    return WhatIfSums(
        tokens=tokens, change_sum=sum(row[2] for row in rows), by_method={"clip_b": table, "clip_v": table}
    )


DOWN, UP = TokenGroup.POSITIVE_DECREASING, TokenGroup.POSITIVE_INCREASING


def test_the_suggestion_is_the_highest_threshold_that_stops_the_fall() -> None:
    step = sums((DOWN, 1.0, 10, -1.0), (DOWN, 3.0, 4, -2.0), (UP, 1.0, 10, 1.5))
    control = cheapest_control([step], -1)
    assert isinstance(control, Control)
    assert (control.mu_low, control.mu_high, control.scope) == (3.0, 3.0, Scope.DECREASING)
    after = what_if(step, control.mu_low, control.mu_high, control.scope, control.method)
    assert after.unit_predicted_change >= 0
    assert after.clip_fraction == 4 / step.tokens
    assert Control.from_document(control.to_document()) == control


def test_the_method_that_clips_fewer_tokens_is_suggested() -> None:
    several = sums((DOWN, 2.0, 20, -3.0), (UP, 1.0, 10, 1.0))
    few = sums((DOWN, 2.0, 5, -3.0), (UP, 1.0, 10, 1.0))
    tables = {"clip_v": several.by_method["clip_v"], "clip_b": few.by_method["clip_b"]}
    control = cheapest_control([WhatIfSums(tokens=200, change_sum=-2.0, by_method=tables)], -1)
    assert control is not None
    assert control.method == "clip_b"


def test_an_explosion_is_stopped_on_the_tokens_that_raise_entropy() -> None:
    control = cheapest_control([sums((UP, 2.0, 4, 2.0), (DOWN, 1.0, 10, -0.5))], 1)
    assert control is not None
    assert (control.scope, control.mu_high) == (Scope.INCREASING, 2.0)


def test_the_last_steps_are_taken_together() -> None:
    rising, falling = sums((UP, 1.0, 5, 0.1)), sums((DOWN, 2.0, 5, -1.0))
    assert cheapest_control([rising], -1) is None
    control = cheapest_control([falling, rising], -1)
    assert control is not None
    assert control.mu_low == 2.0


def test_the_least_bad_threshold_where_none_stops_it() -> None:
    # Most of the fall is in tokens that no threshold reaches.
    step = WhatIfSums(tokens=100, change_sum=-5.0, by_method={"clip_v": sums((DOWN, 2.0, 5, -1.0)).by_method["clip_v"]})
    control = cheapest_control([step], -1)
    assert control is not None
    assert (control.method, control.mu_low) == ("clip_v", 2.0)
    assert cheapest_control([WhatIfSums(tokens=100, change_sum=-5.0)], -1) is None


def test_no_suggestion_without_tokens() -> None:
    assert cheapest_control([], -1) is None
    assert cheapest_control([WhatIfSums(tokens=0, change_sum=0.0)], -1) is None


def test_an_alert_has_both() -> None:
    watch = AlertWatch()
    found: list[Alert] = []
    for step in range(12):
        scalars = {"entropy/mean": 2.0 if step < 6 else 1.0, CHANGE_POSITIVE_HIGH: -0.1}
        found += watch.step(scalars, {}, sums((DOWN, 2.0, 4, -2.0)))
    (alert,) = found
    assert alert.cause is not None
    assert alert.cause.quadrant == CHANGE_POSITIVE_HIGH
    assert alert.suggestion is not None
    assert alert.suggestion.mu_low == 2.0
