"""What the Triton kernels compile to for GPUs that are not there: no spills, few registers.

The compilers that Triton brings along decide this, so its version is pinned here.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks.triton_compile import KERNELS, LOGITS_TYPES, READING, TARGETS

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[3]
TRITON = "3.9.0"
MOST_REGISTERS = 128
OF_A_KIND = ("sm_80", "sm_100")
"""Compiled as sm_90 is, and half a minute together."""


def uninterpreted(code: list[str], folder: Path) -> str:
    """What Python prints, with Triton as a compiler and a cache of its own."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(folder), "PYTHONWARNINGS": "ignore"}
    ran = subprocess.run(
        [sys.executable, *code],
        cwd=ROOT,
        env=environment,
        check=False,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr[-4000:]
    return ran.stdout


@pytest.fixture(
    scope="module",
    params=[pytest.param(one, marks=[pytest.mark.long] * (one in OF_A_KIND)) for one in TARGETS],
)
def report(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("triton")
    found = json.loads(
        uninterpreted(["-m", "tests.benchmarks.triton_compile", "--json", request.param], folder)
    )
    assert found["triton"] == TRITON, (
        f"These figures were taken with Triton {TRITON}, this is {found['triton']}. Install the"
        " pinned version (uv.lock), or look at `python -m tests.benchmarks.triton_compile` and"
        " raise the pin here."
    )
    return found["compiled"]


def test_every_kernel_compiles_for_every_target(report: Any) -> None:
    assert len(report) == len(READING) * len(LOGITS_TYPES) + len(KERNELS) - len(READING)


def test_no_kernel_spills_a_register(report: Any) -> None:
    assert [one for one in report if one["spills"] != 0] == []


def test_four_programs_share_a_processor(report: Any) -> None:
    assert [one for one in report if not 0 < one["registers"] <= MOST_REGISTERS] == []


def test_kernels_compile_for_sizes_one(tmp_path: Path) -> None:
    """Triton makes a constant of an argument that is 1."""
    code = (
        "from tests.benchmarks.triton_compile import compile_kernel\nfor kernel in ('moments',"
        " 'gradient'): print(compile_kernel(kernel, 'bf16', 'sm_90', ones=True).registers)"
    )
    assert [int(line) > 0 for line in uninterpreted(["-c", code], tmp_path).split()] == [True, True]
