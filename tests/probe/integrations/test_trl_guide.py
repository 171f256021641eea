"""The example of the guide to TRL runs as it stands there, and reports what the guide says."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest
import torch

from tests.probe.guide.test_guide import reported

GUIDE = (Path(__file__).parents[3] / "docs" / "attach-trl.md").read_text(encoding="utf-8")


def test_the_example_trains_and_reports_every_update(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", GUIDE, flags=re.DOTALL)
    example = example.replace(
        'output_dir="even-words"', f"output_dir={str(tmp_path / 'even-words')!r}"
    )
    (tmp_path / "train.py").write_text(example, encoding="utf-8")
    monkeypatch.setenv("ISENTROPE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("ISENTROPE_MODE", "offline")
    torch.manual_seed(0)
    # In this process: importing TRL anew takes longer than the example.
    runpy.run_path(str(tmp_path / "train.py"), run_name="__main__")
    (reports,) = reported(tmp_path / "home")
    assert [report.step for report in reports] == list(range(1, 11))
    for report in reports:
        assert {
            "entropy/mean",
            "entropy/observed_change",
            "reward",
            "reward/mean",
            "grad_norm",
        } <= set(report.scalars)
        assert report.labels["control/method"] == "clip_v"
        assert "probe/failures" not in report.scalars
        assert "probe/attachment_failures" not in report.scalars
    assert any(report.scalars["clip/fraction"] > 0 for report in reports)
