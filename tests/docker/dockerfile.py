"""Reads a Dockerfile as far as the tests need it."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction, its lines joined."""

    word: str
    rest: str

    @property
    def copied(self) -> list[str]:
        """The sources of a COPY from the build's context; none of one from another stage."""
        words = shlex.split(self.rest)
        return (
            []
            if words[0].startswith("--from")
            else [word for word in words[:-1] if not word.startswith("--")]
        )


def stages(path: Path) -> list[list[Instruction]]:
    """The instructions of each stage, FROM first."""
    text = re.sub(r"^\s*#.*\n", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    lines = re.sub(r"\\\n", " ", text).splitlines()
    found: list[list[Instruction]] = []
    for line in filter(str.strip, lines):
        word, _, rest = line.partition(" ")
        if word == "FROM":
            found.append([])
        found[-1].append(Instruction(word, rest.strip()))
    return found


def environment(stage: list[Instruction]) -> dict[str, str]:
    """What ENV sets."""
    pairs = (
        pair
        for instruction in stage
        if instruction.word == "ENV"
        for pair in shlex.split(instruction.rest)
    )
    return {name: value for name, _, value in (pair.partition("=") for pair in pairs)}
