"""The built wheel installs and works in an empty environment, without the clone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from isentrope_wire import __version__

ROOT = Path(__file__).parents[2]


def run(*words: object, folder: Path, exit_status: int = 0) -> str:
    environment = {name: value for name, value in os.environ.items() if "ISENTROPE" not in name}
    done = subprocess.run(
        [str(word) for word in words],
        cwd=folder,
        env=environment | {"ISENTROPE_HOME": str(folder / "home")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == exit_status, done.stderr
    return done.stdout + done.stderr


@pytest.mark.slow
def test_the_wheel_works_without_the_clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    left = tmp_path / "left"
    left.mkdir()
    monkeypatch.setenv("TMPDIR", str(left))
    run(*pip, "wheel", "--quiet", "--no-deps", "--wheel-dir", tmp_path, ROOT, folder=tmp_path)
    (wheel,) = tmp_path.glob("*.whl")
    assert list(left.iterdir()) == []
    run(sys.executable, "-m", "venv", tmp_path / "venv", folder=tmp_path)
    python = tmp_path / "venv" / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", wheel, folder=tmp_path)
    isentrope = python.with_name("isentrope")
    commit = run("git", "-C", ROOT, "describe", "--always", "--dirty", "--exclude=*", folder=ROOT)
    shown = run(isentrope, "--version", folder=tmp_path)
    assert shown == f"isentrope, version {__version__} (commit {commit.strip()})\n"
    helped = run(isentrope, "--help", folder=tmp_path)
    assert "diagnose" in helped
    assert "the papers' experiments again" in " ".join(helped.split())
    log = tmp_path / "log.jsonl"
    rows = [{"step": step, "reward": 0.1 + 0.005 * step, "entropy": 1.0} for step in range(60)]
    log.write_text("".join(json.dumps(row) + "\n" for row in rows))
    findings = json.loads(run(isentrope, "diagnose", log, "--json", folder=tmp_path))
    assert findings["findings"] == []
    elsewhere = run(isentrope, "reproduce", "--quick", folder=tmp_path, exit_status=1)
    assert "clone" in elsewhere
