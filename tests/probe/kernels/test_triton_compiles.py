"""What the Triton kernels compile to for GPUs that are not there: no spills, few registers, few instructions a logit.

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

from tests.benchmarks.triton_compile import KERNELS, LOGITS_TYPES, READING, TARGETS, Assembly, gcn_of

ROOT = Path(__file__).parents[3]
TRITON = "3.9.0"
MOST_REGISTERS = 128
MOST_INSTRUCTIONS_PER_LOGIT = {"moments": 15, "moments, squared": 16}


def uninterpreted(code: list[str], folder: Path) -> str:
    """What Python prints, with Triton as a compiler and a cache of its own."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(folder), "PYTHONWARNINGS": "ignore"}
    ran = subprocess.run(
        [sys.executable, *code], cwd=ROOT, env=environment, check=False, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr[-4000:]
    return ran.stdout


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("triton")
    found = json.loads(uninterpreted(["-m", "tests.benchmarks.triton_compile", "--json"], folder))
    assert found["triton"] == TRITON, (
        f"These figures were taken with Triton {TRITON}, this is {found['triton']}. Install the pinned version "
        f"(uv.lock), or look at `python -m tests.benchmarks.triton_compile` and raise the pin here."
    )
    return found["compiled"]


@pytest.mark.slow
def test_every_kernel_compiles_for_every_target(report: Any) -> None:
    rest = len(KERNELS) - len(READING)
    assert len(report) == len(TARGETS) * (len(READING) * len(LOGITS_TYPES) + rest)


@pytest.mark.slow
def test_no_kernel_spills_a_register(report: Any) -> None:
    assert [one for one in report if one["spills"] != 0] == []


@pytest.mark.slow
def test_four_programs_share_a_processor(report: Any) -> None:
    assert [one for one in report if not 0 < one["registers"] <= MOST_REGISTERS] == []


@pytest.mark.slow
def test_moments_take_few_instructions(report: Any) -> None:
    moments = [one for one in report if one["kernel"] in MOST_INSTRUCTIONS_PER_LOGIT]
    assert len(moments) == 2 * len(TARGETS) * len(LOGITS_TYPES)
    most = MOST_INSTRUCTIONS_PER_LOGIT
    assert [one for one in moments if not 5 < one["instructions_per_logit"] <= most[one["kernel"]]] == []


@pytest.mark.slow
def test_odd_vocabulary_costs_no_instruction(report: Any, tmp_path: Path) -> None:
    code = (
        "from tests.benchmarks.triton_compile import compile_kernel\n"
        "for target in ('sm_90', 'gfx942'): print(compile_kernel('moments', 'bf16', target, odd=True).instructions_per_logit)"
    )
    odd = [float(line) for line in uninterpreted(["-c", code], tmp_path).split()]
    even = [
        one["instructions_per_logit"]
        for one in report
        if one["kernel"] == "moments" and one["logits_type"] == "bf16" and one["target"] in ("sm_90", "gfx942")
    ]
    assert odd == even


@pytest.mark.slow
def test_kernels_compile_for_sizes_one(tmp_path: Path) -> None:
    """Triton makes a constant of an argument that is 1."""
    code = (
        "from tests.benchmarks.triton_compile import KERNELS, assembly_of\n"
        "for kernel in ('moments', 'gradient'): print(len(assembly_of(kernel, 'bf16', 'sm_90', ones=True).instructions))"
    )
    assert [int(line) > 100 for line in uninterpreted(["-c", code], tmp_path).split()] == [True, True]


def test_instructions_count_along_shortest_cycle() -> None:
    listing = """
	s_mov_b32 s0, 0
.LBB0_1:                                ; the loop
	v_exp_f32_e32 v0, v0
	v_exp_f32_e32 v1, v1
	s_cbranch_execz .LBB0_2             ; most of the time
	v_mul_f32_e32 v2, v2, v2
	v_exp_f32_e32 v2, v2
.LBB0_2:
	v_add_f32_e32 v0, v0, v1
	s_cbranch_scc1 .LBB0_1
	s_endpgm
	.section	.AMDGPU.metadata
    .agpr_count:     2
    .vgpr_count:     30
    .sgpr_spill_count: 1
    .vgpr_spill_count: 4
"""
    assembly = gcn_of(listing)
    assert (assembly.registers, assembly.spills) == (32, 5)
    assert sorted(assembly.shortest_cycle(2)) == [
        "s_cbranch_execz .LBB0_2",
        "s_cbranch_scc1 .LBB0_1",
        "v_add_f32_e32 v0, v0, v1",
        "v_exp_f32_e32 v0, v0",
        "v_exp_f32_e32 v1, v1",
    ]
    assert len(assembly.shortest_cycle(3)) == 7
    with pytest.raises(AssertionError, match="no loop with 4 exponentials"):
        Assembly(assembly.instructions, assembly.targets, 32, 0).shortest_cycle(4)
