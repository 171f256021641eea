"""Mirroring into real runs of TensorBoard, trackio and MLflow."""

from __future__ import annotations

import math
import os
import threading
from pathlib import Path
from typing import Any

import mlflow
import pytest
import trackio
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.tensorboard import SummaryWriter
from trackio.sqlite_storage import SQLiteStorage

import isentrope
from isentrope.errors import ConfigurationError
from isentrope.integrations.trl import attach
from isentrope.mirrors.mlflow_run import MOST_METRICS, allowed
from isentrope.mirrors.wanted import wanted_mirrors
from isentrope.transport.in_memory import InMemoryTransport
from tests.probe.integrations import tiny_trl
from tests.probe.mirrors.own_tracker import wait_until
from tests.probe.tiny_loop import TinyLoop, probe_and_transport, reports, run_steps


def finish(probe: isentrope.Probe) -> None:
    probe.finish()
    wait_for_mirrors()


def wait_for_mirrors() -> None:
    """A slow machine may take longer for a database than a run's end may take."""
    wait_until(lambda: not any(thread.name.startswith("isentrope-mirror") for thread in threading.enumerate()))


def mirrored_steps(mirror: object) -> list[dict[str, float]]:
    """Three steps with a NaN and an infinity in the first; what was reported."""
    probe, transport = probe_and_transport(run_id="mirrored", mirror=mirror)
    probe.log({"loss": math.nan, "kl": math.inf})
    run_steps(TinyLoop(), probe, 3, first=7)
    finish(probe)
    return [dict(report.scalars) for report in reports(transport)]


def events(folder: Path) -> dict[str, list[tuple[int, float]]]:
    found = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    found.Reload()
    return {name: [(event.step, event.value) for event in found.Scalars(name)] for name in found.Tags()["scalars"]}


def check_events(folder: Path, reported: list[dict[str, float]]) -> None:
    shown = events(folder)
    assert set(shown) == {f"isentrope/{name}" for scalars in reported for name in scalars}
    assert [step for step, _ in shown["isentrope/entropy/mean"]] == [7, 8, 9]
    expected = [scalars["entropy/mean"] for scalars in reported]
    assert [value for _, value in shown["isentrope/entropy/mean"]] == pytest.approx(expected, rel=1e-6)
    ((step, loss),) = shown["isentrope/loss"]
    assert step == 7
    assert math.isnan(loss)
    assert shown["isentrope/kl"] == [(7, math.inf)]


def test_tensorboard_gets_a_folder_beside_the_trainings_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_events(tmp_path / "named", mirrored_steps(f"tensorboard:{tmp_path / 'named'}"))
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "logs"))
    check_events(tmp_path / "logs" / "mirrored", mirrored_steps("tensorboard"))


def test_a_writer_of_the_training_gets_the_scalars_and_stays_open(tmp_path: Path) -> None:
    with SummaryWriter(str(tmp_path)) as writer:
        reported = mirrored_steps(writer)
        check_events(tmp_path, reported)
        writer.add_scalar("loss", 1.0, 3)
    assert events(tmp_path)["loss"] == [(3, 1.0)]
    assert len(list(tmp_path.iterdir())) == 1


def test_a_folder_that_can_t_be_written_is_refused_where_the_probe_is_built(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match=r"mirror='tensorboard' can't write to .*file/events"):
        probe_and_transport(mirror=f"tensorboard:{tmp_path / 'file' / 'events'}")


@pytest.fixture
def trackio_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    for module in ("trackio.utils", "trackio.sqlite_storage"):
        monkeypatch.setattr(f"{module}.TRACKIO_DIR", tmp_path)
    return trackio.init(project="test", name="ada", embed=False, auto_log_cpu=False, auto_log_gpu=False)


@pytest.mark.parametrize("given", [True, False])
def test_trackio_shows_each_report_at_the_trainers_own_step(trackio_run: Any, given: bool) -> None:
    trackio.log({"loss": 0.5}, step=9)
    reported = mirrored_steps(trackio_run if given else "trackio")
    trackio.log({"loss": 0.25}, step=10)
    end_current_run: Any = trackio.finish
    end_current_run()
    logs = SQLiteStorage.get_logs("test", "ada")
    ours = [log for log in logs if "isentrope/entropy/mean" in log]
    assert [log["step"] for log in ours] == [7, 8, 9]
    assert [log["isentrope/entropy/mean"] for log in ours] == [scalars["entropy/mean"] for scalars in reported]
    assert math.isnan(ours[0]["isentrope/loss"])
    assert ours[0]["isentrope/kl"] == math.inf
    assert "isentrope/loss" not in ours[1]
    assert [(log["step"], log["loss"]) for log in logs if "loss" in log] == [(9, 0.5), (10, 0.25)]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
    uri = f"sqlite:///{tmp_path_factory.mktemp('mlflow') / 'runs.db'}"
    mlflow.set_tracking_uri(uri)
    return uri


