"""Mirroring into a real run of trackio."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from tests.probe.trackers.mirrored_run import mirrored_steps

pytestmark = pytest.mark.slow


@pytest.fixture
def trackio_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    import trackio

    for module in ("trackio.utils", "trackio.sqlite_storage"):
        monkeypatch.setattr(f"{module}.TRACKIO_DIR", tmp_path)
    return trackio.init(project="test", name="ada", embed=False, auto_log_cpu=False, auto_log_gpu=False)


@pytest.mark.parametrize("given", [True, False])
def test_trackio_shows_each_report_at_the_trainers_own_step(trackio_run: Any, given: bool) -> None:
    import trackio
    from trackio.sqlite_storage import SQLiteStorage

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
