"""A loop of one's own on the real DeepSpeed, two ranks on the CPU; and what `step` reads off an
engine."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from isentrope.integrations import deepspeed
from isentrope.integrations.attachment import Versions
from isentrope_wire.errors import ConfigurationError
from tests.probe.frameworks.deepspeed_loop import (
    PUSHED_IN,
    UPDATES,
    Run,
    call,
    train,
    train_in_parts,
    train_under_accelerate,
)
from tests.probe.frameworks.packages import folder_of
from tests.probe.ranks.gang import one_after_another, run_ranks
from tests.probe.tiny_loop import CLIP, TinyLoop, comparable, probe_and_transport

GUIDE = (Path(__file__).parents[3] / "docs" / "integrations" / "deepspeed.md").read_text(
    encoding="utf-8"
)
MODES, STAGES = ("alone", "watched", "hidden", "pushed"), (2, 3)


class Engine:
    """The part of a DeepSpeedEngine that `step` looks at: two micro-batches an update, a rate that
    falls with each."""

    def __init__(self, norm: float | None, clipping: float) -> None:
        self.optimizer = TinyLoop().optimizer
        self.global_steps, self._micro_batches = 0, 0
        self.norm, self.clipping = norm, clipping

    def step(self) -> None:
        self._micro_batches += 1
        if self._micro_batches % 2 == 0:
            self.optimizer.param_groups[0]["lr"] /= 2
            self.global_steps += 1

    def get_global_grad_norm(self) -> float | None:
        return self.norm

    def gradient_clipping(self) -> float:
        return self.clipping


class PipelineEngine(Engine):
    """DeepSpeed's has a `step`, too, that it may not be asked for."""


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Versions, "check", lambda _: "0.19.8")
    deepspeed.check.cache_clear()


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("norm", "clipping", "factor"),
    [(4.0, 1.0, 0.25), (0.5, 1.0, 1.0), (4.0, 0.0, None), (None, 1.0, None)],
)
def test_a_step_closes_at_the_boundary(
    norm: float | None, clipping: float, factor: float | None
) -> None:
    engine, probe = Engine(norm, clipping), probe_and_transport()[0]
    closed: list[dict[str, Any]] = []
    probe.step = lambda number, *_, **about: closed.append({"number": number} | about)  # type: ignore[method-assign]
    assert [deepspeed.engine_step(engine, probe) for _ in range(4)] == [False, True, False, True]
    assert [about["number"] for about in closed] == [1, 2]
    assert [float(about["learning_rates"]) for about in closed] == [1e-2, 5e-3]
    assert [about["clip_factor"] for about in closed] == [pytest.approx(factor)] * 2
    assert {about["loss_scale"] for about in closed} == {1.0}


@pytest.mark.usefixtures("installed")
def test_the_scale_of_float16_is_the_one_before_the_update() -> None:
    engine = SimpleNamespace(
        global_steps=0, optimizer=SimpleNamespace(param_groups=[], loss_scale=1024.0)
    )
    engine.get_global_grad_norm, engine.gradient_clipping = lambda: None, lambda: 0.0
    read_update = deepspeed.watch_update(engine)
    engine.optimizer.loss_scale, engine.global_steps = 512.0, 1
    assert read_update() == {"learning_rates": None, "loss_scale": 1024.0, "clip_factor": None}


@pytest.mark.usefixtures("installed")
def test_a_pipeline_engine_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="train_batch"):
        deepspeed.engine_step(PipelineEngine(None, 0.0), probe_and_transport()[0])


def test_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    deepspeed.check.cache_clear()
    monkeypatch.setattr("isentrope.integrations.attachment.version", lambda _: "0.20.0")
    with pytest.raises(ConfigurationError, match=r"0\.20\.0"):
        deepspeed.engine_step(Engine(None, 0.0), probe_and_transport()[0])


