"""What is made from something else is fresh: tables in the guides, protobuf code, the pages of the
reference."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture.generated_tables import PAGES, ROOT

GENERATED_CODE = (
    "telemetry_pb2.py",
    "telemetry_pb2.pyi",
    "telemetry_pb2_grpc.py",
    "telemetry_pb2_grpc.pyi",
)
SHOWN = sorted(
    name
    for page in (ROOT / "docs" / "reference").glob("*.md")
    for name in re.findall(r"^::: (\S+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
)
MODULES_WITH_THEIR_OWN_PAGE = {"isentrope.scores"}
SHOWN_ELSEWHERE = {"isentrope.scores.TokenScores"}
OF_ADAPTERS = {f"isentrope.integrations.attachment.{name}" for name in ("Attachment", "in_worker")}


@pytest.mark.parametrize("name", PAGES)
def test_generated_table_is_fresh(name: str) -> None:
    held = (ROOT / name).read_text()
    assert held == PAGES[name](held), "run python -m tests.architecture.generated_tables"


@pytest.fixture(scope="module")
def regenerated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("proto")
    flags = [f"--{kind}_out={out}" for kind in ("python", "grpc_python", "mypy", "mypy_grpc")]
    subprocess.run(
        [
            sys.executable,
            "-m",
            "grpc_tools.protoc",
            f"-I{ROOT / 'probe'}",
            *flags,
            "isentrope_wire/v1/telemetry.proto",
        ],
        check=True,
        env=os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"},
    )
    return out / "isentrope_wire/v1"


@pytest.mark.parametrize("name", GENERATED_CODE)
def test_protobuf_code_is_fresh(regenerated: Path, name: str) -> None:
    committed = ROOT / "probe/isentrope_wire/v1" / name
    assert committed.read_text() == (regenerated / name).read_text(), (
        "run `make proto` and commit the result"
    )


def promised(package: str) -> set[str]:
    """`__all__` of a package, read without importing it."""
    face = ROOT / "probe" / package.replace(".", "/") / "__init__.py"
    for node in ast.parse(face.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return {
                f"{package}.{name}"
                for name in ast.literal_eval(node.value)
                if not name.startswith("__")
            }
    raise AssertionError(f"{face} has no __all__")


def test_reference_has_promised_names_once() -> None:
    names = promised("isentrope") | promised("isentrope.scores")
    # A function in a module of its own name is found only there:
    # isentrope.scores.token_scores.token_scores.
    public = [re.sub(r"\.(\w+)\.\1$", r".\1", name) for name in SHOWN]
    assert sorted(public) == sorted(
        (names | OF_ADAPTERS) - MODULES_WITH_THEIR_OWN_PAGE - SHOWN_ELSEWHERE
    )
