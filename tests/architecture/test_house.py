"""The house rules that a tool can see."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
import tomllib
from collections import Counter
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
        "trainer/papers/isentrope_papers",
    )
]
SOURCES = sorted(
    path for package in PACKAGES for path in package.rglob("*.py") if "_pb2" not in path.name
)
GUARDS = {
    "dashboard/isentrope_dashboard/live.py",
    "probe/isentrope/guard.py",
    "probe/isentrope/transport/spool.py",
    "probe/isentrope/transport/spool_writer.py",
    "server/isentrope_server/store/writer.py",
}
"""The pages' guard, which names the part that failed; the probe's outer guard, the sender thread
with its step of building a message, and the writer, whose callers get it."""
LEAST_LINES, MOST_FILES = 60, 15
SMALL_FILES = {
    "probe/isentrope/__main__.py": "what `python -m isentrope` runs",
    "probe/isentrope_wire/backoff.py": (
        "the pause of shipper, notifications and housekeeping, below all of them"
    ),
    "probe/isentrope_wire/errors.py": "everything imports it, so it can be part of nothing",
    "server/isentrope_server/store/migrations/env.py": "Alembic loads it under this name",
    "server/isentrope_server/store/migrations/versions/0004_all_tables.py": (
        "Alembic loads it under this name"
    ),
}
"""Swap points and other files under 60 lines, with the reason. This table may only shrink; a new
swap point is agreed on."""
BANNED_NAMES = {"utils", "util", "helpers", "helper", "common", "core", "manager", "misc"}


@functools.cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_top_level_is_the_promised_one() -> None:
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    top = {line.split("/")[0] for line in tracked.splitlines() if not line.startswith(".")}
    assert top <= {
        "pyproject.toml",
        "uv.lock",
        "set_up.py",
        "mkdocs.yml",
        "Makefile",
        "README.md",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "CITATION.cff",
        "LICENSE",
        "SECURITY.md",
        "CODE_OF_CONDUCT.md",
        "examples",
        "probe",
        "server",
        "dashboard",
        "trainer",
        "tests",
        "docker",
        "docs",
    }


def test_file_names_mean_something() -> None:
    names = {part for path in SOURCES for part in path.relative_to(ROOT).with_suffix("").parts}
    assert not names & BANNED_NAMES


def test_every_module_has_a_docstring() -> None:
    assert [relative(path) for path in SOURCES if not ast.get_docstring(tree(path))] == []


def test_small_files_are_swap_points() -> None:
    lines = {
        relative(path): path.read_text().count("\n")
        for path in SOURCES
        if path.name != "__init__.py"
    }
    assert {name for name, count in lines.items() if count < LEAST_LINES} == set(SMALL_FILES)


def test_folders_have_about_a_dozen_files() -> None:
    files = Counter(relative(path.parent) for path in SOURCES if path.name != "__init__.py")
    assert {folder: count for folder, count in files.items() if count > MOST_FILES} == {}


@pytest.mark.parametrize(
    "path", [path for path in SOURCES if path.name == "__init__.py"], ids=relative
)
def test_importing_a_package_does_nothing(path: Path) -> None:
    allowed = (
        ast.Expr,
        ast.Import,
        ast.ImportFrom,
        ast.Assign,
        ast.AnnAssign,
        ast.If,
        ast.FunctionDef,
    )
    for node in tree(path).body:
        assert isinstance(node, allowed), ast.dump(node)
        if isinstance(node, ast.If):
            assert ast.unparse(node.test) == "TYPE_CHECKING"


def catches_everything(handler: ast.ExceptHandler) -> bool:
    """`except:`, `except Exception` or `except BaseException`, unless it only cleans up and raises
    again."""
    broad = handler.type is None or ast.unparse(handler.type) in ("Exception", "BaseException")
    last = handler.body[-1]
    return broad and not (isinstance(last, ast.Raise) and last.exc is None)


def may_swallow(node: ast.AST) -> bool:
    """A handler of everything, or the end of a context that asks whether it was some
    `Exception`."""
    if isinstance(node, ast.FunctionDef) and node.name == "__exit__":
        return "isinstance(error, Exception)" in ast.unparse(node)
    return isinstance(node, ast.ExceptHandler) and catches_everything(node)


def test_exceptions_are_swallowed_only_in_guards() -> None:
    swallowing = {
        relative(path) for path in SOURCES for node in ast.walk(tree(path)) if may_swallow(node)
    }
    assert swallowing == GUARDS


def test_no_test_is_skipped() -> None:
    """Apart from those on packages of other frameworks, where no registry can be reached to install
    them from."""
    skip = re.compile(r"\b(pytest\.skip|importorskip|mark\.skip|mark\.xfail|pytest\.xfail)\b")
    of_frameworks = {
        ROOT / "tests" / "probe" / name for name in ("frameworks/packages.py", "verl/test_verl.py")
    }
    tests = [
        path
        for path in (ROOT / "tests").rglob("*.py")
        if path not in {Path(__file__), *of_frameworks}
    ]
    assert [relative(path) for path in tests if skip.search(path.read_text())] == []


def test_package_and_wire_share_version() -> None:
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"] == __version__


def test_promised_commands_exist() -> None:
    for name, target in COMMANDS.items():
        module, attribute = target.split(":")
        path = next(
            p.parent / (module.replace(".", "/") + ".py")
            for p in PACKAGES
            if p.name == module.split(".")[0]
        )
        names = {
            node.name
            for node in ast.parse(path.read_text()).body
            if isinstance(node, ast.FunctionDef)
        }
        assert attribute in names, f"{name}: {target}"


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys\nfrom isentrope.cli import main\nfor command in ([], *([name] for name in"
        " sys.argv[1:])):\n    assert main([*command, '--help'], standalone_mode=False) in (0,"
        " None)\n    heavy = {'torch', 'fastapi', 'dash', 'sqlalchemy', 'grpc', 'transformers',"
        " 'httpx', 'numpy', 'pydantic'} & set(sys.modules)\n    print('heavy:', command, heavy,"
        " file=sys.stderr) if heavy else None\n"
    )
    commands = list(COMMANDS)
    ran = subprocess.run(
        [sys.executable, "-c", code, *commands], capture_output=True, text=True, check=True
    )
    assert ran.stderr == ""
    assert ran.stdout.count("--help") > len(commands)


MAKES_TENSORS = re.compile(
    r"torch\.(arange|as_tensor|empty|eye|full|linspace|ones|rand|randint|randn|randperm"
    r"|scalar_tensor|tensor|zeros)"
)


def test_the_probe_names_the_device_of_tensors() -> None:
    # Else they lie on the loop's default device, whose addresses a kernel of the CPU can't read.
    nameless = [
        f"{relative(path)}:{node.lineno}"
        for path in SOURCES
        if relative(path).startswith("probe/isentrope/")
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Call) and MAKES_TENSORS.fullmatch(ast.unparse(node.func))
        if "device" not in {keyword.arg for keyword in node.keywords}
    ]
    assert nameless == []
