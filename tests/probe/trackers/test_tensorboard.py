"""Mirroring into real event files of TensorBoard."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.tensorboard import SummaryWriter

from isentrope.errors import ConfigurationError
from isentrope.trackers.known import requested_trackers
from isentrope.transport.transport import InMemoryTransport
from tests.probe.tiny_loop import probe_and_transport
from tests.probe.trackers.mirrored_run import mirrored_steps, wait_for_trackers


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
    with pytest.raises(ConfigurationError, match=r"tensorboard.*file/events"):
        probe_and_transport(trackers=f"tensorboard:{tmp_path / 'file' / 'events'}")


def test_a_writer_is_known_for_what_it_is(tmp_path: Path) -> None:
    with SummaryWriter(str(tmp_path)) as writer:
        assert [mirror.name for mirror in requested_trackers([writer])] == ["tensorboard"]


@pytest.mark.slow
def test_a_trl_trainer_s_probe_writes_its_steps_to_the_tracker_that_attach_names(tmp_path: Path) -> None:
    from isentrope.integrations.trl import attach
    from tests.probe.integrations import tiny_trl

    trainer, transport = tiny_trl.trainer(tmp_path / "out", steps=3), InMemoryTransport()
    attach(trainer, trackers=f"tensorboard:{tmp_path / 'events'}", transport=transport)
    trainer.train()
    wait_for_trackers()
    told = tiny_trl.reports(transport)
    shown = events(tmp_path / "events")
    assert [step for step, _ in shown["isentrope/entropy/mean"]] == [report.step for report in told] == [1, 2, 3]
    said = [report.scalars["entropy/mean"] for report in told]
    assert [value for _, value in shown["isentrope/entropy/mean"]] == pytest.approx(said, rel=1e-6)
    assert "isentrope/reward/mean" in shown
