"""Trackers get what the reports hold; one that hangs or fails affects neither the training nor the
reports."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

import isentrope
from isentrope.integrations.transformers import IsentropeCallback
from isentrope.trackers import MOST_FAILURES, MOST_QUEUED, requested_trackers
from isentrope_wire.errors import ConfigurationError
from tests.probe.tiny_loop import TinyLoop, probe_and_transport, reports, run_steps
from tests.probe.trackers.tracked import OwnTracker
from tests.system.running_server import wait_for


def test_a_tracker_gets_the_scalars_of_every_report_in_order_from_one_thread_of_its_own() -> None:
    tracker = OwnTracker()
    probe, transport = probe_and_transport(trackers=tracker)
    run_steps(TinyLoop(), probe, 3, first=40)
    probe.finish()
    assert tracker.written == [(report.step, report.scalars) for report in reports(transport)]
    assert [step for step, _ in tracker.written] == [40, 41, 42]
    assert tracker.written[0][1]["entropy/mean"] > 0
    assert len(tracker.threads) == 1
    assert threading.get_ident() not in tracker.threads


def trained(trackers: object, home: Path) -> tuple[torch.Tensor, torch.Tensor, tuple[object, ...]]:
    loop = TinyLoop(seed=3)
    random.seed(3)
    control = isentrope.Control(method="clip_v", mu_low=1.0, mu_high=1.0)
    with isentrope.Probe("same", mode="offline", control=control, trackers=trackers) as probe:
        run_steps(loop, probe, 20)
    return loop.weights(), torch.get_rng_state(), random.getstate()


def test_a_mirrored_run_is_the_same_to_the_last_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ISENTROPE_HOME", str(tmp_path))
    tracker = OwnTracker()
    alone = trained(None, tmp_path)
    mirrored = trained((tracker, f"tensorboard:{tmp_path / 'events'}"), tmp_path)
    assert torch.equal(alone[0], mirrored[0])
    assert torch.equal(alone[1], mirrored[1])
    assert alone[2] == mirrored[2]
    assert [step for step, _ in tracker.written] == list(range(20))


def test_a_tracker_that_hangs_holds_up_neither_training_nor_reports_and_what_it_misses_is_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    tracker = OwnTracker()
    tracker.opened.clear()
    probe, transport = probe_and_transport(trackers=tracker)
    steps = MOST_QUEUED + 20
    with caplog.at_level(logging.WARNING, logger="isentrope"):
        probe.step(0)
        tracker.wait_for_calls(1)
        for step in range(1, steps):
            probe.step(step)
        started = time.monotonic()
        probe.finish()
        assert time.monotonic() - started < 5.0, "a second, and what a busy machine adds"
    assert [report.step for report in reports(transport)] == list(range(steps))
    # The tracker has taken one, MOST_QUEUED wait; the last report does not count itself.
    dropped = steps - 1 - MOST_QUEUED - 1
    assert reports(transport)[-1].scalars["probe/tracker_dropped_reports"] == dropped
    assert "probe/tracker_dropped_reports" not in reports(transport)[0].scalars
    logged = of_trackers(caplog)
    assert len(logged) == 2
    assert "257" in logged[1]
    tracker.opened.set()
    wait_for(lambda: len(tracker.written) == MOST_QUEUED + 1)
    assert [step for step, _ in tracker.written] == list(range(MOST_QUEUED + 1))


def test_a_tracker_that_fails_is_logged_once_counted_and_given_up(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTEST_CURRENT_TEST")
    tracker, beside = OwnTracker(), OwnTracker()
    tracker.failing = True
    probe, transport = probe_and_transport(trackers=[tracker, beside])
    with caplog.at_level(logging.WARNING, logger="isentrope"):
        for step in range(MOST_FAILURES):
            probe.step(step)
            tracker.wait_for_calls(step + 1)
        wait_for(lambda: len(of_trackers(caplog)) == 2)
        probe.step(MOST_FAILURES)
        probe.step(MOST_FAILURES + 1)
        probe.finish()
    assert tracker.calls == MOST_FAILURES
    assert len(beside.written) == MOST_FAILURES + 2
    last = reports(transport)[-1].scalars
    assert last["probe/tracker_failures"] == MOST_FAILURES
    logged = of_trackers(caplog)
    assert len(logged) == 2
    assert f"{MOST_FAILURES} times" in logged[1]


def test_failures_that_do_not_follow_each_other_end_no_mirror(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("PYTEST_CURRENT_TEST")
    tracker = OwnTracker()
    probe, _ = probe_and_transport(trackers=tracker)
    for step in range(4 * MOST_FAILURES):
        tracker.failing = step % 2 == 0
        probe.step(step)
        tracker.wait_for_calls(step + 1)
        time.sleep(0.002)
    probe.finish()
    assert [step for step, _ in tracker.written] == list(range(1, 4 * MOST_FAILURES, 2))


@pytest.mark.parametrize("tool", ["wandb", "trackio", "mlflow"])
def test_a_tracker_without_an_active_run_is_logged_once_and_training_goes_on(
    tool: str, caplog: pytest.LogCaptureFixture
) -> None:
    probe, transport = probe_and_transport(trackers=tool)
    with caplog.at_level(logging.WARNING, logger="isentrope"):
        run_steps(TinyLoop(), probe, 3)
        probe.finish()
    (record,) = caplog.records
    assert tool in record.getMessage()
    assert len(reports(transport)) == 3
    assert "probe/tracker_failures" not in reports(transport)[-1].scalars


@pytest.mark.parametrize(
    "wrong", ["weights_and_biases", "wandb:folder", "wandb,nothing", 7, [3.5], {"wandb": 1}]
)
def test_what_nothing_can_be_written_to_is_refused_where_the_probe_is_built(wrong: object) -> None:
    refused = "^trackers .*wandb, trackio, mlflow, tensorboard"
    with pytest.raises(ConfigurationError, match=refused):
        isentrope.Probe("test", mode="disabled", trackers=wrong)
    with pytest.raises(ConfigurationError, match=refused):
        IsentropeCallback(trackers=wrong)


def test_a_tracker_that_is_not_installed_is_refused_and_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match="trackio"):
        probe_and_transport(trackers="trackio")


def test_the_environment_names_mirrors_where_the_code_names_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ISENTROPE_TRACKERS", "wandb, tensorboard:/logs/run 1,wandb")
    assert [mirror.name for mirror in requested_trackers(None)] == ["wandb", "tensorboard"]
    assert [mirror.name for mirror in requested_trackers("mlflow")] == ["mlflow"]
    assert requested_trackers("") == requested_trackers(()) == ()
    monkeypatch.setenv("ISENTROPE_TRACKERS", "nothing")
    with pytest.raises(ConfigurationError, match="'nothing'"):
        isentrope.Probe("test", mode="disabled")


def test_nothing_is_mirrored_in_mode_disabled_nor_from_another_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracker = OwnTracker()
    folder = tmp_path / "events"
    probe, _ = probe_and_transport(mode="disabled", trackers=[tracker, f"tensorboard:{folder}"])
    run_steps(TinyLoop(), probe, 2)
    probe.finish()
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    probe, transport = probe_and_transport(
        run_id="shared", trackers=[tracker, f"tensorboard:{folder}"]
    )
    run_steps(TinyLoop(), probe, 2)
    probe.finish()
    assert len(reports(transport)) == 2
    assert tracker.written == []
    assert not folder.exists()


def test_a_function_can_t_change_the_report() -> None:
    def spoil(step: int, scalars: Mapping[str, float]) -> None:
        assert isinstance(scalars, dict)
        scalars.clear()

    probe, transport = probe_and_transport(trackers=spoil)
    run_steps(TinyLoop(), probe, 1)
    probe.finish()
    assert reports(transport)[0].scalars["entropy/mean"] > 0


def of_trackers(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [line for line in caplog.messages if "OwnTracker" in line]
