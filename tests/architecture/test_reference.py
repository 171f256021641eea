"""The reference has every promised name, once."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
SHOWN = sorted(
    name
    for page in (ROOT / "docs" / "reference").glob("*.md")
    for name in re.findall(r"^::: (\S+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
)
MODULES_ON_THEIR_OWN_PAGE = {"isentrope.scores"}
SHOWN_ELSEWHERE = {"isentrope.scores.TokenScores"}


def promised(package: str) -> set[str]:
    """`__all__` of a package, read without importing it."""
    face = ROOT / "probe" / package.replace(".", "/") / "__init__.py"
    for node in ast.parse(face.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return {f"{package}.{name}" for name in ast.literal_eval(node.value) if not name.startswith("__")}
    raise AssertionError(f"{face} has no __all__")


def test_every_promised_name_is_in_the_reference_once() -> None:
    names = promised("isentrope") | promised("isentrope.scores")
    # A function in a module of its own name is found only there: isentrope.scores.token_scores.token_scores.
    public = [re.sub(r"\.(\w+)\.\1$", r".\1", name) for name in SHOWN]
    assert sorted(public) == sorted(names - MODULES_ON_THEIR_OWN_PAGE - SHOWN_ELSEWHERE)
