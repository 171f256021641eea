"""The house rules that a tool can see."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = [
    ROOT / folder
    for folder in (
        "probe/isentrope_wire",
        "probe/isentrope",
        "server/isentrope_server",
        "dashboard/isentrope_dashboard",
        "trainer/isentrope_trainer",
    )
]
SOURCES = sorted(path for package in PACKAGES for path in package.rglob("*.py") if "_pb2" not in path.name)
BANNED_NAMES = {"utils", "util", "helpers", "helper", "common", "core", "manager", "misc"}
DECLARED = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_the_top_level_is_the_one_promised() -> None:
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    top = {line.split("/")[0] for line in tracked.splitlines() if not line.startswith(".")}
    assert top <= {
        "pyproject.toml", "constraints.txt", "Makefile", "README.md", "CHANGELOG.md", "LICENSE",
        "probe", "server", "dashboard", "trainer", "tests", "docker", "docs",
    }  # fmt: skip


@pytest.mark.parametrize("path", SOURCES, ids=relative)
def test_no_file_is_named_after_nothing(path: Path) -> None:
    assert path.stem not in BANNED_NAMES
    assert not BANNED_NAMES & {part.lower() for part in path.relative_to(ROOT).parts[:-1]}


@pytest.mark.parametrize("path", SOURCES, ids=relative)
def test_every_module_says_what_it_is_for(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text())), "a module needs a docstring"


@pytest.mark.parametrize("path", [path for path in SOURCES if path.name == "__init__.py"], ids=relative)
def test_nothing_happens_on_import_of_a_package(path: Path) -> None:
    allowed = (ast.Expr, ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign, ast.If, ast.FunctionDef)
    for node in ast.parse(path.read_text()).body:
        assert isinstance(node, allowed), ast.dump(node)
        if isinstance(node, ast.If):
            assert ast.unparse(node.test) == "TYPE_CHECKING"


@pytest.mark.parametrize("path", SOURCES, ids=relative)
def test_exception_is_caught_only_where_never_hurting_the_run_is_the_job(path: Path) -> None:
    allowed = {"probe/isentrope/guard.py", "probe/isentrope/transport/spool_transport.py"}
    catches = [
        node.lineno
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ExceptHandler)
        and (node.type is None or ast.unparse(node.type) in ("Exception", "BaseException"))
    ]
    assert not catches or relative(path) in allowed, f"lines {catches}"


@pytest.mark.parametrize("path", sorted((ROOT / "tests").rglob("*.py")), ids=relative)
def test_no_test_is_skipped_or_expected_to_fail(path: Path) -> None:
    if path == Path(__file__):
        return
    assert not re.search(r"\b(pytest\.skip|importorskip|mark\.skip|mark\.xfail|pytest\.xfail)\b", path.read_text())


def test_every_command_promised_by_an_entry_point_exists() -> None:
    for name, target in DECLARED["entry-points"]["isentrope.commands"].items():
        module, attribute = target.split(":")
        path = next(p.parent / (module.replace(".", "/") + ".py") for p in PACKAGES if p.name == module.split(".")[0])
        names = {node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)}
        assert attribute in names, f"{name}: {target}"


@pytest.mark.parametrize("command", [[], *([name] for name in DECLARED["entry-points"]["isentrope.commands"])])
def test_help_imports_neither_torch_nor_the_web(command: list[str]) -> None:
    code = (
        "import sys\n"
        "from isentrope.cli import main\n"
        f"sys.argv = ['isentrope', *{command!r}, '--help']\n"
        "try:\n    main()\nexcept SystemExit as stop:\n    assert stop.code == 0, stop.code\n"
        "heavy = [m for m in ('torch', 'fastapi', 'dash', 'sqlalchemy', 'grpc', 'transformers') if m in sys.modules]\n"
        "print('heavy:', heavy)\n"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.endswith("heavy: []\n")
