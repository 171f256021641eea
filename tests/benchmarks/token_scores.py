"""Five quantities from one pass, against one read of the logits and against the formulas written down plainly."""

from __future__ import annotations

import torch
from torch import Tensor

from isentrope.scores import token_scores
from tests.benchmarks.interleaved import median_seconds

SHAPES = [(512, 151936, torch.float32), (1024, 50257, torch.float32), (1024, 50257, torch.bfloat16)]


def plain_logprob_and_entropy(logits: Tensor, token_ids: Tensor) -> tuple[Tensor, Tensor]:
    """Two quantities, as loops usually compute them."""
    logprobs = logits.float().log_softmax(-1)
    return logprobs.gather(-1, token_ids.unsqueeze(-1)), -(logprobs.exp() * logprobs).sum(-1)


def plain_scores(logits: Tensor, token_ids: Tensor) -> tuple[Tensor, ...]:
    """The five quantities `token_scores` returns."""
    logprobs = logits.float().log_softmax(-1)
    p = logprobs.exp()
    entropies = -(p * logprobs).sum(-1, keepdim=True)
    every_score = p * (entropies + logprobs)
    expected = (p * every_score).sum(-1)
    chosen = every_score.gather(-1, token_ids.unsqueeze(-1)).squeeze(-1)
    return logprobs.gather(-1, token_ids.unsqueeze(-1)), entropies, chosen, expected, chosen - expected


def measure(rounds: int = 5) -> list[str]:
    """Rows of a Markdown table, times as multiples of one read."""
    torch.set_num_threads(1)
    rows = [
        "| logits | one read | log-prob + H, plainly (2 quantities) | S*, S_c plainly (5) | `token_scores` (5) |",
        "|---|---|---|---|---|",
    ]
    for tokens, vocabulary, dtype in SHAPES:
        generator = torch.Generator().manual_seed(0)
        logits = (torch.randn(tokens, vocabulary, generator=generator) * 3).to(dtype)
        token_ids = torch.randint(0, vocabulary, (tokens,), generator=generator)
        seconds = median_seconds(
            {
                "read": lambda z=logits: z.sum(),  # type: ignore[misc]
                "two": lambda z=logits, k=token_ids: plain_logprob_and_entropy(z, k),  # type: ignore[misc]
                "five": lambda z=logits, k=token_ids: plain_scores(z, k),  # type: ignore[misc]
                "ours": lambda z=logits, k=token_ids: token_scores(z, k),  # type: ignore[misc]
            },
            rounds,
        )
        ratios = " | ".join(f"{seconds[name] / seconds['read']:.1f} ×" for name in ("two", "five", "ours"))
        name = str(dtype).removeprefix("torch.")
        rows.append(f"| {tokens} × {vocabulary} {name} | {seconds['read'] * 1e3:.0f} ms | {ratios} |")
    return rows
