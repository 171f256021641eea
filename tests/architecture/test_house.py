"""The house rules that a tool can see."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from isentrope.cli.frame import COMMANDS
from isentrope_wire import __version__

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
NEVER_HURT_THE_RUN = {
    "probe/isentrope/guard.py",
    "probe/isentrope/transport/spool.py",
    "probe/isentrope/transport/spool_writer.py",
}
"""The probe's outer guard, and the sender thread with its step of building a message."""
BANNED_NAMES = {"utils", "util", "helpers", "helper", "common", "core", "manager", "misc"}


@functools.cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_the_top_level_is_the_one_promised() -> None:
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    top = {line.split("/")[0] for line in tracked.splitlines() if not line.startswith(".")}
    assert top <= {
        "pyproject.toml", "uv.lock", "set_up.py", "mkdocs.yml", "Makefile", "README.md", "CHANGELOG.md", "LICENSE",
        "probe", "server", "dashboard", "trainer", "tests", "docker", "docs",
    }  # fmt: skip


def test_no_file_or_folder_is_named_after_nothing() -> None:
    names = {part for path in SOURCES for part in path.relative_to(ROOT).with_suffix("").parts}
    assert not names & BANNED_NAMES


def test_every_module_says_what_it_is_for() -> None:
    assert [relative(path) for path in SOURCES if not ast.get_docstring(tree(path))] == []


@pytest.mark.parametrize("path", [path for path in SOURCES if path.name == "__init__.py"], ids=relative)
def test_nothing_happens_on_import_of_a_package(path: Path) -> None:
    allowed = (ast.Expr, ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign, ast.If, ast.FunctionDef)
    for node in tree(path).body:
        assert isinstance(node, allowed), ast.dump(node)
        if isinstance(node, ast.If):
            assert ast.unparse(node.test) == "TYPE_CHECKING"


def catches_everything(handler: ast.ExceptHandler) -> bool:
    """`except:`, `except Exception` or `except BaseException`, unless it only cleans up and raises again."""
    broad = handler.type is None or ast.unparse(handler.type) in ("Exception", "BaseException")
    last = handler.body[-1]
    return broad and not (isinstance(last, ast.Raise) and last.exc is None)


def may_swallow(node: ast.AST) -> bool:
    """A handler of everything, or the end of a context that asks whether it was some `Exception`."""
    if isinstance(node, ast.FunctionDef) and node.name == "__exit__":
        return "isinstance(error, Exception)" in ast.unparse(node)
    return isinstance(node, ast.ExceptHandler) and catches_everything(node)


def test_exceptions_are_swallowed_only_where_never_hurting_the_run_is_the_job() -> None:
    swallowing = {relative(path) for path in SOURCES for node in ast.walk(tree(path)) if may_swallow(node)}
    assert swallowing == NEVER_HURT_THE_RUN


def test_no_test_is_skipped_or_expected_to_fail() -> None:
    skip = re.compile(r"\b(pytest\.skip|importorskip|mark\.skip|mark\.xfail|pytest\.xfail)\b")
    tests = [path for path in (ROOT / "tests").rglob("*.py") if path != Path(__file__)]
    assert [relative(path) for path in tests if skip.search(path.read_text())] == []


def test_the_version_of_the_package_is_that_of_the_wire() -> None:
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"] == __version__


def test_every_command_of_the_table_exists() -> None:
    for name, target in COMMANDS.items():
        module, attribute = target.split(":")
        path = next(p.parent / (module.replace(".", "/") + ".py") for p in PACKAGES if p.name == module.split(".")[0])
        names = {node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)}
        assert attribute in names, f"{name}: {target}"


def test_help_imports_neither_torch_nor_the_web() -> None:
    code = (
        "import sys\n"
        "from isentrope.cli import main\n"
        "for command in ([], *([name] for name in sys.argv[1:])):\n"
        "    assert main([*command, '--help'], standalone_mode=False) in (0, None)\n"
        "    heavy = {'torch', 'fastapi', 'dash', 'sqlalchemy', 'grpc', 'transformers'} & set(sys.modules)\n"
        "    print('heavy:', command, heavy, file=sys.stderr) if heavy else None\n"
    )
    commands = list(COMMANDS)
    ran = subprocess.run([sys.executable, "-c", code, *commands], capture_output=True, text=True, check=True)
    assert ran.stderr == ""
    assert ran.stdout.count("--help") > len(commands)
