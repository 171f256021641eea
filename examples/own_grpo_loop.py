"""GRPO from scratch in plain torch: a small policy learns to write vowels, and Isentrope watches.

    python examples/own_grpo_loop.py --steps 100

The lines with `probe` are what you add to a loop of your own. Without a server the reports wait on
disk; start one with `isentrope up` to see the page.
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn

import isentrope

LETTERS = "abcdefghijklmnopqrstuvwxyz"
VOWELS = torch.tensor([letter in "aeiou" for letter in LETTERS])
GROUPS, COMPLETIONS, LENGTH = 16, 8, 12
"""Prompts of a step, completions of each, letters of a completion."""


class Policy(nn.Module):
    """Reads letters, answers with the logits of the next one."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.embedding = nn.Embedding(len(LETTERS), width)
        self.recurrent = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, len(LETTERS))

    def forward(self, ids: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        hidden, state = self.recurrent(self.embedding(ids), state)
        return self.head(hidden), state

    @torch.no_grad()
    def sample(self, prompts: Tensor) -> Tensor:
        """Letters after each prompt of one letter: [sequences, 1 + LENGTH]."""
        ids, state = [prompts], None
        for _ in range(LENGTH):
            logits, state = self(ids[-1], state)
            ids.append(torch.distributions.Categorical(logits=logits[:, -1]).sample()[:, None])
        return torch.cat(ids, dim=1)


def advantages_of(rewards: Tensor) -> Tensor:
    """GRPO: each reward against its group's mean, in its group's standard deviations."""
    groups = rewards.view(GROUPS, COMPLETIONS)
    centred = groups - groups.mean(dim=1, keepdim=True)
    return (centred / (groups.std(dim=1, keepdim=True) + 1e-4)).flatten()


def train(
    steps: int = 100,
    learning_rate: float = 2e-3,
    seed: int = 0,
    name: str = "vowels",
    **settings: object,
) -> isentrope.Probe:
    """Train for some steps. `settings` go to the probe, such as `hold="75%"`."""
    torch.manual_seed(seed)
    policy = Policy()
    optimizer = torch.optim.Adam(policy.parameters(), lr=learning_rate)
    config = {"learning_rate": learning_rate, "seed": seed}
    probe = isentrope.Probe(name, "examples", config, planned_steps=steps, **settings)
    for step in range(1, steps + 1):
        prompts = torch.randint(len(LETTERS), (GROUPS, 1)).repeat_interleave(COMPLETIONS, dim=0)
        ids = policy.sample(prompts)
        completions = ids[:, 1:]
        rewards = VOWELS[completions].float().mean(dim=1)
        advantages = advantages_of(rewards)[:, None].expand(-1, LENGTH)
        mask = torch.ones_like(completions, dtype=torch.bool)

        # Row t of the logits is the distribution that letter t + 1 was drawn from.
        scores = probe.score(policy(ids[:, :-1])[0], completions)
        logprobs = probe.gate(scores, advantages, mask)
        ratio = torch.exp(logprobs - logprobs.detach())
        loss = -(ratio * advantages)[mask].mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

        probe.log({"reward/mean": rewards.mean(), "loss": loss})
        # The same letters once more: what the update did to their entropy.
        probe.step(
            step,
            optimizer,
            rescore=lambda ids=ids: probe.score(policy(ids[:, :-1])[0], ids[:, 1:]),
        )
    probe.finish()
    return probe


def main() -> None:
    parser = argparse.ArgumentParser(description="GRPO from scratch, watched by Isentrope.")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    probe = train(arguments.steps, arguments.learning_rate, arguments.seed)
    print(f"run: {probe.run_id}")
    print(probe.show())


if __name__ == "__main__":
    main()
