"""Mirroring into real runs of MLflow."""

from __future__ import annotations

import math
import os
import threading

import pytest

from isentrope.trackers.known import MOST_METRICS, requested_trackers
from tests.probe.tiny_loop import TinyLoop, probe_and_transport, run_steps
from tests.probe.trackers.mirrored_run import finish, mirrored_steps

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    import mlflow

    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
    uri = f"sqlite:///{tmp_path_factory.mktemp('mlflow') / 'runs.db'}"
    mlflow.set_tracking_uri(uri)
    return uri


@pytest.mark.parametrize("given", [True, False])
def test_mlflow_is_written_by_the_id_of_the_run_that_is_active_on_the_training_thread(store: str, given: bool) -> None:
    import mlflow

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
    import mlflow

    probe, _ = probe_and_transport(trackers="mlflow")
    run_steps(TinyLoop(), probe, 1)
    with mlflow.start_run() as run:
        run_steps(TinyLoop(), probe, 2, first=1)
    finish(probe)
    shown = mlflow.MlflowClient().get_metric_history(run.info.run_id, "isentrope/entropy/mean")
    assert [metric.step for metric in shown] == [1, 2]


def test_more_scalars_than_mlflow_takes_at_once_and_names_that_it_knows_not_arrive(store: str) -> None:
    import mlflow

    names = [f"own/{number}" for number in range(MOST_METRICS)]
    with mlflow.start_run() as run:
        probe, _ = probe_and_transport(trackers="mlflow")
        probe.log(dict.fromkeys([*names, "reward@8=best", "a//b/../c", "x" * 400], 1.0))
        probe.step(0)
        finish(probe)
    stored = mlflow.MlflowClient().get_run(run.info.run_id).data.metrics
    assert {f"isentrope/{name}" for name in names} <= set(stored)
    assert {"isentrope/reward_8_best", "isentrope/a/b/c", "isentrope/" + "x" * 240} <= set(stored)


def test_a_run_is_known_for_what_it_is(store: str) -> None:
    import mlflow

    with mlflow.start_run() as run:
        assert [mirror.name for mirror in requested_trackers([run])] == ["mlflow"]
