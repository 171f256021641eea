"""A run that is interrupted and continued is the run that was not interrupted."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import isentrope
from isentrope.transport import InMemoryTransport
from isentrope_trainer.loop import StepResult, train
from isentrope_trainer.models.warm_start import WarmStartConfig, untrained_policy
from isentrope_trainer.reference_run import noted_interrupts, train_reference_policy
from isentrope_trainer.settings import (
    AdaptiveEntropyConfig,
    LossConfig,
    PolicyConfig,
    TrainingConfig,
    training_config,
)
from isentrope_trainer.training_state import Checkpoints, Ranks, TrainingState
from isentrope_wire.errors import ConfigurationError
from isentrope_wire.reports import ControlSnapshot, RunFinished, StepReport
from tests.probe.tiny_loop import of_the_machine
from tests.trainer.test_loop import EndingIsEnough

CONFIG = TrainingConfig(
    steps=6, seed=5, prompts=4, group_size=4, learning_rate=1e-3, unseen=0, coupling=None
)
"""Without unseen tokens: others are drawn after an interruption, so that the first report of a
resumed run has no change of them."""
HELD = isentrope.Control(hold={"target_entropy": 3.9})


class Attempt:
    """One process's part of a run: from its start, or from a checkpoint."""

    def __init__(
        self,
        config: TrainingConfig,
        shape: PolicyConfig,
        *,
        run_id: str,
        checkpoints: Checkpoints | None = None,
    ) -> None:
        self.transport = InMemoryTransport()
        self.config = config
        self.task = EndingIsEnough(config.seed)
        self.state = TrainingState(untrained_policy(self.task, shape, seed=1), config, Ranks())
        self.probe = isentrope.Probe(run_id=run_id, transport=self.transport)
        if checkpoints is not None:
            checkpoints.restore(self.state, self.probe, config)

    def train(self, until: int, push: ControlSnapshot | None = None) -> None:
        """Up to a step; `push` is requested after the first."""

        def go_on(state: TrainingState) -> bool:
            if push is not None and state.step > 0:
                self.transport.set_control(push)
            return state.step < until

        train(self.state.policy, self.task, self.probe, self.config, state=self.state, go_on=go_on)

    def reports(self) -> list[tuple[Any, ...]]:
        """Each step's report, but for what depends on the clock."""
        reports = [
            message for message in self.transport.messages if isinstance(message, StepReport)
        ]
        return [
            (
                report.step,
                {name: value for name, value in report.scalars.items() if not of_the_machine(name)},
                report.control_version,
                dict(report.labels),
            )
            for report in reports
        ]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {
            "updates_per_batch": 2,
            "sampler_lag": 1,
            "algorithm": "ppo",
            "loss": LossConfig(kl_coefficient=0.1),
        },
        {"algorithm": "prime", "adaptive_entropy": AdaptiveEntropyConfig(target_entropy=3.9)},
    ],
)
def test_six_steps_equal_three_and_three_bit_for_bit(
    tiny_policy_config: PolicyConfig, tmp_path: Path, changes: dict[str, Any]
) -> None:
    config, half = replace(CONFIG, **changes), 4 if "updates_per_batch" in changes else 3
    now = time.time()
    push = ControlSnapshot(
        version=1, control=HELD, author="owner", requested_at=now, expires_at=now + 3600
    )
    straight = Attempt(config, tiny_policy_config, run_id="straight")
    straight.train(6, push)

    first, checkpoints = Attempt(config, tiny_policy_config, run_id="split"), Checkpoints(tmp_path)
    checkpoints.describe("split", config, {})
    first.train(half, push)
    checkpoints.save(first.state, first.probe)
    second = Attempt(config, tiny_policy_config, run_id="split", checkpoints=checkpoints)
    assert second.state.step == half
    assert second.probe.control == HELD
    second.train(6)

    assert second.reports() == straight.reports()[half:]
    assert [report[2] for report in second.reports()] == [1] * (6 - half)
    for left, right in zip(second.state.parameters(), straight.state.parameters(), strict=True):
        assert torch.equal(left, right)


