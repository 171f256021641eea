"""What a reader meets stays below its ceiling: the table in docs/decisions/size.md."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.architecture.test_house import ROOT, SOURCES, tree

SIZE = ROOT / "docs/decisions/size.md"
PREPOSITIONS = {
    "above", "across", "after", "against", "ahead", "along", "among", "around", "as", "at",
    "before", "behind", "below", "beside", "between", "beyond", "by", "down", "for", "from", "in",
    "into", "near", "of", "off", "on", "out", "over", "per", "since", "through", "to", "under",
    "until", "up", "with", "within", "without",
}  # fmt: skip


def tracked(*patterns: str) -> list[Path]:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *patterns]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [ROOT / name for name in names.splitlines() if (ROOT / name).exists()]


TESTS = tracked("tests/**.py")


def characters(paths: list[Path]) -> int:
    """Without indentation and line ends: more lines are welcome where they are plainer."""
    return sum(len(line.strip()) for path in paths for line in path.read_text().splitlines())


def conditional_expressions(nested: bool) -> int:
    found = [
        node for path in SOURCES for node in ast.walk(tree(path)) if isinstance(node, ast.IfExp)
    ]
    if not nested:
        return len(found)
    inner = {id(part) for node in found for part in ast.walk(node) if part is not node}
    return sum(id(node) in inner for node in found)


def functions_named_by_a_preposition() -> int:
    names = [
        node.name.strip("_").split("_")[0]
        for path in SOURCES
        for node in ast.walk(tree(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and not node.name.startswith("__")
    ]
    return sum(name in PREPOSITIONS for name in names)


MEASURES: dict[str, Callable[[], int]] = {
    "characters of the product": lambda: characters(SOURCES),
    "characters of the tests": lambda: characters(TESTS),
    "characters of JavaScript and CSS": lambda: characters(
        tracked("dashboard/**/assets/**.js", "dashboard/**/assets/**.css")
    ),
    "words of the documents": lambda: sum(
        len(path.read_text().split()) for path in tracked("*.md")
    ),
    "conditional expressions": lambda: conditional_expressions(nested=False),
    "nested conditional expressions": lambda: conditional_expressions(nested=True),
    "functions named by a preposition": functions_named_by_a_preposition,
}


def ceilings() -> dict[str, int]:
    rows = re.findall(r"^\| ([^|]+) \| ([\d ]+) \|$", SIZE.read_text(), re.MULTILINE)
    return {name.strip(): int(number.replace(" ", "")) for name, number in rows}


def test_each_measure_has_a_ceiling() -> None:
    assert ceilings().keys() == MEASURES.keys()


@pytest.mark.parametrize("measure", MEASURES)
def test_size_stays_below_its_ceiling(measure: str) -> None:
    assert MEASURES[measure]() <= ceilings()[measure]
