"""Packages of frameworks that are too large or too choosy for the tests' own .venv, installed once
and kept.

`requirements/NAME.txt` pins them. In a folder they come beside what the .venv has (`folder_of`); in
an environment they have nothing of the .venv's but the same torch (`python_of`).
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from set_up import uv_environment

ROOT = Path(__file__).parents[3]
REQUIREMENTS = Path(__file__).parent / "requirements"

Commands = list[list[object]]


def folder_of(framework: str) -> Path:
    """The folder to add to `sys.path`; it is filled at the first call. Skips the test where no
    registry can be reached.

    Args:
        framework: a file in `requirements` without its ending.
    """
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    return _kept(
        framework, sys.version, lambda folder, pins: [[*pip, "--target", folder, "-r", pins]]
    )


def python_of(framework: str) -> Path:
    """The Python of an environment for a framework that some package of the .venv breaks; with this
    torch, and Isentrope.

    It is made at the first call. Skips the test where no registry can be reached.

    Args:
        framework: a file in `requirements` without its ending.
    """
    uv = Path(sys.executable).with_name("uv")
    if not uv.exists():
        pytest.skip("uv, which `make setup-dev` installs, is missing.")
    pip = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True
    )
    environment = uv_environment(pip.stdout, os.environ)
    torch = importlib.metadata.version("torch")
    # Where no folder of wheels has torch, uv chooses the index of the right build.
    index = [] if "UV_FIND_LINKS" in environment else ["--torch-backend", "auto"]

    def commands(folder: Path, pins: Path) -> Commands:
        install = [
            uv,
            "pip",
            "install",
            "--quiet",
            "--no-config",
            "--no-deps",
            "--python",
            folder / "bin" / "python",
        ]
        return [
            [uv, "venv", "--quiet", "--clear", "--no-config", "--python", sys.executable, folder],
            [*install, *index, f"torch=={torch}"],
            [*install, "-r", pins],
            [*install, "--editable", ROOT],
        ]

    return _kept(framework, torch, commands, environment) / "bin" / "python"


def _kept(
    framework: str,
    version: str,
    commands: Callable[[Path, Path], Commands],
    environment: Mapping[str, str] | None = None,
) -> Path:
    """The folder that these commands fill, for these pins and this version of what else they depend
    on."""
    pins = REQUIREMENTS / f"{framework}.txt"
    wanted = hashlib.sha256(pins.read_bytes() + version.encode()).hexdigest()[:12]
    folder = ROOT / ".pytest_cache" / "frameworks" / f"{framework}-{wanted}"
    if (folder / "complete").exists():
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    for command in commands(folder, pins):
        words = [str(word) for word in command]
        ran = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
        if ran.returncode:
            pytest.skip(f"{framework} can't be installed here: {ran.stderr.strip()[-500:]}")
    (folder / "complete").touch()
    return folder
