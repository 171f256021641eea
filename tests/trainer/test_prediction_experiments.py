"""What the experiments say of predictions is what the runs they read had."""

from __future__ import annotations

import json
import math
import random
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

import isentrope
from isentrope_trainer.figures import coverage, regressors, step_cost, what_if_truth
from isentrope_trainer.figures.prediction_series import GROUPS, averaged
from isentrope_trainer.settings import TrainingConfig
from isentrope_wire.control import Method, Scope
from isentrope_wire.reports import StepReport
from isentrope_wire.what_if import EDGES, SIDES, BinSums, TokenGroup, WhatIfSums

MOMENTUM = 0.9


def recorded_run(folder: Path, seed: int, *, noise: float, steps: int = 120) -> None:
    """A run whose gain is proportional to an entropy that falls e-fold in 50 steps."""
    rng, average, weight, reports = random.Random(seed), 0.0, 0.0, []
    for step in range(steps):
        entropy, unit = math.exp(-step / 50), rng.gauss(-1, 1)
        average, weight = MOMENTUM * average + (1 - MOMENTUM) * unit, MOMENTUM * weight + (1 - MOMENTUM)
        observed = 2 * entropy * (average / weight + noise * rng.gauss(0, 1))
        scalars: dict[str, float] = {
            "entropy/mean": entropy,
            "entropy/unit_predicted_change": unit,
            "entropy/observed_change": observed,
            "train/grad_norm": 1.0,
            **dict.fromkeys(GROUPS, unit / 4),
        }
        if step >= 40:
            scalars |= {"entropy/predicted_change_low": -9.0, "entropy/predicted_change_high": 9.0}
        reports.append({"step": step + 1, "scalars": scalars, "labels": {}})
    recipe = {"config": {"betas": [MOMENTUM, 0.999], "learning_rate": 1e-4, "seed": seed}}
    (folder / f"vanilla-seed{seed}-0123456789.json").write_text(json.dumps({"recipe": recipe, "reports": reports}))


def rows(output: str) -> dict[str, list[str]]:
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in output.splitlines() if line.startswith("|")]
    return {row[0]: row[1:] for row in cells}


def test_coverage_is_that_of_the_run_at_the_time_and_of_a_replay(tmp_path: Path) -> None:
    recorded_run(tmp_path, 3, noise=0.3)
    result = CliRunner().invoke(coverage.main, [str(tmp_path)])
    found = rows(result.output)["vanilla-seed3"]
    assert found[0] == "100.0%"
    assert 0.8 <= float(found[1].rstrip("%")) / 100 <= 0.97
    assert len(rows(result.output)) == 3 + len(coverage.NOISES)
    assert result.exit_code == 0


def test_an_interval_that_covers_everything_or_too_little_is_not_as_promised() -> None:
    observed = [float(step % 2) for step in range(130)]
    everything = coverage.coverage([(-9, 9)] * 130, observed)
    assert (everything.share, everything.width) == (1.0, 36.0)
    assert not coverage.Coverage(1.0, 1.0).as_promised
    assert not coverage.Coverage(0.79, 1.0).as_promised
    halves = coverage.coverage([None] * 60 + [(-0.5, 0.5)] * 70, observed)
    assert halves.share == 0.5


def test_a_gain_that_follows_the_entropy_is_found_to_predict_best(tmp_path: Path) -> None:
    recorded_run(tmp_path, 1, noise=0.1)
    recorded_run(tmp_path, 2, noise=0.1)
    found = rows(CliRunner().invoke(regressors.main, [str(tmp_path)]).output)
    means = {name: float(cells[2]) for name, cells in found.items() if re.fullmatch(r"-?\d+\.\d+", cells[2])}
    assert len(means) == len(regressors.CANDIDATES)
    kept = means["EMA(u) × entropy, memory 25 (kept)"]
    assert kept > 0.9
    assert kept > means["EMA(u), memory 50 (before)"] > means["u, memory 50"]


