"""What attaching the probe adds to a training step, against the same step that computes log-prob and H plainly."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import isentrope
from isentrope.transport.transport import InMemoryTransport
from tests.benchmarks.interleaved import median_seconds
from tests.benchmarks.token_scores import plain_logprob_and_entropy

TOKENS, WIDTH, VOCABULARY = 2048, 256, 32768


def measure(rounds: int = 7) -> list[str]:
    """Rows of a Markdown table: forward, backward and update of one wide head, in multiples of the plain step."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    policy = nn.Linear(WIDTH, VOCABULARY, bias=False)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-5)
    hidden, token_ids = torch.randn(TOKENS, WIDTH), torch.randint(0, VOCABULARY, (TOKENS,))
    advantages = torch.randn(TOKENS)
    probe = isentrope.Probe("benchmark", transport=InMemoryTransport())

    def update(logprobs: Tensor) -> None:
        optimizer.zero_grad()
        (-(logprobs * advantages).mean()).backward()
        optimizer.step()

    def plain() -> None:
        logprobs, _ = plain_logprob_and_entropy(policy(hidden), token_ids)
        update(logprobs.squeeze(-1))

    def probed() -> None:
        update(probe.gate(probe.score(policy(hidden), token_ids), advantages))
        probe.step(0, optimizer)

    seconds = median_seconds({"plain": plain, "probed": probed}, rounds)
    ratio = seconds["probed"] / seconds["plain"]
    return [
        "| step | plain log-prob + H | with the probe |",
        "|---|---|---|",
        f"| {TOKENS} tokens × {VOCABULARY} logits | {seconds['plain'] * 1e3:.0f} ms | {ratio:.2f} × |",
    ]