@pytest.fixture(scope="module")
def of_ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Run]]:
    """All runs, in the two processes that have imported DeepSpeed once."""
    packages, folder = str(folder_of("deepspeed")), tmp_path_factory.mktemp("deepspeed")
    (of_checkpoints,) = re.findall(r"## Checkpoints.*?```python\n(.*?)```", GUIDE, flags=re.DOTALL)
    saving, loading = of_checkpoints.split("\n\n")
    (diff,) = re.findall(r"```diff\n(.*?)```", GUIDE, flags=re.DOTALL)
    theirs = "\n".join(line[2:] for line in diff.splitlines() if line[:1] != "+")
    ours = "\n".join(line[2:] for line in diff.splitlines())
    calls: dict[str, tuple[Any, ...]] = {
        f"{mode} {stage}": (train, packages, stage, mode) for stage in STAGES for mode in MODES
    }
    for stage in STAGES:
        for name, parts in (("whole", (4,)), ("parts", (3, 1))):
            where = str(folder / f"{name} {stage}")
            calls[f"{name} {stage}"] = (
                train_in_parts,
                packages,
                stage,
                saving,
                loading,
                where,
                *parts,
            )
    for mode in ("alone", "watched", "pushed"):
        lines = theirs if mode == "alone" else ours
        calls[f"accelerate {mode}"] = (train_under_accelerate, packages, lines, mode, str(folder))
    found = run_ranks(2, one_after_another, call, list(calls.values()), timeout_seconds=1100)
    return [dict(zip(calls, runs, strict=True)) for runs in found]


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("stage", STAGES)
def test_a_real_engine_is_followed(of_ranks: list[dict[str, Run]], stage: int) -> None:
    first = {mode: of_ranks[0][f"{mode} {stage}"] for mode in MODES}
    for runs in of_ranks:
        alone, watched, hidden, steered = (runs[f"{mode} {stage}"] for mode in MODES)
        # bfloat16, and bit-identical all the same: the loop's own log-probs are gated.
        assert torch.equal(alone.weights, watched.weights)
        assert torch.equal(alone.weights, hidden.weights)
        assert alone.losses == watched.losses == hidden.losses
        assert not torch.equal(alone.weights, steered.weights)
        assert watched.gated == [0] * UPDATES
        assert min(watched.norms) > 0.05  # so they were clipped
        assert torch.equal(steered.weights, first["pushed"].weights)
        # Under ZeRO-3 the head's weight is empty between forward passes.
        assert hidden.shape_outside == ([0] if stage == 3 else [24, 16])
        methods = [report.labels["control/method"] for report in steered.reports]
        assert methods == ["none"] * (PUSHED_IN + 1) + [str(CLIP.method)] * (
            UPDATES - PUSHED_IN - 1
        )
    steps = [report.step for report in first["watched"].reports]
    assert steps == list(range(1, UPDATES + 1))
    for kind in ("watched", "hidden"):
        assert {report.scalars["token/count"] for report in first[kind].reports} == {2 * 2 * 24}
        assert {report.labels["calibration/momentum"] for report in first[kind].reports} == {"0.8"}
    entropies = [
        [report.scalars["entropy/mean"] for report in first[kind].reports]
        for kind in ("watched", "hidden")
    ]
    assert entropies[0] == pytest.approx(entropies[1], rel=1e-3)
    last = first["pushed"].reports[-1].scalars
    gated = sum(runs[f"pushed {stage}"].gated[-1] for runs in of_ranks)
    assert gated / last["token/count"] == pytest.approx(last["clip/fraction"])
    assert gated > 0


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("stage", STAGES)
def test_a_checkpoint_of_the_engine_continues_the_probe(
    of_ranks: list[dict[str, Run]], stage: int
) -> None:
    for runs in of_ranks:
        whole, parts = runs[f"whole {stage}"], runs[f"parts {stage}"]
        assert torch.equal(whole.weights, parts.weights)
        assert [report.step for report in parts.reports] == [1, 2, 3, 4]
        assert [comparable(report) for report in parts.reports] == [
            comparable(report) for report in whole.reports
        ]
        assert parts.reports[-1].labels["control/method"] == str(CLIP.method)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_lines_for_accelerate_follow_its_engine(of_ranks: list[dict[str, Run]]) -> None:
    modes = [f"accelerate {mode}" for mode in ("alone", "watched", "pushed")]
    for runs in of_ranks:
        alone, watched, steered = (runs[mode] for mode in modes)
        assert torch.equal(alone.weights, watched.weights)
        assert alone.losses == watched.losses
        assert not torch.equal(alone.weights, steered.weights)
        assert watched.gated == [0] * UPDATES
        methods = [report.labels["control/method"] for report in steered.reports]
        assert methods == ["none"] * (PUSHED_IN + 1) + [str(CLIP.method)] * (
            UPDATES - PUSHED_IN - 1
        )
    watched, steered = (of_ranks[0][mode] for mode in modes[1:])
    assert [report.step for report in watched.reports] == list(range(1, UPDATES + 1))
    assert {report.scalars["token/count"] for report in watched.reports} == {2 * 2 * 24}
    assert {report.labels["calibration/momentum"] for report in watched.reports} == {"0.8"}
    gated = sum(runs["accelerate pushed"].gated[-1] for runs in of_ranks)
    assert gated / steered.reports[-1].scalars["token/count"] == pytest.approx(
        steered.reports[-1].scalars["clip/fraction"]
    )
    assert gated > 0
