"""What the Triton kernels compile to, for GPUs that need not be there: `python -m
tests.benchmarks.triton_compile`.

For every kernel and target: registers a thread, and spilled registers. Each kernel is compiled as
it is launched for a vocabulary that is a multiple of 16, with the compilers that Triton brings
along; nothing is run, and TRITON_INTERPRET must not be set.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from isentrope.kernels import triton_backend, triton_kernels

TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "sm_100": GPUTarget("cuda", 100, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
LOGITS_TYPES = ("fp32", "bf16", "fp16")
READING = ("moments", "moments, squared", "gradient")
"""The kernels that read logits: compiled for each of their types."""
KERNELS = {
    "moments": triton_kernels.moments_kernel,
    "moments, squared": triton_kernels.moments_kernel,
    "gradient": triton_kernels.gradient_kernel,
    "merge": triton_kernels.merge_kernel,
    "merge, squared": triton_kernels.merge_kernel,
    "finish": triton_kernels.finish_kernel,
    "finish, squared": triton_kernels.finish_kernel,
}
"""Those of a loss with an entropy term, whose entropies carry gradient, are called squared."""
SPLITS = 8

TYPES = {
    "token_ids_ptr": "*i64",
    "moments_ptr": "*fp64",
    "merged_ptr": "*fp64",
    "scores_ptr": "*fp64",
    "log_normalizer_ptr": "*fp64",
    "logprob_gradient_ptr": "*fp32",
    "entropy_gradient_ptr": "*fp32",
    "entropies_ptr": "*fp64",
    "temperatures_ptr": "*fp64",
    "exponent_scale": "fp32",
    "floor": "fp32",
    "temperature": "fp32",
    "inverse_temperature": "fp32",
    "inverse_temperature_rest": "fp32",
    "outer_stride": "i64",
    "inner_stride": "i64",
    "offset_storage": "i64",
}
"""Of the kernels' arguments; the rest are 32-bit integers and what points to logits."""

MULTIPLES_OF_16 = ("columns", "outer_stride", "inner_stride", "offset_storage")
"""Beside every pointer."""


@dataclass(frozen=True)
class Compiled:
    """What one kernel became."""

    kernel: str
    logits_type: str
    target: str
    registers: int
    spills: int


def nvidia_registers_and_spills(cubin: bytes) -> tuple[int, int]:
    """Of a program for an NVIDIA GPU, taken apart by the cuobjdump that Triton brings along."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        Path(file.name).write_bytes(cubin)
        listing, usage = (_cuobjdump(option, file.name) for option in ("-sass", "-res-usage"))
    registers = re.search(r"REG:(\d+)", usage)
    assert registers, usage
    return int(registers[1]), len(re.findall(r"\b(?:LDL|STL)\b", listing))


def _cuobjdump(option: str, path: str) -> str:
    program = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    return subprocess.run(
        [program, option, path], capture_output=True, text=True, check=True
    ).stdout


def amd_registers_and_spills(text: str) -> tuple[int, int]:
    """Of a program for an AMD GPU: the counts in its assembly's metadata. Scalars that spill go to
    vector registers."""
    counts = {name: int(count) for name, count in re.findall(r"\.(\w+_count):\s*(\d+)", text)}
    return counts["vgpr_count"] + counts["agpr_count"], counts["vgpr_spill_count"]


def compile_kernel(kernel: str, logits_type: str, target: str, ones: bool = False) -> Compiled:
    """Compile one of KERNELS for a type of logits and one of TARGETS, as it is launched there.

    Args:
        ones: vocabulary and strides are 1, of which Triton makes constants; otherwise they are
            multiples of 16.
    """
    function = KERNELS[kernel]
    names = function.arg_names
    constants = _constants(kernel, target) | (dict.fromkeys(MULTIPLES_OF_16, 1) if ones else {})
    signature = {
        name: "constexpr" if name in constants else _type_of(name, logits_type) for name in names
    }
    aligned = [
        name for name in names if name.endswith("_ptr") or (name in MULTIPLES_OF_16 and not ones)
    ]
    source = ASTSource(
        function,
        signature,
        constexprs={(names.index(name),): value for name, value in constants.items()},
        attrs={(names.index(name),): [["tt.divisibility", 16]] for name in aligned},
    )
    options = {"num_warps": triton_backend.WARPS, "enable_fp_fusion": True}
    asm: Any = triton.compile(source, target=TARGETS[target], options=options).asm
    found = (
        nvidia_registers_and_spills(asm["cubin"])
        if "cubin" in asm
        else amd_registers_and_spills(asm["amdgcn"])
    )
    return Compiled(kernel, logits_type, target, *found)


def _type_of(argument: str, logits_type: str) -> str:
    if argument == "words_ptr":
        return "*fp32" if logits_type == "fp32" else "*i32"
    if argument in ("logits_ptr", "gradient_ptr"):
        return "*" + logits_type
    return TYPES.get(argument, "i32")


def _constants(kernel: str, target: str) -> dict[str, Any]:
    squared = kernel.endswith("squared")
    if kernel.startswith("moments"):
        return {
            "PER_ROW": False,
            "SQUARED": squared,
            "GROUPS": triton_backend.GROUPS,
            "THREADS": triton_backend.threads_of(TARGETS[target].warp_size),
        }
    if kernel == "gradient":
        return {
            "PER_ROW": False,
            "HAS_LOGPROB": True,
            "HAS_ENTROPY": True,
            "BLOCK": triton_backend.GRADIENT_BLOCK,
            "BLOCKS": triton_backend.GRADIENT_BLOCKS,
        }
    return {"SQUARED": squared, "SPLITS": SPLITS, "ROWS": triton_backend.ROWS_PER_PROGRAM}


def compile_all(targets: tuple[str, ...]) -> Iterator[Compiled]:
    """Every kernel for every target, and for every type of logits where it reads them."""
    for target in targets:
        for kernel in KERNELS:
            for logits_type in LOGITS_TYPES if kernel in READING else ("-",):
                yield compile_kernel(kernel, logits_type, target)


def table(compiled: list[Compiled]) -> list[str]:
    """Rows of a Markdown table."""
    return [
        "| kernel | logits | target | registers | spills |",
        "|---|---|---|---|---|",
        *(f"| {' | '.join(map(str, astuple(one)))} |" for one in compiled),
    ]


if __name__ == "__main__":
    everything = list(compile_all(tuple(sys.argv[2:]) or tuple(TARGETS)))
    if sys.argv[1:2] == ["--json"]:
        print(
            json.dumps(
                {"triton": triton.__version__, "compiled": [asdict(one) for one in everything]}
            )
        )
    else:
        print(f"Triton {triton.__version__}\n\n" + "\n".join(table(everything)))
