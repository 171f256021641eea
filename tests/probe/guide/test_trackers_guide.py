"""The guide on trackers: its examples run, and it names every tracker and limit there is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import isentrope
from isentrope.trackers import KNOWN, MOST_FAILURES, MOST_QUEUED
from tests.probe.tiny_loop import TinyLoop, run_steps

GUIDE = (Path(__file__).parents[3] / "docs" / "trackers.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python trackers\n(.*?)```", GUIDE, flags=re.DOTALL)


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_runs(
    example: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ISENTROPE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("ISENTROPE_MODE", "offline")
    names = {"isentrope": isentrope}
    exec(example, names)  # noqa: S102  # our own page
    probe = names["probe"]
    assert isinstance(probe, isentrope.Probe)
    run_steps(TinyLoop(), probe, 2)
    probe.finish()
    if "tensorboard:events" in example:
        assert list((tmp_path / "events").iterdir())
        assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["0", "1"]


def test_the_page_names_every_tracker_and_limit() -> None:
    assert all(f'| `"{name}"` |' in GUIDE for name in KNOWN)
    assert f"{MOST_QUEUED} reports wait" in GUIDE
    assert f"after {MOST_FAILURES} failures in a row" in GUIDE
