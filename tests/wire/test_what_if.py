"""What other thresholds would have done to a step: worked by hand, exact at the edges, bounded
between them."""

from __future__ import annotations

import math
import re

import pytest

from isentrope_wire import what_if
from isentrope_wire.control import Control, Method, Scope
from isentrope_wire.methods import METHODS

BELOW, ABOVE = 0, 1


def cell(group: what_if.TokenGroup, side: int, edge: float) -> int:
    """The bin that begins at `edge`."""
    return (group * what_if.SIDES + side) * len(what_if.EDGES) + what_if.EDGES.index(edge)


def bins(*tokens: tuple[what_if.TokenGroup, int, float, int, float]) -> what_if.BinSums:
    rows = sorted(
        (cell(group, side, edge), count, change) for group, side, edge, count, change in tokens
    )
    return what_if.BinSums(*(tuple(column) for column in zip(*rows, strict=True)))


SUMS = what_if.WhatIfSums(
    tokens=20,
    change_sum=-1.0,
    by_method={
        "clip_v": bins(
            (what_if.TokenGroup.NEGATIVE_DECREASING, BELOW, 1.0, 2, -0.6),
            (what_if.TokenGroup.NEGATIVE_INCREASING, ABOVE, 1.0, 1, 0.3),
            (what_if.TokenGroup.POSITIVE_DECREASING, ABOVE, 3.0, 4, -0.8),
            (what_if.TokenGroup.POSITIVE_INCREASING, BELOW, 0.0, 5, 0.1),
            (what_if.TokenGroup.ZERO, ABOVE, 100.0, 3, 0.0),
        )
    },
)


@pytest.mark.parametrize(
    ("mu_low", "mu_high", "scope", "clipped", "change"),
    [
        (None, None, Scope.ALL, 0, -1.0),
        (1.0, None, Scope.ALL, 2, -0.4),
        (1.05, None, Scope.ALL, 0, -1.0),
        (0.0, 0.0, Scope.ALL, 15, 0.0),
        (None, 1.0, Scope.ALL, 8, -0.5),
        (None, 3.0, Scope.POSITIVE, 4, -0.2),
        (1.0, 1.0, Scope.NEGATIVE, 3, -0.7),
        (0.0, 0.0, Scope.DECREASING, 6, 0.4),
        (0.0, 0.0, Scope.INCREASING, 6, -1.4),
    ],
)
def test_thresholds_clip_within_their_scope(
    mu_low: float | None, mu_high: float | None, scope: Scope, clipped: int, change: float
) -> None:
    found = what_if.WhatIfCurve(SUMS, scope, Method.CLIP_V).evaluate(mu_low, mu_high)
    assert found.clip_fraction == clipped / 20
    assert found.unit_predicted_change == pytest.approx(change / 20, abs=1e-12)
    assert (found.clip_fraction_bound, found.unit_predicted_change_bound) == (0, 0)


def test_partial_bin_is_interpolated_with_bound() -> None:
    found = what_if.WhatIfCurve(SUMS, Scope.ALL, Method.CLIP_V).evaluate(1.04, None)
    assert found.clip_fraction == pytest.approx(0.2 * 2 / 20)
    assert found.unit_predicted_change == pytest.approx((-1.0 + 0.2 * 0.6) / 20)
    assert found.clip_fraction_bound == pytest.approx(0.8 * 2 / 20)
    assert found.unit_predicted_change_bound == pytest.approx(0.8 * 0.6 / 20)


def test_last_bin_gives_only_counts() -> None:
    found = what_if.WhatIfCurve(SUMS, Scope.ALL, Method.CLIP_V).evaluate(None, 250.0)
    assert (found.clip_fraction, found.clip_fraction_bound) == (3 / 20, 3 / 20)


def test_empty_bins_clip_nothing() -> None:
    assert what_if.WhatIfCurve(SUMS, Scope.ALL, Method.CLIP_B).evaluate(0.0, 0.0) == what_if.WhatIf(
        clip_fraction=0,
        unit_predicted_change=-0.05,
        clip_fraction_bound=0,
        unit_predicted_change_bound=0,
    )


def test_merging_adds_in_any_order() -> None:
    other = what_if.WhatIfSums(
        tokens=2,
        change_sum=0.5,
        by_method={
            "clip_v": bins(
                (what_if.TokenGroup.NEGATIVE_DECREASING, BELOW, 1.0, 1, -0.1),
                (what_if.TokenGroup.NEGATIVE_NEUTRAL, ABOVE, 2.0, 1, 0.0),
            ),
            "clip_b": bins((what_if.TokenGroup.ZERO, BELOW, 0.5, 2, 0.0)),
        },
    )
    merged = SUMS.merge(other)
    assert merged == other.merge(SUMS)
    assert (
        what_if.WhatIfCurve(merged, Scope.ALL, Method.CLIP_V).evaluate(1.0, None).clip_fraction
        == 3 / 22
    )
    assert (
        what_if.WhatIfCurve(merged, Scope.ALL, Method.CLIP_B).evaluate(0.5, None).clip_fraction
        == 2 / 22
    )
    assert what_if.WhatIfCurve(merged, Scope.ALL, Method.CLIP_V).evaluate(
        1.0, None
    ).unit_predicted_change == pytest.approx(0.2 / 22)


