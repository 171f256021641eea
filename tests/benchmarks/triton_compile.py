"""What the Triton kernels compile to, for GPUs that need not be there: `python -m tests.benchmarks.triton_compile`.

For every kernel and target: registers a thread, spilled registers, and the instructions it takes to handle a logit.
Each kernel is compiled as it is launched for a vocabulary that is a multiple of 16, with the compilers that Triton
brings along; nothing is run, and TRITON_INTERPRET must not be set. Instructions are those of the shortest way around
the loop: the moments kernel's leaves out the rescaling of its sums, which happens only where a block holds a new
maximum. One instruction of an AMD GPU may handle two logits.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass
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
    instructions_per_logit: float | None
    """Around the loop of a moments kernel; all of the gradient kernel, which has none; None for the rest."""


@dataclass(frozen=True)
class Assembly:
    """A program for some processor, as far as it matters here."""

    instructions: list[str]
    targets: dict[int, int]
    """From the place of a branch in `instructions` to where it leads."""
    registers: int
    spills: int

    def shortest_cycle(self, exponentials: int) -> list[str]:
        """The instructions of the shortest way around a loop that takes at least so many exponentials."""
        cycles = [
            cycle
            for place, instruction in enumerate(self.instructions)
            if is_exponential(instruction) and (cycle := self._cycle_through(place))
        ]
        long_enough = [cycle for cycle in cycles if sum(map(is_exponential, cycle)) >= exponentials]
        assert long_enough, f"no loop with {exponentials} exponentials among {len(cycles)} ways around"
        return min(long_enough, key=len)

    def _cycle_through(self, place: int) -> list[str]:
        """Breadth first, every instruction one step; empty where no way leads back."""
        came_from: dict[int, int] = {}
        waiting = deque([place])
        while waiting:
            here = waiting.popleft()
            for there in self._successors(here):
                if there == place:
                    path = [here]
                    while path[-1] != place:
                        path.append(came_from[path[-1]])
                    return [self.instructions[step] for step in reversed(path)]
                if there not in came_from:
                    came_from[there] = here
                    waiting.append(there)
        return []

    def _successors(self, place: int) -> list[int]:
        instruction = self.instructions[place]
        target = self.targets.get(place)
        following = [] if place + 1 >= len(self.instructions) or ends_here(instruction) else [place + 1]
        if target is None:
            return following
        return [target] if is_unconditional(instruction) else [*following, target]


def is_exponential(instruction: str) -> bool:
    return "MUFU.EX2" in instruction or instruction.startswith("v_exp_f32")


def is_unconditional(instruction: str) -> bool:
    return instruction.startswith("s_branch") or re.fullmatch(r"BRA(\.U)? 0x[0-9a-f]+", instruction) is not None


def ends_here(instruction: str) -> bool:
    return instruction.startswith(("s_endpgm", "EXIT", "RET"))


def sass_of(cubin: bytes) -> Assembly:
    """What an NVIDIA GPU runs, taken apart by the cuobjdump that Triton brings along."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        Path(file.name).write_bytes(cubin)
        listing, usage = (_cuobjdump(option, file.name) for option in ("-sass", "-res-usage"))
    lines = re.findall(r"/\*([0-9a-f]{4,})\*/\s+(.*?)\s*;", listing)
    instructions = [" ".join(text.split()) for _, text in lines]
    place_of = {int(address, 16): place for place, (address, _) in enumerate(lines)}
    targets = {
        place: place_of[int(found[1], 16)]
        for place, text in enumerate(instructions)
        if (found := re.search(r"\bBRA\b.*?0x([0-9a-f]+)", text))
    }
    spills = sum(re.search(r"\b(LDL|STL)\b", text) is not None for text in instructions)
    registers = re.search(r"REG:(\d+)", usage)
    assert registers, usage
    return Assembly(instructions, targets, int(registers[1]), spills)


def _cuobjdump(option: str, path: str) -> str:
    program = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    return subprocess.run([program, option, path], capture_output=True, text=True, check=True).stdout