@pytest.mark.parametrize("given", [True, False])
def test_mlflow_is_written_by_the_id_of_the_run_that_is_active_on_the_training_thread(store: str, given: bool) -> None:
    with mlflow.start_run() as run:
        elsewhere: list[object] = []
        thread = threading.Thread(target=lambda: elsewhere.append(mlflow.active_run()))
        thread.start()
        thread.join()
        assert elsewhere == [None]
        reported = mirrored_steps(run if given else "mlflow")
        client = mlflow.MlflowClient()
        shown = client.get_metric_history(run.info.run_id, "isentrope/entropy/mean")
        assert [(metric.step, metric.value) for metric in shown] == [
            (step, scalars["entropy/mean"]) for step, scalars in zip((7, 8, 9), reported, strict=True)
        ]
        (loss,) = client.get_metric_history(run.info.run_id, "isentrope/loss")
        assert math.isnan(loss.value)
        (kl,) = client.get_metric_history(run.info.run_id, "isentrope/kl")
        assert kl.value > 1e308
        active = mlflow.active_run()
        assert active is not None
        assert active.info.run_id == run.info.run_id


def test_a_run_that_is_opened_after_the_first_step_is_mirrored_from_then_on(store: str) -> None:
    probe, _ = probe_and_transport(mirror="mlflow")
    run_steps(TinyLoop(), probe, 1)
    with mlflow.start_run() as run:
        run_steps(TinyLoop(), probe, 2, first=1)
    finish(probe)
    shown = mlflow.MlflowClient().get_metric_history(run.info.run_id, "isentrope/entropy/mean")
    assert [metric.step for metric in shown] == [1, 2]


def test_more_scalars_than_mlflow_takes_at_once_and_names_that_it_knows_not_arrive(store: str) -> None:
    names = [f"own/{number}" for number in range(MOST_METRICS)]
    with mlflow.start_run() as run:
        probe, _ = probe_and_transport(mirror="mlflow")
        probe.log(dict.fromkeys([*names, "reward@8=best", "a//b/../c", "x" * 400], 1.0))
        probe.step(0)
        finish(probe)
    stored = mlflow.MlflowClient().get_run(run.info.run_id).data.metrics
    assert {f"isentrope/{name}" for name in names} <= set(stored)
    assert {"isentrope/reward_8_best", "isentrope/a/b/c", "isentrope/" + "x" * 240} <= set(stored)


@pytest.mark.parametrize("name", ["entropy/mean", "hold/target", "perplexity: π (π)"])
def test_promised_names_go_to_mlflow_as_they_are(name: str) -> None:
    assert allowed(name) == name.replace("(", "_").replace(")", "_")


def test_objects_are_known_for_what_they_are(tmp_path: Path, store: str) -> None:
    with SummaryWriter(str(tmp_path)) as writer, mlflow.start_run() as run:
        assert [mirror.name for mirror in wanted_mirrors([writer, run])] == ["tensorboard", "mlflow"]


def test_a_trl_trainer_s_probe_writes_its_steps_to_the_tracker_that_attach_names(tmp_path: Path) -> None:
    trainer, transport = tiny_trl.trainer(tmp_path / "out", steps=3), InMemoryTransport()
    attach(trainer, mirror=f"tensorboard:{tmp_path / 'events'}", transport=transport)
    trainer.train()
    wait_for_mirrors()
    told = tiny_trl.reports(transport)
    shown = events(tmp_path / "events")
    assert [step for step, _ in shown["isentrope/entropy/mean"]] == [report.step for report in told] == [1, 2, 3]
    said = [report.scalars["entropy/mean"] for report in told]
    assert [value for _, value in shown["isentrope/entropy/mean"]] == pytest.approx(said, rel=1e-6)
    assert "isentrope/reward/mean" in shown
