"""The tests behind verdicts. Seeds are the samples: runs of one seed share problems and starting
weights, so they are paired.

A check holds where its test is significant at LEVEL, and the opposite does where the test the other
way is. With one seed there is no test, and the direction alone decides, which the check states.
Each function takes the statement that is tested first, and the likely reason where it does not
hold."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

from isentrope_papers.figure import Check, paired
from isentrope_papers.runs import Run
from isentrope_wire.metrics import ENTROPY_MEAN

LEVEL = 0.05


def spread(values: Sequence[float], unit: str = "") -> str:
    """Mean and standard deviation over seeds, such as `0.412 ± 0.031 nats`."""
    text = f"{np.mean(values):.3g}"
    if len(values) > 1:
        text += f" ± {np.std(values, ddof=1):.2g}"
    return f"{text} {unit}".rstrip()


def higher(
    statement: str,
    left: Sequence[float],
    right: Sequence[float],
    *,
    unit: str = "",
    reason: str = "",
) -> Check:
    """The left values, one a seed, lie above the right ones of the same seeds: a paired t-test,
    one-sided."""
    differences = np.asarray(left, dtype=float) - np.asarray(right, dtype=float)
    number = f"{spread(left)} against {spread(right, unit)}"
    return _test_mean(statement, differences, number, "paired t-test of the difference", reason)


def ends_above(
    statement: str,
    left: Sequence[Run],
    right: Sequence[Run],
    metric: str = ENTROPY_MEAN,
    *,
    reason: str = "",
) -> Check:
    """The left runs end with more of a metric than the right ones of the same seeds; see
    `higher`."""
    return higher(
        statement, *paired(left, right, lambda run: run.end(metric)), unit="nats", reason=reason
    )


def check_at_least(
    statement: str, values: Sequence[float], bound: float, *, unit: str = "", reason: str = ""
) -> Check:
    """The values, one a seed, lie above a bound: a t-test, one-sided."""
    return _test_mean(
        statement,
        np.asarray(values, dtype=float) - bound,
        spread(values, unit),
        f"t-test against {bound:g}",
        reason,
    )


def check_at_most(
    statement: str, values: Sequence[float], bound: float, *, unit: str = "", reason: str = ""
) -> Check:
    """The values lie below a bound; see `check_at_least`."""
    return _test_mean(
        statement,
        bound - np.asarray(values, dtype=float),
        spread(values, unit),
        f"t-test against {bound:g}",
        reason,
    )


def trend(
    statement: str,
    positions: Sequence[float],
    values: Sequence[Sequence[float]],
    *,
    rising: bool,
    unit: str = "",
    reason: str = "",
) -> Check:
    """The values [seeds][positions] rise (or fall) with at least three positions, such as
    thresholds: Page's trend test, with seeds as its rows."""
    table = np.asarray(values, dtype=float)[:, np.argsort(positions)]
    ordered = table
    if not rising:
        ordered = table[:, ::-1]
    rank_correlation = float(
        np.mean([stats.spearmanr(np.sort(positions), row).statistic for row in table])
    )
    ends = (
        f"{spread(list(table[:, 0]))} to {spread(list(table[:, -1]), unit)}, rank correlation"
        f" {rank_correlation:+.2f}"
    )
    if rising:
        signed = rank_correlation
    else:
        signed = -rank_correlation
    if len(table) < 2:
        return Check(
            statement=statement,
            holds=signed > 0,
            number=ends,
            test="no test: one seed",
            reason=reason,
        )
    found, other_way = stats.page_trend_test(ordered), stats.page_trend_test(ordered[:, ::-1])
    test = f"Page's trend test, L = {found.statistic:.4g}"
    return _tested(statement, ends, test, len(table), reason, found.pvalue, other_way.pvalue)


def correlated(
    statement: str,
    pairs: Sequence[tuple[ArrayLike, ArrayLike]],
    *,
    bound: float = 0.0,
    reason: str = "",
) -> Check:
    """Pairs of series, one a seed, go together: Pearson's r of each without places where one is
    NaN, and a t-test of Fisher's z over seeds against a bound that r must exceed."""
    coefficients = [pearson(*pair) for pair in pairs]
    transformed = np.arctanh(np.clip(coefficients, -0.999999, 0.999999)) - math.atanh(bound)
    return _test_mean(
        statement,
        transformed,
        f"r = {spread(coefficients)}",
        f"t-test of Fisher's z against {bound:g}",
        reason,
    )


def pearson(left: ArrayLike, right: ArrayLike) -> float:
    """Pearson's r where both are measured; NaN with fewer than three such places, or where one is
    constant."""
    pair = np.array([np.asarray(left, dtype=float), np.asarray(right, dtype=float)])
    pair = pair[:, ~np.isnan(pair).any(axis=0)]
    if pair.shape[1] < 3 or not pair.std(axis=1).all():
        return math.nan
    return float(np.corrcoef(pair)[0, 1])


def _test_mean(
    statement: str, differences: np.ndarray, number: str, test: str, reason: str
) -> Check:
    mean = float(np.mean(differences))
    if len(differences) < 2:
        return Check(
            statement=statement,
            holds=mean > 0,
            number=number,
            test="no test: one seed",
            reason=reason,
        )
    if np.ptp(differences) == 0:
        # All seeds agree to the last digit: the t statistic is not defined.
        statistic, p = math.copysign(math.inf, mean) if mean else 0.0, 0.0 if mean > 0 else 1.0
    else:
        statistic, p = stats.ttest_1samp(differences, 0.0, alternative="greater")
    return _tested(
        statement, number, f"{test}, t = {statistic:.3g}", len(differences), reason, p, 1 - p
    )


def _tested(
    statement: str, number: str, test: str, seeds: int, reason: str, p: float, other_p: float
) -> Check:
    return Check(
        statement=statement,
        holds=bool(p < LEVEL),
        number=number,
        test=f"{test}, {'p < 0.0001' if p < 1e-4 else f'p = {p:.2g}'}, {seeds} seeds",
        reason=reason,
        p=float(p),
        opposite=bool(other_p < LEVEL),
    )


def correct_for_many_tests(checks: Sequence[Check]) -> tuple[int, int, int]:
    """Tests over seeds, those significant at LEVEL, and those that still are when the share of
    false ones among them is held at LEVEL (Benjamini and Hochberg)."""
    p_values = [check.p for check in checks if check.p is not None and math.isfinite(check.p)]
    if p_values:
        left = stats.false_discovery_control(p_values) < LEVEL
    else:
        left = np.array([])
    return len(p_values), sum(p < LEVEL for p in p_values), int(left.sum())