def test_without_runs_it_says_so(tmp_path: Path) -> None:
    result = CliRunner().invoke(regressors.main, [str(tmp_path)])
    assert (result.exit_code, "No run in" in result.output) == (1, True)


def test_averages_are_corrected_for_their_beginning() -> None:
    assert averaged([2.0, 2.0, 2.0], 0.9) == pytest.approx([2.0, 2.0, 2.0])
    assert averaged([0.0, 1.0], 0.5) == pytest.approx([0.0, 2 / 3])


def report(step: int, version: int, clipped: float, change: float, tokens: int = 10) -> StepReport:
    cell = (TokenGroup.NEGATIVE_DECREASING * SIDES) * len(EDGES) + EDGES.index(70.0)
    sums = BinSums((cell,), (2,), (-3.0,))
    return StepReport(
        step=step,
        recorded_at=0.0,
        scalars={"clip/fraction": clipped, "entropy/unit_predicted_change": change},
        control_version=version,
        what_if=WhatIfSums(tokens=tokens, change_sum=-4.0, clip_b=sums, clip_v=sums),
    )


def test_what_was_shown_is_compared_with_what_the_next_step_had(monkeypatch: pytest.MonkeyPatch) -> None:
    transport = what_if_truth.PushingTransport(first=2, pushes=2, seed=0)
    control = isentrope.Control(method=Method.CLIP_V, mu_low=1.0, mu_high=1.0, scope=Scope.ALL)
    monkeypatch.setattr(transport, "_drawn", lambda: control)
    transport.put(lambda: report(1, 0, 0.0, -0.4))
    assert transport.requested_control() is None
    transport.put(lambda: report(2, 0, 0.0, -0.4))
    pushed = transport.requested_control()
    assert pushed is not None
    assert (pushed.version, pushed.control) == (1, control)
    transport.put(lambda: report(3, 1, 0.25, -0.2, tokens=8))
    transport.put(lambda: report(4, 2, 0.2, -0.1))
    transport.put(lambda: report(5, 2, 0.2, -0.1))
    first, second = transport.pushes
    assert (first.step, first.shown_clip_fraction, first.had_clip_fraction) == (3, 0.2, 0.25)
    assert first.shown_change == pytest.approx(-0.1)
    assert (first.had_change, first.own_clip_fraction) == (-0.2, 0.25)
    found = what_if_truth.figures(transport.pushes)
    assert found.clip_fraction_error == pytest.approx((0.2 + 0.25) / 2)
    assert found.clip_fraction_points == pytest.approx(5.0)
    assert second.had_change == -0.1


class CountedProbe:
    """Burns CPU time in the place of a probe."""

    def __init__(self, burn: int) -> None:
        self.burn, self.steps = burn, 0


def test_loops_take_turns_and_their_cpu_time_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[int] = []

    def train(policy: Any, task: Any, probe: Any, config: TrainingConfig, on_step: Any) -> None:
        for step in range(config.steps):
            order.append(probe.burn)
            sum(index for index in range(probe.burn))
            on_step(step)

    monkeypatch.setattr(step_cost, "train", train)
    monkeypatch.setattr(step_cost, "SETTLE_SECONDS", 0.0)
    policy: Any = torch.nn.Linear(1, 1)
    found = step_cost.costs(
        {"plain": CountedProbe(200_000), "dear": CountedProbe(1_000_000)}, policy, TrainingConfig(steps=7)
    )
    assert order == [200_000, 1_000_000] * 7
    assert (found["plain"].ratio, found["plain"].report_bytes) == (1.0, None)
    assert found["dear"].ratio > 2


def test_a_loop_without_a_probe_has_the_log_probs_it_needs() -> None:
    logits, token_ids = torch.randn(3, 4, 7), torch.randint(7, (3, 4))
    scores = step_cost.NoProbe().score(logits, token_ids, temperature=0.7)
    expected = isentrope.scores.token_scores(logits, token_ids, temperature=0.7).logprobs
    assert torch.allclose(step_cost.NoProbe().gate(scores), expected, atol=1e-6)
