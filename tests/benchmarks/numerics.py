"""Log-prob and entropy of ours and of peers against float64, side by side: the table of
docs/numerics.md.

Largest absolute error in nats over 64 tokens drawn from the distribution, vocabulary 32 000.
`python -m tests.benchmarks.numerics` prints it.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from tests.benchmarks import token_scores
from tests.benchmarks.token_scores import (
    plain_logprob_and_entropy,
    trl_logprob_and_entropy,
    verl_style_logprob_and_entropy,
)
from tests.probe.scores.reference64 import scores64

TOKENS, VOCABULARY = 64, 32_000


def ours(backend: str) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
    def run(logits: Tensor, token_ids: Tensor) -> tuple[Tensor, Tensor]:
        scores = token_scores.ours(backend)(logits, token_ids)
        return scores.logprobs, scores.entropies

    return run


CANDIDATES: dict[str, Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]] = {
    "plain log-softmax in float32": plain_logprob_and_entropy,
    "verl-style": verl_style_logprob_and_entropy,
    "TRL 1.16": trl_logprob_and_entropy,
    "ours, reference": ours("reference"),
    "ours, C++": ours("cpp"),
}


def cases() -> dict[str, Tensor]:
    """Logits by the name of what is hard about them."""
    generator = torch.Generator().manual_seed(0)
    normal = torch.randn(TOKENS, VOCABULARY, generator=generator)
    scattered = torch.rand(normal.shape, generator=generator) < 0.3
    first_masked = (normal * 3).clone()
    first_masked[:, :1024] = -math.inf
    nearly_certain = torch.full((TOKENS, VOCABULARY), -math.inf)
    nearly_certain[:, 0], nearly_certain[:, 1] = 0.0, math.log(5e-10)
    return {
        "N(0, 9), float32": normal * 3,
        "N(0, 100), float32": normal * 10,
        "N(0, 9), bfloat16": (normal * 3).bfloat16(),
        "N(0, 9), float16": (normal * 3).half(),
        "N(0, 9) + 10 000, float32": normal * 3 + 1e4,
        "30 % of the logits -inf": (normal * 3).masked_fill(scattered, -math.inf),
        "first 1 024 logits -inf": first_masked,
        "p_max = 1 - 5e-10": nearly_certain,
    }


def largest_error(got: Tensor, expected: Tensor) -> str:
    got = got.double().reshape(expected.shape)
    broken = int(got.isnan().sum())
    return (
        f"NaN in {broken} of {TOKENS}" if broken else f"{(got - expected).abs().max().item():.0e}"
    )


def measure() -> list[str]:
    """Rows of a Markdown table: error of log p, then of H."""
    names = list(CANDIDATES)
    rows = ["| logits | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    for case, logits in cases().items():
        draws = torch.Generator().manual_seed(1)
        token_ids = logits.double().softmax(-1).multinomial(1, generator=draws).squeeze(-1)
        exact = scores64(logits, token_ids)
        expected = exact["logprobs"], exact["entropies"]
        cells = []
        for run in CANDIDATES.values():
            errors = [
                largest_error(got, want)
                for got, want in zip(run(logits, token_ids), expected, strict=True)
            ]
            cells.append(" / ".join(errors))
        rows.append(f"| {case} | " + " | ".join(cells) + " |")
    return rows


if __name__ == "__main__":
    print("\n".join(measure()))
