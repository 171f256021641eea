"""The committed code is what the committed proto generates."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GENERATED = ("telemetry_pb2.py", "telemetry_pb2.pyi", "telemetry_pb2_grpc.py", "telemetry_pb2_grpc.pyi")


@pytest.fixture(scope="module")
def regenerated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("proto")
    flags = [f"--{kind}_out={out}" for kind in ("python", "grpc_python", "mypy", "mypy_grpc")]
    subprocess.run(
        [sys.executable, "-m", "grpc_tools.protoc", f"-I{ROOT / 'probe'}", *flags, "isentrope_wire/v1/telemetry.proto"],
        check=True,
        env=os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"},
    )
    return out / "isentrope_wire/v1"


@pytest.mark.parametrize("name", GENERATED)
def test_generated_code_is_fresh(regenerated: Path, name: str) -> None:
    committed = ROOT / "probe/isentrope_wire/v1" / name
    assert committed.read_text() == (regenerated / name).read_text(), "run `make proto` and commit the result"
