"""The Triton kernels on a device: `python -m tests.benchmarks.gpu`. Not part of `make bench`, and not run yet.

Logits [8192, 151936] and [1024, 50257]: time in multiples of a kernel that only reads them, the share of the device's
peak memory bandwidth that reading once in that time takes, and the memory a call needs on top of the logits. Then the
head, hidden [8192, 4096] against [151936, 4096], in multiples of the bare product in tiles. Times are medians of device
events, the candidates taking turns.
"""
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, disallow-untyped-decorators=False

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.testing import get_dram_gbps
from trl.kernels import selective_log_softmax_and_entropy
from trl.kernels.chunked_logprob import ChunkedLogProbFunction

from isentrope.kernels import triton_backend
from isentrope.scores import token_scores
from isentrope.scores.linear_token_scores import linear_token_scores

SHAPES = [
    (tokens, vocabulary, dtype)
    for tokens, vocabulary in ((8192, 151936), (1024, 50257))
    for dtype in (torch.bfloat16, torch.float32)
]
HEAD_TOKENS, HEAD_WIDTH, HEAD_VOCABULARY = 8192, 4096, 151936
ROUNDS = 20
READ_BLOCK = 8192


@triton.jit
def read_kernel(values_ptr, sums_ptr, elements, BLOCK: tl.constexpr):
    """The sum of 8 blocks of a tensor that is read as one row: as little as can be done with what is read."""
    offset_first = tl.program_id(0).to(tl.int64) * 8 * BLOCK
    total = tl.zeros([BLOCK], tl.float32)
    for block in range(8):
        offset = offset_first + block * BLOCK + tl.arange(0, BLOCK)
        total += tl.load(values_ptr + offset, mask=offset < elements, other=0.0).to(tl.float32)
    tl.store(sums_ptr + tl.program_id(0), tl.sum(total, 0))


def only_read(logits: Tensor) -> Tensor:
    programs = triton.cdiv(logits.numel(), 8 * READ_BLOCK)
    sums = torch.empty(programs, device=logits.device)
    read_kernel[(programs,)](logits, sums, logits.numel(), BLOCK=READ_BLOCK, num_warps=8)
    return sums


def forward_candidates(logits: Tensor, token_ids: Tensor) -> dict[str, Callable[[], object]]:
    """In brackets how many quantities come out."""
    return {
        "only read": lambda: only_read(logits),
        "torch.logsumexp (1)": lambda: logits.logsumexp(-1),
        "TRL 1.16, fused (2)": lambda: selective_log_softmax_and_entropy(logits, token_ids),
        "ours, kernels alone (5)": lambda: triton_backend.row_scores(logits, token_ids, 1.0),
        "ours, token_scores (5)": lambda: token_scores(logits, token_ids),
    }


def backward_candidates(logits: Tensor, token_ids: Tensor) -> dict[str, Callable[[], object]]:
    """Of the log-probs, with the forward pass; `only copy` is the least that a gradient takes."""
    upstream = torch.ones(len(token_ids), device=logits.device)

    def ours() -> Tensor:
        leaf = logits.detach().requires_grad_()
        return torch.autograd.grad(token_scores(leaf, token_ids).logprobs, leaf, upstream)[0]

    def trl() -> Tensor:
        leaf = logits.detach().requires_grad_()
        return torch.autograd.grad(selective_log_softmax_and_entropy(leaf, token_ids)[0], leaf, upstream)[0]

    return {"only copy": logits.clone, "TRL 1.16, fused": trl, "ours": ours}


@torch.no_grad()
def bare_product(hidden: Tensor, weight: Tensor) -> None:
    """Every logit computed once, 4096 tokens of the vocabulary at a time, and nothing done with it."""
    buffer = hidden.new_empty(len(hidden) * 4096)
    for part in weight.split(4096):
        torch.mm(hidden, part.T, out=buffer[: len(hidden) * len(part)].view(len(hidden), len(part)))


def trl_logprobs(hidden: Tensor, weight: Tensor, token_ids: Tensor) -> Tensor:
    """Log-prob and entropy by TRL's chunked head, with the chunk that its trainers pass."""
    outputs = ("log_probs", "entropy")
    logprobs: Tensor = ChunkedLogProbFunction.apply(hidden, weight, None, token_ids, 1.0, 32768, None, 1.0, outputs)[0]
    return logprobs


def head_candidates(hidden: Tensor, weight: Tensor, token_ids: Tensor) -> dict[str, Callable[[], object]]:
    return {
        "bare tiled product": lambda: bare_product(hidden, weight),
        "TRL 1.16, chunked (2)": lambda: trl_logprobs(hidden, weight, token_ids),
        "ours, linear_token_scores (5)": lambda: linear_token_scores(hidden, weight, token_ids),
    }


def median_milliseconds(candidates: Mapping[str, Callable[[], object]]) -> dict[str, float]:
    """Device time of each candidate, the candidates taking turns; two unmeasured rounds first."""
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for turn in range(ROUNDS + 2):
        for name, run in candidates.items():
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            run()
            end.record()
            end.synchronize()
            if turn >= 2:
                times[name].append(begin.elapsed_time(end))
    return {name: statistics.median(values) for name, values in times.items()}


def peak_extra_mebibytes(run: Callable[[], object]) -> float:
    """What a call needs on the device on top of what it was given; its result counts."""
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    run()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def rows_of(title: str, candidates: Mapping[str, Callable[[], object]], read_bytes: int) -> list[str]:
    """One line of a Markdown table for every candidate; the first is what the others are measured by."""
    times = median_milliseconds(candidates)
    least = next(iter(times.values()))
    peak = get_dram_gbps() * 1e6  # bytes a millisecond
    return [
        f"| {title} | {name} | {time:.3f} | {time / least:.2f} × | {read_bytes / time / peak:.0%} | "
        f"{peak_extra_mebibytes(candidates[name]):.1f} |"
        for name, time in times.items()
    ]


def measure() -> list[str]:
    lines = [
        "| what | by | ms | × the first | of peak bandwidth, one read | MiB on top |",
        "|---|---|---|---|---|---|",
    ]
    generator = torch.Generator("cuda").manual_seed(0)
    for tokens, vocabulary, dtype in SHAPES:
        logits = torch.empty(tokens, vocabulary, dtype=dtype, device="cuda").normal_(0, 3, generator=generator)
        token_ids = torch.randint(0, vocabulary, (tokens,), device="cuda", generator=generator)
        shape = f"{tokens} × {vocabulary} {str(dtype).removeprefix('torch.')}"
        with torch.no_grad():
            lines += rows_of(f"{shape}, forward", forward_candidates(logits, token_ids), logits.nbytes)
        lines += rows_of(f"{shape}, with backward", backward_candidates(logits, token_ids), 3 * logits.nbytes)
        del logits
        torch.cuda.empty_cache()
    hidden = torch.randn(HEAD_TOKENS, HEAD_WIDTH, device="cuda", dtype=torch.bfloat16)
    weight = torch.randn(HEAD_VOCABULARY, HEAD_WIDTH, device="cuda", dtype=torch.bfloat16) * 0.02
    token_ids = torch.randint(0, HEAD_VOCABULARY, (HEAD_TOKENS,), device="cuda")
    with torch.no_grad():
        lines += rows_of("head, forward", head_candidates(hidden, weight, token_ids), weight.nbytes)
    return lines


if __name__ == "__main__":
    print(f"torch {torch.__version__}, Triton {triton.__version__}, {torch.cuda.get_device_name()}\n")
    print("\n".join(measure()))
