"""The example of the guide to checkpoints runs as it stands there: its second life goes on where
the first one ended."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from isentrope.statistics.calibration import Calibration, Momentum
from isentrope.transport.spool_folder import find_spool_folders
from isentrope_wire.reports import StepReport
from tests.probe.guide.test_guide import run_example
from tests.probe.ranks.gang import run_ranks
from tests.probe.transport.fake_telemetry import on_disk

GUIDE = (Path(__file__).parents[3] / "docs" / "checkpoints.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_example_s_second_life_goes_on_with_what_the_first_one_learnt(tmp_path: Path) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", GUIDE, flags=re.DOTALL)
    example = example.replace('Path("checkpoint.pt")', f"Path({str(tmp_path / 'checkpoint.pt')!r})")
    (tmp_path / "train.py").write_text(example, encoding="utf-8")
    run_ranks(
        1,
        run_example,
        str(tmp_path / "train.py"),
        str(tmp_path / "home"),
        group=False,
        timeout_seconds=120,
    )
    spools = find_spool_folders(tmp_path / "home")
    attempts = [
        [one for one in on_disk(spool.path) if isinstance(one, StepReport)] for spool in spools
    ]
    first, second = sorted(attempts, key=lambda reports: reports[0].step)
    assert [report.step for report in first] == list(range(1, 11))
    assert [report.step for report in second] == list(range(11, 21))
    # A new probe predicts nothing before it has seen some steps; this one says what twenty steps in
    # one life would.
    assert "entropy/predicted_change" not in first[0].scalars
    calibration = Calibration()
    for report in first + second:
        scalars = report.scalars
        learnt = calibration.step(
            scalars["entropy/unit_predicted_change"],
            scalars["entropy/observed_change"],
            Momentum(0.9),
            1e-2 * scalars["entropy/mean"],
        )
        known = {"entropy/predicted_change": learnt.predicted_change, "entropy/gain": learnt.gain}
        for name, value in known.items():
            assert scalars.get(name) == (None if value is None else pytest.approx(value, rel=1e-9))
