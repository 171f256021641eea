"""Hatch's hook for sdist and wheel: writes the commit that they are built from into the package.

`isentrope --version` reads it. A wheel that is built from an sdist keeps the sdist's.
"""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

NAME = "isentrope_wire/commit.txt"
COMMAND = ["git", "describe", "--always", "--dirty", "--exclude=*"]


class CommitOfBuild(BuildHookInterface):
    """Registered in pyproject.toml, as the custom hook."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """An editable install asks git itself."""
        root = Path(self.root)
        if version == "editable" or not (root / ".git").exists():
            return
        asked = subprocess.run(COMMAND, cwd=root, capture_output=True, text=True, check=False)
        if asked.returncode == 0:
            self.folder = tempfile.TemporaryDirectory()  # removed with the hook, after the build
            written = Path(self.folder.name) / "commit.txt"
            written.write_text(asked.stdout, encoding="utf-8")
            place = NAME if self.target_name == "wheel" else f"probe/{NAME}"
            build_data["force_include"][str(written)] = place
