"""Run every benchmark and print its Markdown table: `make bench`."""

from __future__ import annotations

import platform

import torch

from tests.benchmarks import probe_share, token_scores


def main() -> None:
    print(
        f"torch {torch.__version__}, one thread, {platform.machine()}, CPU capability {torch.backends.cpu.get_cpu_capability()}"
    )
    for benchmark in (token_scores, probe_share):
        print(f"\n### {benchmark.__name__.split('.')[-1]}\n\n{benchmark.__doc__}\n")
        print("\n".join(benchmark.measure()))


main()
