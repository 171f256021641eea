"""What an observed step costs the loop beside the score kernel: `gate`, `log` and `step`, on one
core.

Steps are paced, so that caches are as cold as a training step leaves them. Operations counts torch
operations except views; on an accelerator each is a launch. With groups and token ids, as the TRL
integration passes them. Packed: as many tokens in sequences of log-normal lengths, end to end."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from itertools import accumulate
from unittest.mock import patch

import torch

import isentrope
from isentrope.scores import TokenScores, each_field, token_scores
from tests.probe.test_step_cost import Operations

SIZES = ((32, 128), (256, 512))
PACKED_TOKENS, MEDIAN_LENGTH, SPREAD = 1 << 16, 180.0, 1.4
"""Lengths are exp(N(log median, spread^2)): the longest are some forty times the median."""
VOCABULARY, GROUP, STEPS, PAUSE_SECONDS = 64, 8, 40, 0.02


def some_scores(rows: int, tokens: int) -> TokenScores:
    torch.manual_seed(0)
    logits = 2 * torch.randn(rows, tokens, VOCABULARY)
    token_ids = torch.distributions.Categorical(logits=logits).sample()
    return token_scores(logits.requires_grad_(), token_ids)


class Steps:
    """Observed steps of the same tokens."""

    def __init__(self, rows: int, tokens: int) -> None:
        self._scores = some_scores(rows, tokens)
        self._advantages, self._mask = torch.randn(rows), torch.rand(rows, tokens) < 0.9
        self._probe = isentrope.Probe("benchmark", mode="offline")
        self._number = 0

    def one(self) -> None:
        self._probe.gate(self._scores, self._advantages, self._mask, groups=GROUP)
        self._probe.log({"reward/mean": 0.5})
        self._probe.step(self._number)
        self._number += 1

    def milliseconds(self) -> list[float]:
        """CPU time of each of some steps on this thread."""
        found = []
        for _ in range(STEPS):
            time.sleep(PAUSE_SECONDS)
            started = time.thread_time()
            self.one()
            found.append((time.thread_time() - started) * 1e3)
        return found[5:]

    def operations(self) -> int:
        """Of one step."""
        operations = Operations()
        with operations:
            self.one()
        return len(operations.names)

    def finish(self) -> None:
        self._probe.finish()


def log_normal_lengths() -> list[int]:
    """Lengths that add up to PACKED_TOKENS."""
    g, lengths = torch.Generator().manual_seed(0), list[int]()
    while sum(lengths) < PACKED_TOKENS:
        drawn = torch.randn((), generator=g) * SPREAD + torch.tensor(MEDIAN_LENGTH).log()
        lengths.append(min(max(int(drawn.exp()), 1), PACKED_TOKENS - sum(lengths)))
    return lengths


class PackedSteps(Steps):
    """The same of sequences laid end to end."""

    def __init__(self) -> None:
        super().__init__(1, PACKED_TOKENS)
        lengths = log_normal_lengths()
        self._scores = each_field(self._scores, lambda field: field.reshape(-1))
        self._advantages, self._mask = torch.randn(len(lengths)), self._mask.reshape(-1)
        self._bounds = [0, *accumulate(lengths)]

    def one(self) -> None:
        self._probe.gate(self._scores, self._advantages, self._mask, cu_seqlens=self._bounds)
        self._probe.log({"reward/mean": 0.5})
        self._probe.step(self._number)
        self._number += 1


def measure() -> list[str]:
    """Rows of Markdown tables."""
    torch.set_num_threads(1)
    rows = ["| tokens of a step | CPU ms, p50 | p99 | torch operations |", "|---|---|---|---|"]
    with tempfile.TemporaryDirectory() as home, patch.dict(os.environ, {"ISENTROPE_HOME": home}):
        shapes = {f"{rows * tokens}": Steps(rows, tokens) for rows, tokens in SIZES}
        for name, steps in {**shapes, f"{PACKED_TOKENS}, packed": PackedSteps()}.items():
            milliseconds = sorted(steps.milliseconds())
            p99 = milliseconds[round(0.99 * (len(milliseconds) - 1))]
            rows.append(
                f"| {name} | {statistics.median(milliseconds):.2f} | {p99:.2f} |"
                f" {steps.operations()} |"
            )
            steps.finish()
    return rows