def test_cap_moves_both_thresholds_outwards() -> None:
    curve = what_if.WhatIfCurve(SUMS, Scope.ALL, Method.CLIP_V)
    free = curve.evaluate(1.0, 1.0)
    assert (free.clip_fraction, free.capped) == (10 / 20, False)
    # Three lie beyond 100 and four between 3 and 3.05: both bins in full.
    found = curve.evaluate(1.0, 1.0, max_fraction=0.35)
    assert (found.clip_fraction, found.capped) == (7 / 20, True)
    assert found.unit_predicted_change == pytest.approx((-1.0 + 0.8) / 20)
    # One of those four: which, the sums can't tell.
    part = curve.evaluate(1.0, 1.0, max_fraction=0.2)
    assert part.clip_fraction == 4 / 20
    assert part.unit_predicted_change == pytest.approx((-1.0 + 0.2) / 20)
    assert part.unit_predicted_change_bound == pytest.approx(0.8 / 20)
    # A fifth of a token is one, of those beyond 100, whose A is 0.
    assert curve.evaluate(1.0, 1.0, max_fraction=0.01) == what_if.WhatIf(
        clip_fraction=1 / 20,
        unit_predicted_change=-0.05,
        clip_fraction_bound=0,
        unit_predicted_change_bound=0,
        capped=True,
    )
    assert curve.evaluate(1.0, 1.0, max_fraction=0.5) == free
    assert curve.evaluate(1.0, 1.0, shrink_denominator=True).unit_predicted_change == pytest.approx(
        (-1.0 + 1.1) / 10
    )
    assert curve.evaluate(0.0, 0.0, shrink_denominator=True).unit_predicted_change == pytest.approx(
        0.0
    )


@pytest.mark.parametrize(
    ("mu", "max_fraction"),
    [
        (1.0, 0.0),
        (1.0, -0.1),
        (1.0, 1.1),
        (1.0, math.nan),
        (-0.1, None),
        (math.nan, None),
        (math.inf, None),
    ],
)
def test_impossible_threshold_or_cap_is_refused(mu: float, max_fraction: float | None) -> None:
    refused = mu if max_fraction is None else max_fraction
    with pytest.raises(what_if.WhatIfError, match=f"got {refused}"):
        what_if.WhatIfCurve(SUMS, Scope.ALL, Method.CLIP_V).evaluate(
            mu, None, max_fraction=max_fraction
        )


def test_slider_positions_are_rising_edges() -> None:
    assert set(what_if.EDGES) >= {float(f"{index * 0.05:.2f}") for index in range(101)}
    assert list(what_if.EDGES) == sorted(set(what_if.EDGES))


def test_step_without_answer_is_refused() -> None:
    with pytest.raises(what_if.WhatIfError, match="clip_cov"):
        what_if.WhatIfCurve(SUMS, Scope.ALL, METHODS["clip_cov"])
    with pytest.raises(what_if.WhatIfError):
        what_if.WhatIfCurve(what_if.WhatIfSums(tokens=0, change_sum=0.0), Scope.ALL, Method.CLIP_V)


@pytest.mark.parametrize("cells", [(1, 1), (2, 1), (-1, 3), (0, what_if.CELLS)])
def test_wrong_cells_are_refused(cells: tuple[int, ...]) -> None:
    with pytest.raises(what_if.WhatIfError, match=re.escape(str(cells))):
        what_if.BinSums(cells, (1, 1), (0.0, 0.0))
    with pytest.raises(what_if.WhatIfError, match=r"1\D+2\D+1"):
        what_if.BinSums((1,), (1, 1), (0.0,))


@pytest.mark.parametrize(
    ("entropy", "clipped", "change"), [(0.5, 9, -0.3), (0.65, 0, -1.0), (0.8, 3, -0.7)]
)
def test_samples_of_one_sign_are_left_out(entropy: float, clipped: int, change: float) -> None:
    control = Control(method="entrocraft", parameters={"low": 0.6, "high": 0.7})
    answer = what_if.band_answer(control, SUMS, entropy)
    assert answer.clip_fraction == clipped / 20
    assert answer.unit_predicted_change == pytest.approx(change / 20)
    kept = Control(method="entrocraft", parameters={**control.parameters, "denominator": "shrink"})
    shrunk = what_if.band_answer(kept, SUMS, entropy)
    assert shrunk.unit_predicted_change == pytest.approx(change / (20 - clipped))


def test_bonus_adds_its_measured_effect() -> None:
    control = Control(method="entropy_bonus", parameters={"coefficient": -0.5})
    answer = what_if.bonus_answer(control, SUMS, 0.04)
    assert answer.clip_fraction == 0
    assert answer.unit_predicted_change == pytest.approx(-0.07)
