"""Real runs of trackio, MLflow and TensorBoard hold the scalars of each report at the trainer's own
step."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.tensorboard import SummaryWriter

from isentrope.trackers import MOST_METRICS, allowed, requested_trackers
from isentrope_wire.errors import ConfigurationError
from tests.probe.tiny_loop import TinyLoop, probe_and_transport, run_steps
from tests.probe.trackers.tracked import finish, three_steps

Points = dict[str, list[tuple[int, float]]]
Stored = Callable[[], Points]


@contextmanager
def mlflow_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Any, Stored]]:
    import mlflow

    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    mlflow.set_tracking_uri(f"sqlite:///{folder / 'runs.db'}")
    client = mlflow.MlflowClient()

    def stored() -> Points:
        names = client.get_run(run.info.run_id).data.metrics
        histories = {name: client.get_metric_history(run.info.run_id, name) for name in names}
        return {
            name: [(one.step, one.value) for one in history] for name, history in histories.items()
        }

    with mlflow.start_run() as run:
        yield run, stored
        active = mlflow.active_run()
        assert active is not None
        assert active.info.run_id == run.info.run_id


@contextmanager
def trackio_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Any, Stored]]:
    import trackio
    from trackio.sqlite_storage import SQLiteStorage

    for module in ("trackio.utils", "trackio.sqlite_storage"):
        monkeypatch.setattr(f"{module}.TRACKIO_DIR", folder)
    run: Any = trackio.init(
        project="test", name="ada", embed=False, auto_log_cpu=False, auto_log_gpu=False
    )
    trackio.log({"loss": 0.5}, step=9)

    def stored() -> Points:
        trackio.log({"loss": 0.25}, step=10)
        end_current_run: Any = trackio.finish
        end_current_run()
        points: Points = {}
        for row in SQLiteStorage.get_logs("test", "ada"):
            for name, value in row.items():
                points.setdefault(name, []).append((row["step"], value))
        assert points["loss"] == [(9, 0.5), (10, 0.25)]
        return points

    yield run, stored


@contextmanager
def tensorboard_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Any, Stored]]:
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(folder))
    with SummaryWriter(str(folder / "mirrored")) as writer:
        yield writer, lambda: events(folder / "mirrored")


def events(folder: Path) -> Points:
    found = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    found.Reload()
    return {
        name: [(event.step, event.value) for event in found.Scalars(name)]
        for name in found.Tags()["scalars"]
    }


@pytest.mark.slow
@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize(
    ("tool", "opened"),
    [("mlflow", mlflow_run), ("trackio", trackio_run), ("tensorboard", tensorboard_run)],
)
def test_a_known_tracker_holds_each_report_at_the_trainers_own_step(
    tool: str, opened: Any, given: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path, monkeypatch) as (run, stored):
        assert [tracker.name for tracker in requested_trackers([run])] == [tool]
        reported = three_steps(run if given else tool)
        shown = stored()
    assert {f"isentrope/{name}" for scalars in reported for name in scalars} <= set(shown)
    assert [step for step, _ in shown["isentrope/entropy/mean"]] == [7, 8, 9]
    expected = [scalars["entropy/mean"] for scalars in reported]
    assert [value for _, value in shown["isentrope/entropy/mean"]] == pytest.approx(
        expected, rel=1e-6
    )
    ((step, loss),) = shown["isentrope/loss"]
    assert step == 7
    assert math.isnan(loss)
    ((step, kl),) = shown["isentrope/kl"]
    assert kl > 1e308


@pytest.mark.slow
def test_a_run_that_is_opened_after_the_first_step_is_written_from_then_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    probe, _ = probe_and_transport(trackers="mlflow")
    run_steps(TinyLoop(), probe, 1)
    with mlflow_run(tmp_path, monkeypatch) as (_, stored):
        run_steps(TinyLoop(), probe, 2, first=1)
        finish(probe)
        assert [step for step, _ in stored()["isentrope/entropy/mean"]] == [1, 2]


@pytest.mark.slow
def test_mlflow_takes_more_scalars_than_fit_in_a_call_and_names_with_letters_it_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"own/{number}" for number in range(MOST_METRICS)]
    with mlflow_run(tmp_path, monkeypatch) as (run, _):
        import mlflow

        probe, _ = probe_and_transport(trackers="mlflow")
        probe.log(dict.fromkeys([*names, "reward@8=best", "a//b/../c", "x" * 400], 1.0))
        probe.step(0)
        finish(probe)
        stored = mlflow.MlflowClient().get_run(run.info.run_id).data.metrics
    assert {f"isentrope/{name}" for name in names} <= set(stored)
    assert {"isentrope/reward_8_best", "isentrope/a/b/c", "isentrope/" + "x" * 240} <= set(stored)


@pytest.mark.parametrize("name", ["entropy/mean", "hold/target", "perplexity: π (π)"])
def test_promised_names_go_to_mlflow_as_they_are(name: str) -> None:
    assert allowed(name) == name.replace("(", "_").replace(")", "_")


def test_tensorboard_gets_the_folder_that_is_named_or_refuses_it(tmp_path: Path) -> None:
    three_steps(f"tensorboard:{tmp_path / 'named'}")
    assert [step for step, _ in events(tmp_path / "named")["isentrope/entropy/mean"]] == [7, 8, 9]
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match=r"tensorboard.*file/events"):
        probe_and_transport(trackers=f"tensorboard:{tmp_path / 'file' / 'events'}")
