"""Five quantities from one pass, against one read of the logits and against how loops get them
today.

Forward only, one thread. Times are medians of interleaved runs in multiples of one read
(`z.sum()`); memory is what a call needs on top of the logits, in MiB.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from trl.trainer.utils import entropy_from_logits, selective_log_softmax

from isentrope.scores import token_scores
from tests.benchmarks.measuring import median_seconds, peak_extra_mebibytes

SHAPES = [
    (tokens, vocabulary, dtype)
    for tokens, vocabulary in ((512, 151936), (1024, 50257))
    for dtype in (torch.float32, torch.bfloat16)
]


def trl_logprob_and_entropy(logits: Tensor, token_ids: Tensor) -> tuple[Tensor, Tensor]:
    """Two quantities, as TRL 1.16 takes them from logits."""
    return selective_log_softmax(logits, token_ids), entropy_from_logits(logits)


def verl_style_logprob_and_entropy(logits: Tensor, token_ids: Tensor) -> tuple[Tensor, Tensor]:
    """Two quantities: H = logsumexp z - sum softmax(z) z, over whole tensors."""
    total = logits.logsumexp(-1)
    entropies = total - (logits.softmax(-1) * logits).sum(-1)
    return logits.gather(-1, token_ids.unsqueeze(-1)).squeeze(-1) - total, entropies


def plain_logprob_and_entropy(logits: Tensor, token_ids: Tensor) -> tuple[Tensor, Tensor]:
    """Two quantities, as loops usually compute them."""
    logprobs = logits.float().log_softmax(-1)
    return logprobs.gather(-1, token_ids.unsqueeze(-1)), -(logprobs.exp() * logprobs).sum(-1)


def plain_scores(logits: Tensor, token_ids: Tensor) -> tuple[Tensor, ...]:
    """The five quantities `token_scores` returns, the formulas written down plainly."""
    logprobs = logits.float().log_softmax(-1)
    p = logprobs.exp()
    entropies = -(p * logprobs).sum(-1, keepdim=True)
    every_score = p * (entropies + logprobs)
    expected = (p * every_score).sum(-1)
    chosen = every_score.gather(-1, token_ids.unsqueeze(-1)).squeeze(-1)
    return (
        logprobs.gather(-1, token_ids.unsqueeze(-1)),
        entropies,
        chosen,
        expected,
        chosen - expected,
    )


def ours(backend: str) -> Callable[[Tensor, Tensor], Any]:
    def run(logits: Tensor, token_ids: Tensor) -> object:
        with patch.dict(os.environ, ISENTROPE_KERNELS=backend):
            return token_scores(logits, token_ids)

    return run


CANDIDATES: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "one read": lambda logits, _: logits.sum(),
    "torch.logsumexp (1)": lambda logits, _: logits.logsumexp(-1),
    "TRL 1.16 (2)": trl_logprob_and_entropy,
    "verl-style (2)": verl_style_logprob_and_entropy,
    "plain (5)": plain_scores,
    "ours, reference (5)": ours("reference"),
    "ours, C++ (5)": ours("cpp"),
}
"""In brackets how many quantities come out."""


def measure(rounds: int = 5) -> list[str]:
    """Rows of Markdown tables: times, then memory."""
    torch.set_num_threads(1)
    names = list(CANDIDATES)
    header = ["| logits | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    times, memory = [*header], [*header]
    for tokens, vocabulary, dtype in SHAPES:
        generator = torch.Generator().manual_seed(0)
        logits = (torch.randn(tokens, vocabulary, generator=generator) * 3).to(dtype)
        token_ids = torch.randint(0, vocabulary, (tokens,), generator=generator)
        calls = {name: lambda run=run: run(logits, token_ids) for name, run in CANDIDATES.items()}  # noqa: B023
        seconds = median_seconds(calls, rounds)
        read = seconds["one read"]
        ratios = [f"{read * 1e3:.1f} ms", *(f"{seconds[name] / read:.2f} ×" for name in names[1:])]
        shape = f"{tokens} × {vocabulary} {str(dtype).removeprefix('torch.')}"
        times.append(f"| {shape} | " + " | ".join(ratios) + " |")
        memory.append(
            f"| {shape} | "
            + " | ".join(f"{peak_extra_mebibytes(calls[name]):.1f}" for name in names)
            + " |"
        )
    return [*times, "", "Peak extra memory, MiB:", "", *memory]
