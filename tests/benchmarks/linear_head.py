"""Scores from hidden states [512, 896] and a head [151936, 896], against the bare product in tiles and TRL's chunked head.

Times are multiples of the bare tiled product, forward; the memory is what a call's peak adds to the process, in a
process of its own (backward: the gradients of states and weight included, which every candidate returns).
"""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Callable

import torch
from torch import Tensor
from trl.kernels.chunked_logprob import ChunkedLogProbFunction

from isentrope.scores.linear_token_scores import linear_token_scores
from tests.benchmarks.measuring import median_seconds, peak_extra_mebibytes

TOKENS, WIDTH, VOCABULARY = 512, 896, 151936
TRL_CHUNK = 32768
"""What TRL 1.16's trainers pass."""
DTYPES = (torch.float32, torch.bfloat16)


def inputs(dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.empty(TOKENS, WIDTH, dtype=dtype).normal_(0, 1, generator=generator)
    weight = torch.empty(VOCABULARY, WIDTH, dtype=dtype).normal_(0, 0.05, generator=generator)
    token_ids = torch.randint(0, VOCABULARY, (TOKENS,), generator=generator)
    return hidden.requires_grad_(), weight.requires_grad_(), token_ids


@torch.no_grad()
def bare_product(hidden: Tensor, weight: Tensor, token_ids: Tensor) -> None:
    """Every logit computed once, 4096 tokens of the vocabulary at a time, and nothing done with it."""
    buffer = hidden.new_empty(len(hidden) * 4096)
    for part in weight.split(4096):
        torch.mm(hidden, part.T, out=buffer[: len(hidden) * len(part)].view(len(hidden), len(part)))


def trl_logprobs(hidden: Tensor, weight: Tensor, token_ids: Tensor) -> Tensor:
    """Two quantities: log-prob and entropy."""
    outputs = ("log_probs", "entropy")
    logprobs: Tensor = ChunkedLogProbFunction.apply(
        hidden, weight, None, token_ids, 1.0, TRL_CHUNK, None, 1.0, outputs
    )[0]
    return logprobs


def our_logprobs(hidden: Tensor, weight: Tensor, token_ids: Tensor) -> Tensor:
    """Five quantities."""
    return linear_token_scores(hidden, weight, token_ids).logprobs


def forward_of(score: Callable[..., Tensor]) -> Callable[..., None]:
    @torch.no_grad()
    def forward(hidden: Tensor, weight: Tensor, token_ids: Tensor) -> None:
        score(hidden, weight, token_ids)

    return forward


def backward_of(score: Callable[..., Tensor], head_trained: bool = True) -> Callable[..., None]:
    def forward_and_backward(hidden: Tensor, weight: Tensor, token_ids: Tensor) -> None:
        weight = weight if head_trained else weight.detach()
        torch.autograd.grad(score(hidden, weight, token_ids).sum(), [hidden, weight] if head_trained else [hidden])

    return forward_and_backward


CANDIDATES: dict[str, Callable[..., None]] = {
    "bare tiled product": bare_product,
    "TRL 1.16, forward (2 quantities)": forward_of(trl_logprobs),
    "`linear_token_scores`, forward (5)": forward_of(our_logprobs),
    "TRL 1.16, forward + backward": backward_of(trl_logprobs),
    "`linear_token_scores`, forward + backward": backward_of(our_logprobs),
    "TRL 1.16, forward + backward, frozen head": backward_of(trl_logprobs, head_trained=False),
    "`linear_token_scores`, forward + backward, frozen head": backward_of(our_logprobs, head_trained=False),
}


def extra_mebibytes(name: str, dtype: torch.dtype) -> float:
    """How much one call adds to the peak memory of a process that has the inputs already."""
    command = [sys.executable, "-m", "tests.benchmarks.linear_head", name, str(dtype).removeprefix("torch.")]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def _measure_own_peak(name: str, dtype: torch.dtype) -> float:
    torch.set_num_threads(1)
    head = inputs(dtype)
    return peak_extra_mebibytes(lambda: CANDIDATES[name](*head))


def measure(rounds: int = 3) -> list[str]:
    """Rows of a Markdown table."""
    torch.set_num_threads(1)
    columns = [_column(dtype, rounds) for dtype in DTYPES]
    titles = [f"{str(dtype).removeprefix('torch.')} | extra memory" for dtype in DTYPES]
    rows = [f"| | {' | '.join(titles)} |", "|---" * (1 + 2 * len(DTYPES)) + "|"]
    return rows + [f"| {name} | {' | '.join(column[name] for column in columns)} |" for name in CANDIDATES]


def _column(dtype: torch.dtype, rounds: int) -> dict[str, str]:
    head = inputs(dtype)
    seconds = median_seconds({name: functools.partial(run, *head) for name, run in CANDIDATES.items()}, rounds)
    bare = seconds["bare tiled product"]
    return {
        name: f"{f'{bare:.2f} s' if run is bare_product else f'{seconds[name] / bare:.2f} ×'} | "
        f"{extra_mebibytes(name, dtype):.1f} MiB"
        for name, run in CANDIDATES.items()
    }


if __name__ == "__main__":
    print(_measure_own_peak(sys.argv[1], getattr(torch, sys.argv[2])))
