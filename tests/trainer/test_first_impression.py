"""What somebody sees who starts the demo for the first time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

import pytest

import isentrope
from isentrope.transport.transport import InMemoryTransport
from isentrope_trainer import commands, reference_run
from isentrope_trainer.models.policy import Policy
from isentrope_trainer.models.warm_start import WarmStartConfig, untrained_policy
from isentrope_trainer.reference_run import Course
from isentrope_trainer.settings import PolicyConfig, TrainingConfig
from isentrope_trainer.tasks.base import Task
from isentrope_wire.errors import ConfigurationError
from isentrope_wire.reports import StepReport

CONFIG = TrainingConfig(steps=3, seed=5, prompts=2, group_size=4)


def test_the_run_begins_after_the_warm_start_and_ends_with_a_line_about_its_course(
    tiny_policy_config: PolicyConfig, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []

    def warm(task: Task, policy_config: PolicyConfig, config: WarmStartConfig) -> Policy:
        order.append("warm")
        return untrained_policy(task, policy_config, config.seed)

    monkeypatch.setattr(reference_run, "warm_started_policy", warm)
    transport, course = InMemoryTransport(), Course()
    assert str(course) == ""
    reference_run.train_reference_policy(
        CONFIG,
        isentrope.Control(),
        policy_config=tiny_policy_config,
        transport=transport,
        announce=order.append,
        follow=course.follow,
    )
    run_id = order[1]
    assert order == ["warm", run_id]
    reports = [message for message in transport.messages if isinstance(message, StepReport)]
    assert all(token.text for report in reports for token in report.tokens)
    # The levels of the page: of three steps the early one and today's are the same median.
    entropy, reward = (
        median(report.scalars[name] for report in reports)
        for name in ("entropy/mean", "reward/mean")
    )
    assert str(course).startswith(
        f"3 steps, entropy {entropy:.3f} -> {entropy:.3f} nats, reward {reward:.3f}; run {run_id}, "
    )
    assert str(course).endswith(f"/runs/{run_id}")


def test_a_home_that_can_not_be_made_is_said_before_the_warm_start(
    tiny_policy_config: PolicyConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("ISENTROPE_HOME", str(tmp_path / "file" / "home"))
    with pytest.raises(ConfigurationError, match=str(tmp_path / "file" / "home")):
        reference_run.train_reference_policy(
            CONFIG,
            isentrope.Control(),
            policy_config=tiny_policy_config,
            transport=InMemoryTransport(),
        )


@pytest.mark.parametrize(("screen", "opened"), [("", 0), (":0", 1)])
def test_a_browser_is_opened_where_there_is_a_screen_and_in_silence(
    monkeypatch: pytest.MonkeyPatch, screen: str, opened: int
) -> None:
    calls: list[dict[str, Any]] = []
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(
        subprocess, "Popen", lambda command, **how: calls.append({"command": command, **how})
    )
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    monkeypatch.setenv("DISPLAY", screen)
    commands._open_browser("http://127.0.0.1:7070/?token=t")
    assert len(calls) == opened
    for call in calls:
        assert call["command"][1] == "http://127.0.0.1:7070/?token=t"
        assert (call["stdout"], call["stderr"]) == (subprocess.DEVNULL, subprocess.DEVNULL)