def test_the_newest_two_are_kept_and_the_newest_is_restored(
    tiny_policy_config: PolicyConfig, tmp_path: Path
) -> None:
    attempt, checkpoints = Attempt(CONFIG, tiny_policy_config, run_id="a"), Checkpoints(tmp_path)
    checkpoints.describe("a", CONFIG, {"name": "a"})
    for step in (1, 2, 3):
        attempt.state.step = step
        checkpoints.save(attempt.state, attempt.probe)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "run.json",
        "step-000002",
        "step-000003",
    ]
    assert Attempt(CONFIG, tiny_policy_config, run_id="a", checkpoints=checkpoints).state.step == 3
    assert checkpoints.run()["started_with"] == {"name": "a"}


def test_an_incomplete_checkpoint_is_passed_over(
    tiny_policy_config: PolicyConfig, tmp_path: Path
) -> None:
    attempt, checkpoints = Attempt(CONFIG, tiny_policy_config, run_id="a"), Checkpoints(tmp_path)
    checkpoints.describe("a", CONFIG, {})
    attempt.state.step = 2
    checkpoints.save(attempt.state, attempt.probe)
    (tmp_path / "step-000003").mkdir()
    (tmp_path / "step-000003" / "rank-0.partial").touch()
    assert Attempt(CONFIG, tiny_policy_config, run_id="a", checkpoints=checkpoints).state.step == 2


def test_other_settings_do_not_resume(tiny_policy_config: PolicyConfig, tmp_path: Path) -> None:
    attempt, checkpoints = Attempt(CONFIG, tiny_policy_config, run_id="a"), Checkpoints(tmp_path)
    with pytest.raises(ConfigurationError, match=str(tmp_path)):
        checkpoints.run()
    checkpoints.describe("a", CONFIG, {})
    with pytest.raises(ConfigurationError, match=str(tmp_path)):
        checkpoints.restore(attempt.state, attempt.probe, CONFIG)
    checkpoints.save(attempt.state, attempt.probe)
    with pytest.raises(ConfigurationError, match=r"learning_rate .*0\.001.*0\.5"):
        checkpoints.restore(attempt.state, attempt.probe, replace(CONFIG, learning_rate=0.5))
    checkpoints.restore(attempt.state, attempt.probe, replace(CONFIG, steps=60))


def test_an_ignored_ctrl_c_stays_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with noted_interrupts() as interrupted:
            os.kill(os.getpid(), signal.SIGINT)
            assert not interrupted.is_set()
            assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_ctrl_c_saves_the_run_and_resuming_makes_the_steps_that_were_left(
    tiny_policy_config: PolicyConfig, tmp_path: Path, home: Path
) -> None:
    transport, config, checkpoints = (
        InMemoryTransport(),
        replace(CONFIG, steps=4),
        Checkpoints(tmp_path),
    )
    warm_start = WarmStartConfig(steps=1, batch_size=2)

    def run(transport: InMemoryTransport, **more: Any) -> list[float]:
        train_reference_policy(
            config,
            isentrope.Control(),
            policy_config=tiny_policy_config,
            warm_start=warm_start,
            transport=transport,
            threads=1,
            **more,
        )
        return entropies(transport)

    def entropies(transport: InMemoryTransport) -> list[float]:
        return [
            message.scalars["entropy/mean"]
            for message in transport.messages
            if isinstance(message, StepReport)
        ]

    def interrupt(probe: isentrope.Probe, result: StepResult) -> None:
        if result.step == 2:
            os.kill(os.getpid(), signal.SIGINT)

    saved: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        run(
            transport,
            checkpoints=checkpoints,
            follow=interrupt,
            saved=lambda step, path: saved.append(step),
        )
    assert saved == [2]
    end = transport.messages[-1]
    assert isinstance(end, RunFinished)
    assert end.status == "finished"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler

    rest = run(InMemoryTransport(), checkpoints=checkpoints, resume=True)
    assert entropies(transport) + rest == run(InMemoryTransport())
    started = checkpoints.run()
    assert started["started_with"]["name"] == "countdown"
    assert training_config(started["config"]) == config