def gcn_of(text: str) -> Assembly:
    """What an AMD GPU runs: the assembly text with its labels, and the counts in its metadata."""
    instructions: list[str] = []
    places: dict[str, int] = {}
    for line in text.split(".section")[0].splitlines():
        code = line.split(";")[0].strip()
        if label := re.fullmatch(r"(\.LBB\w+):", code):
            places[label[1]] = len(instructions)
        elif code and line[0] in "\t " and not code.startswith("."):
            instructions.append(code)
    targets = {
        place: places[found[1]]
        for place, code in enumerate(instructions)
        if (found := re.match(r"s_c?branch\w*\s+(\.LBB\w+)", code))
    }
    counts = {name: int(count) for name, count in re.findall(r"\.(\w+_count):\s*(\d+)", text)}
    spills = counts["vgpr_spill_count"] + counts["sgpr_spill_count"]
    return Assembly(instructions, targets, counts["vgpr_count"] + counts["agpr_count"], spills)


def compile_kernel(kernel: str, logits_type: str, target: str, odd: bool = False) -> Compiled:
    """Compile one of KERNELS for a type of logits and one of TARGETS, as it is launched there."""
    assembly = assembly_of(kernel, logits_type, target, odd)
    threads = triton_backend.WARPS * TARGETS[target].warp_size
    per_logit = None
    if kernel.startswith("moments"):
        cycle = assembly.shortest_cycle(_block(target) // threads)
        per_logit = len(cycle) / sum(map(is_exponential, cycle))
    elif kernel == "gradient":
        per_logit = len(assembly.instructions) * threads / triton_backend.GRADIENT_BLOCK
    return Compiled(kernel, logits_type, target, assembly.registers, assembly.spills, per_logit)


def assembly_of(kernel: str, logits_type: str, target: str, odd: bool = False, ones: bool = False) -> Assembly:
    """With a vocabulary and strides that are `odd`, or all `ones`, which Triton makes constants of."""
    function = KERNELS[kernel]
    names = function.arg_names
    constants = _constants(kernel, target) | (dict.fromkeys(MULTIPLES_OF_16, 1) if ones else {})
    signature = {name: "constexpr" if name in constants else _type_of(name, logits_type) for name in names}
    aligned = [name for name in names if name.endswith("_ptr") or (name in MULTIPLES_OF_16 and not odd and not ones)]
    source = ASTSource(
        function,
        signature,
        constexprs={(names.index(name),): value for name, value in constants.items()},
        attrs={(names.index(name),): [["tt.divisibility", 16]] for name in aligned},
    )
    options = {"num_warps": triton_backend.WARPS, "enable_fp_fusion": True}
    asm: Any = triton.compile(source, target=TARGETS[target], options=options).asm
    return sass_of(asm["cubin"]) if "cubin" in asm else gcn_of(asm["amdgcn"])


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
            "LANES": _block(target) // (2 * triton_backend.GROUPS),
        }
    if kernel == "gradient":
        return {"PER_ROW": False, "HAS_LOGPROB": True, "HAS_ENTROPY": True, "BLOCK": triton_backend.GRADIENT_BLOCK}
    return {"SQUARED": squared, "SPLITS": SPLITS, "ROWS": triton_backend.ROWS_PER_PROGRAM}


def _block(target: str) -> int:
    return 2 * triton_backend.GROUPS * triton_backend.lanes_of(TARGETS[target].warp_size)


def compile_all(targets: tuple[str, ...] = tuple(TARGETS)) -> Iterator[Compiled]:
    """Every kernel for every target, and for every type of logits where it reads them."""
    for target in targets:
        for kernel in KERNELS:
            for logits_type in LOGITS_TYPES if kernel in READING else ("-",):
                yield compile_kernel(kernel, logits_type, target)


def table(compiled: list[Compiled]) -> list[str]:
    """Rows of a Markdown table."""
    rows = ["| kernel | logits | target | registers | spills | instructions per logit |", "|---|---|---|---|---|---|"]
    for one in compiled:
        per_logit = "" if one.instructions_per_logit is None else f"{one.instructions_per_logit:.1f}"
        rows.append(
            f"| {one.kernel} | {one.logits_type} | {one.target} | {one.registers} | {one.spills} | {per_logit} |"
        )
    return rows


if __name__ == "__main__":
    everything = list(compile_all())
    if sys.argv[1:] == ["--json"]:
        print(json.dumps({"triton": triton.__version__, "compiled": [asdict(one) for one in everything]}))
    else:
        print(f"Triton {triton.__version__}\n\n" + "\n".join(table(everything)))
