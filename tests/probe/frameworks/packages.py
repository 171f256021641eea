"""Packages of frameworks that are too large or too choosy for the tests' own .venv: each in a folder of its own, kept.

`requirements/NAME.txt` pins what the folder holds beside the .venv: nothing in it replaces what the .venv has.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
REQUIREMENTS = Path(__file__).parent / "requirements"


def folder_of(framework: str) -> Path:
    """The folder to append to `sys.path`; it is filled at the first call. Skips the test where no registry can be reached.

    Args:
        framework: a file in `requirements` without its ending.
    """
    requirements = REQUIREMENTS / f"{framework}.txt"
    wanted = hashlib.sha256(requirements.read_bytes() + sys.version.encode()).hexdigest()[:12]
    folder = ROOT / ".pytest_cache" / "frameworks" / f"{framework}-{wanted}"
    if (folder / "complete").exists():
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    ran = subprocess.run(
        [*command, "--target", folder, "-r", requirements], capture_output=True, text=True, check=False
    )
    if ran.returncode:
        pytest.skip(f"{framework} can't be installed here: {ran.stderr.strip()[-500:]}")
    (folder / "complete").touch()
    return folder
