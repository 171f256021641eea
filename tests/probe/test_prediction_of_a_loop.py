"""The calibrated prediction of a real loop: it follows what the optimiser and the policy do to the
gain."""

from __future__ import annotations

import math
from statistics import fmean
from typing import Any

import pytest
import torch

from isentrope.inputs import learning_rates_of
from isentrope_wire.reports import StepReport
from tests.probe.tiny_loop import TinyLoop, probe_and_transport, reports, run_steps


def a_run(seed: int, steps: int = 200) -> list[StepReport]:
    probe, transport = probe_and_transport()
    run_steps(TinyLoop(seed), probe, steps)
    return reports(transport)


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_on_a_task_that_is_soon_solved_the_interval_covers_what_it_says_and_the_gain_keeps_up(
    seed: int,
) -> None:
    run = a_run(seed)
    assert run[-1].scalars["entropy/mean"] < 0.5 * run[0].scalars["entropy/mean"]
    inside, widths = [], []
    for report in run[30:]:
        low, high = (report.scalars[f"entropy/predicted_change_{side}"] for side in ("low", "high"))
        inside.append(low <= report.scalars["entropy/observed_change"] <= high)
        widths.append(high - low)
    assert 0.80 <= fmean(inside) <= 0.97
    assert fmean(widths) < 0.5 * max(
        abs(report.scalars["entropy/observed_change"]) for report in run[30:]
    )
    assert run[-1].scalars["entropy/prediction_r2"] > 0.9


@pytest.mark.parametrize("kind", [float, torch.tensor])
def test_a_halved_learning_rate_halves_the_gain_at_once(kind: type) -> None:
    loop = TinyLoop()
    (group,) = loop.optimizer.param_groups
    group["lr"] = kind(group["lr"])
    probe, transport = probe_and_transport()
    run_steps(loop, probe, 20)
    group["lr"] *= 0.5
    run_steps(loop, probe, 1, first=20)
    before, after = (report.scalars["entropy/gain"] for report in reports(transport)[-2:])
    assert after == pytest.approx(before / 2, rel=0.1)


@pytest.mark.parametrize("kind", [float, torch.tensor])
def test_clipping_shrinks_the_gain_at_once(kind: type) -> None:
    loop = TinyLoop()
    probe, transport = probe_and_transport()
    run_steps(loop, probe, 20)
    logits, token_ids, advantages = loop.sample()
    loop.update(probe.gate(probe.score(logits, token_ids), advantages, loop.mask), advantages)
    probe.step(20, loop.optimizer, clip_factor=kind(0.25))
    before, after = (report.scalars["entropy/gain"] for report in reports(transport)[-2:])
    assert after == pytest.approx(before / 4, rel=0.1)


@pytest.mark.parametrize(
    ("rates", "expected"),
    [
        ((0.0, 1e-3), 1e-3),
        ((1e-3, 5.0), 1e-3),
        ((math.nan, 2e-3), 2e-3),
        ((torch.tensor(0.0), torch.tensor(2e-3, dtype=torch.float64)), 2e-3),
        ((0.0, math.inf), 0.0),
    ],
)
def test_the_rate_of_the_largest_group_that_moves_counts(
    rates: tuple[Any, Any], expected: float
) -> None:
    large, small = torch.zeros(100, requires_grad=True), torch.zeros(3, requires_grad=True)
    optimizer = torch.optim.AdamW([{"params": [large]}, {"params": [small]}])
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
    read = learning_rates_of(optimizer)
    assert read is not None
    if isinstance(rates[1], torch.Tensor):
        rates[1].fill_(7.0)
    assert float(read) == pytest.approx(expected)


def test_parameters_that_are_not_trained_do_not_make_a_group_large() -> None:
    frozen, trained = torch.zeros(100), torch.zeros(3, requires_grad=True)
    groups = [{"params": [frozen], "lr": 0.5}, {"params": [trained], "lr": 0.1}]
    assert float(learning_rates_of(torch.optim.SGD(groups)) or 0) == 0.1
    assert learning_rates_of(None) is None


def test_a_loop_that_names_no_optimiser_is_calibrated_all_the_same() -> None:
    loop = TinyLoop()
    probe, transport = probe_and_transport()
    for step in range(20):
        logits, token_ids, advantages = loop.sample()
        loop.update(probe.gate(probe.score(logits, token_ids), advantages, loop.mask), advantages)
        probe.step(step, rescore=lambda ids=token_ids: probe.score(loop.policy(loop.states), ids))  # type: ignore[misc]
    assert reports(transport)[-1].scalars["entropy/gain"] > 0
