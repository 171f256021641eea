"""Run the benchmarks and print their Markdown tables: `make bench`, or `make bench
ARGS="token_scores trl_step"`."""

from __future__ import annotations

import os
import platform
import sys
from types import ModuleType

# Torch's threads sleep while they wait; the GPU's and the Triton compiler's benchmarks have
# commands of their own.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch

from tests.benchmarks import (
    collapse_and_cure,
    coupled_update,
    delivery,
    numerics,
    observed_step,
    token_scores,
    trl_step,
)

_OF_COST = (token_scores, observed_step, coupled_update, trl_step, numerics, delivery)
_OF_QUALITY = (collapse_and_cure,)
BENCHMARKS: dict[str, ModuleType] = {
    module.__name__.rpartition(".")[2]: module for module in (*_OF_COST, *_OF_QUALITY)
}


def main(names: list[str]) -> None:
    if unknown := set(names) - set(BENCHMARKS):
        sys.exit(
            f"No benchmark is called {', '.join(sorted(unknown))}. There are"
            f" {', '.join(BENCHMARKS)}."
        )
    capability = torch.backends.cpu.get_cpu_capability()
    print(
        f"torch {torch.__version__}, one thread, {platform.machine()}, CPU capability {capability}"
    )
    for name in names or BENCHMARKS:
        print(f"\n### {name}\n\n{BENCHMARKS[name].__doc__}\n")
        print("\n".join(BENCHMARKS[name].measure()), flush=True)


main(sys.argv[1:])
