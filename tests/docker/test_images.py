"""The images, as far as they can be tried without an engine that builds them."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from isentrope.cli.frame import COMMANDS
from tests.docker.dockerfile import environment, stages

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "docker"
DOCKERFILES = sorted(DOCKER.glob("*.Dockerfile"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

of_each = pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)


@of_each
def test_copied_files_exist_unignored(path: Path) -> None:
    ignored = (DOCKER / f"{path.name}.dockerignore").read_text().splitlines()
    copied = [
        source
        for stage in stages(path)
        for step in stage
        if step.word == "COPY"
        for source in step.copied
    ]
    assert copied
    for source in copied:
        assert (ROOT / source).exists()
        assert f"!{source}" in ignored


@of_each
def test_image_runs_as_unprivileged_user(path: Path) -> None:
    last = stages(path)[-1]
    user = next(step.rest for step in reversed(last) if step.word == "USER")
    assert user.split(":")[0].isdecimal(), "an orchestrator sees from a number that it is not root"
    assert int(user.split(":")[0]) > 0
    home = environment(last)["ISENTROPE_HOME"]
    assert home in next(step.rest for step in last if step.word == "VOLUME")
    assert any(
        step.word == "RUN" and home in step.rest and f"--owner={user.split(':')[0]}" in step.rest
        for step in last
    )


@of_each
def test_image_s_command_exists(path: Path) -> None:
    last = stages(path)[-1]
    entrypoint, command = (
        json.loads(next(s.rest for s in last if s.word == word)) for word in ("ENTRYPOINT", "CMD")
    )
    scripts = {step.rest.split()[-1] for step in last if step.word == "COPY" and step.copied}
    assert entrypoint[0] in PROJECT["scripts"] or f"/usr/local/bin/{entrypoint[0]}" in scripts
    assert command[0] in COMMANDS


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", ["server", pytest.param("trainer", marks=pytest.mark.long)])
def test_run_steps_work_in_clean_folder(name: str, tmp_path: Path) -> None:
    """Every absolute path of the image is moved under a folder; where torch comes from is left to
    pip's settings."""
    path, build = DOCKER / f"{name}.Dockerfile", tmp_path / "build"
    build.mkdir()
    (tmp_path / "opt").mkdir()
    (tmp_path / "var/lib").mkdir(parents=True)
    variables = {"PATH": f"{Path(sys.base_prefix) / 'bin'}:{os.environ['PATH']}"}
    for stage in stages(path):
        for step in stage:
            if step.word == "COPY":
                for source in step.copied:
                    _copy(ROOT / source, build / source)
            elif step.word == "ARG":
                name, _, value = shlex.split(step.rest)[0].partition("=")
                variables[name] = value
            elif step.word == "RUN":
                script = re.sub(r"(?<![\w.])/(opt|var)/", rf"{tmp_path}/\1/", step.rest)
                if os.geteuid() != 0:
                    script = re.sub(r"--(owner|group)=\d+", "", script)
                if not os.environ.get("TORCH_INDEX"):
                    script = script.replace('--index-url "$TORCH_INDEX"', "")
                subprocess.run(
                    ["/bin/sh", "-e", "-c", script],
                    cwd=build,
                    env={**os.environ, **variables},
                    check=True,
                )
    isentrope = tmp_path / "opt/isentrope/bin/isentrope"
    command = json.loads(next(s.rest for s in stages(path)[-1] if s.word == "CMD"))[0]
    shown = subprocess.run(
        [isentrope, command, "--help"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert "Usage: isentrope" in shown.stdout
    assert (tmp_path / "var/lib/isentrope").stat().st_mode & 0o777 == 0o700


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target)
