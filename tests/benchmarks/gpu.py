"""The kernels, the head and a step on a CUDA device: `python -m tests.benchmarks.gpu [logits]
[head] [step]`, all without arguments. Not part of `make bench`. A TRL step there is `python -m
tests.benchmarks trl_step`.

Times are medians over rounds in which the candidates take turns, of device events around several
calls, so that the device never waits for what launches them. Peers that can't be imported are left
out."""

# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False,
# disallow-untyped-decorators=False

from __future__ import annotations

import importlib
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
import triton
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from triton.testing import get_dram_gbps

import isentrope
from isentrope.kernels import triton_backend
from isentrope.scores import token_scores
from isentrope.scores.linear_token_scores import linear_token_scores
from isentrope.transport.transport import InMemoryTransport

TOKENS, VOCABULARY = 8192, 151936
"""Of the head."""
SHAPES = [
    (tokens, vocabulary, dtype)
    for dtype in (torch.bfloat16, torch.float32)
    for tokens, vocabulary in (
        (8192, 151936),
        (1024, 32768),
        (65536, 32768),
        (8192, 128256),
        (1024, 151936),
        (8192, 262144),
    )
]
WIDTHS = (2048, 4096, 8192)
ROUNDS, CALLS = 7, 6
Candidates = Mapping[str, Callable[[], object]]


def milliseconds(candidates: Candidates, calls: int = CALLS) -> dict[str, float]:
    """Device time of a call of each candidate; two unmeasured rounds first."""
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for turn in range(ROUNDS + 2):
        for name, run in candidates.items():
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            for _ in range(calls):
                run()
            end.record()
            end.synchronize()
            if turn >= 2:
                times[name].append(begin.elapsed_time(end) / calls)
    return {name: statistics.median(values) for name, values in times.items()}


def peak_extra_mebibytes(run: Callable[[], object]) -> float:
    """What a call needs on the device on top of what it was given; its result counts."""
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    run()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def peer(module: str, name: str) -> Any:
    """A function of another package; None where it can't be imported."""
    try:
        return getattr(importlib.import_module(module), name)
    except ImportError:
        return None


@torch.compile
def compiled_scores(logits: Tensor, token_ids: Tensor) -> tuple[Tensor, Tensor]:
    """Log-prob and entropy as torch.compile fuses them."""
    logprobs = logits.float().log_softmax(-1)
    return logprobs.gather(1, token_ids.unsqueeze(1)), -(logprobs.exp() * logprobs).sum(-1)


def forward_candidates(
    logits: Tensor, token_ids: Tensor, peers: bool
) -> dict[str, Callable[[], object]]:
    """In brackets how many quantities come out."""
    ours: dict[str, Callable[[], object]] = {
        "torch.sum": logits.sum,
        "ours, kernels alone (5)": lambda: triton_backend.row_scores(logits, token_ids, 1.0),
        "ours, token_scores (5)": lambda: token_scores(logits, token_ids),
    }
    if not peers:
        return ours
    trl = peer("trl.kernels", "selective_log_softmax_and_entropy")
    liger = peer("liger_kernel.ops.grpo_loss", "fused_selective_log_softmax")
    verl_logprobs = peer("verl.utils.torch_functional", "logprobs_from_logits")
    verl_entropy = peer("verl.utils.torch_functional", "entropy_from_logits")
    rows, ids = logits.unsqueeze(0), token_ids.unsqueeze(0)
    theirs: dict[str, Callable[[], object]] = {
        "torch.logsumexp (1)": lambda: logits.logsumexp(-1),
        "torch.compile (2)": lambda: compiled_scores(logits, token_ids),
    }
    if trl:
        theirs["TRL, fused (2)"] = lambda: trl(logits, token_ids)
    if liger:
        theirs["Liger, fused (1)"] = lambda: liger(rows, ids[:, 1:], 1.0)
    if verl_logprobs:
        theirs["verl (2)"] = lambda: (verl_logprobs(logits, token_ids), verl_entropy(logits))
    return ours | theirs


def backward_candidates(logits: Tensor, token_ids: Tensor) -> dict[str, Callable[[], object]]:
    """Of the log-probs, with the forward pass; `clone` is the least that a gradient takes."""
    upstream = torch.ones(len(token_ids), device=logits.device)
    leaf = logits.detach().requires_grad_()
    trl = peer("trl.kernels", "selective_log_softmax_and_entropy")

    def of(score: Callable[[], Tensor]) -> Callable[[], object]:
        return lambda: torch.autograd.grad(score(), leaf, upstream)

    candidates: dict[str, Callable[[], object]] = {"clone": logits.clone}
    candidates["ours"] = of(lambda: token_scores(leaf, token_ids).logprobs)
    if trl:
        candidates["TRL, fused"] = of(lambda: trl(leaf, token_ids)[0])
    return candidates


def rows_of(
    title: str, candidates: Candidates, moved_bytes: int = 0, calls: int = CALLS
) -> list[str]:
    """One line of a Markdown table for every candidate; the first is what the others are measured
    by."""
    times = milliseconds(candidates, calls)
    least = next(iter(times.values()))
    peak = get_dram_gbps() * 1e6  # bytes a millisecond
    return [
        f"| {title} | {name} | {time:.3f} | {time / least:.2f} × |"
        f" {f'{moved_bytes / time / peak:.1%}' if moved_bytes else '-'} |"
        f" {peak_extra_mebibytes(candidates[name]):.1f} |"
        for name, time in times.items()
    ]


def logits_lines() -> Iterator[str]:
    yield from (
        "| what | by | ms | × the first | of peak bandwidth | MiB on top |",
        "|---|---|---|---|---|---|",
    )
    generator = torch.Generator("cuda").manual_seed(0)
    for tokens, vocabulary, dtype in SHAPES:
        logits = torch.empty(tokens, vocabulary, dtype=dtype, device="cuda").normal_(
            0, 3, generator=generator
        )
        token_ids = torch.randint(0, vocabulary, (tokens,), device="cuda", generator=generator)
        shape = f"{tokens} × {vocabulary} {str(dtype).removeprefix('torch.')}"
        with torch.no_grad():
            candidates = forward_candidates(
                logits, token_ids, (tokens, vocabulary, dtype) == SHAPES[0]
            )
            yield from rows_of(f"{shape}, forward", candidates, logits.nbytes)
        if (tokens, vocabulary) == SHAPES[0][:2]:
            candidates = backward_candidates(logits, token_ids)
            yield from rows_of(f"{shape}, with backward", candidates, 3 * logits.nbytes, 3)
        del logits, token_ids, candidates
        torch.cuda.empty_cache()


@torch.no_grad()
def bare_product(hidden: Tensor, weight: Tensor) -> None:
    """Every logit computed once, 8192 of the vocabulary at a time, and nothing done with it."""
    buffer = hidden.new_empty(len(hidden) * 8192)
    for part in weight.split(8192):
        torch.mm(hidden, part.T, out=buffer[: len(hidden) * len(part)].view(len(hidden), len(part)))


def head_lines(width: int) -> Iterator[str]:
    hidden = torch.randn(TOKENS, width, device="cuda", dtype=torch.bfloat16)
    weight = torch.randn(VOCABULARY, width, device="cuda", dtype=torch.bfloat16) / math.sqrt(width)
    token_ids = torch.randint(0, VOCABULARY, (TOKENS,), device="cuda")
    # TRL's function, with the chunk that its trainers pass; verl's kernel; Liger's whole loss.
    trl = peer("trl.kernels.chunked_logprob", "ChunkedLogProbFunction")
    verl = peer("verl.utils.kernel.linear_cross_entropy", "linear_cross_entropy")
    liger = peer("liger_kernel.chunked_loss", "LigerFusedLinearGRPOLoss")
    outputs = ("log_probs", "entropy")
    scores: dict[str, Callable[[Tensor, Tensor], tuple[Tensor, ...]]] = {
        "ours, linear_token_scores (5)": lambda h, w: (
            linear_token_scores(h, w, token_ids).logprobs,
        )
    }
    if trl:
        scores["TRL, chunked (2)"] = lambda h, w: trl.apply(
            h, w, None, token_ids, 1.0, 32768, None, 1.0, outputs
        )[:1]
    if verl:
        scores["verl, fused (2)"] = lambda h, w: verl(h, w, token_ids, 1.0, "none")
    title = f"{TOKENS} × {width} × {VOCABULARY} bfloat16"
    bare: dict[str, Callable[[], object]] = {"bare product": lambda: bare_product(hidden, weight)}
    with torch.no_grad():
        forward = bare | {name: partial(score, hidden, weight) for name, score in scores.items()}
        yield from rows_of(f"{title}, forward", forward, calls=2)
    leaves = hidden.requires_grad_(), weight.requires_grad_()

    def gradients(score: Callable[[Tensor, Tensor], tuple[Tensor, ...]]) -> object:
        results = score(*leaves)
        return torch.autograd.grad(
            results, leaves, [torch.ones_like(results[0]), *map(torch.zeros_like, results[1:])]
        )

    both: dict[str, Callable[[], object]] = {
        name: partial(gradients, score) for name, score in scores.items()
    }
    if liger and width == WIDTHS[0]:
        loss = liger(beta=0.0, use_ref_model=False)
        mask, advantages = torch.ones(8, TOKENS // 8, device="cuda"), torch.randn(8, device="cuda")
        shape = (8, TOKENS // 8)
        both["Liger, GRPO loss"] = lambda: torch.autograd.grad(
            loss(leaves[0].view(*shape, width), leaves[1], token_ids.view(shape), mask, advantages)[
                0
            ],
            leaves,
        )
    yield from rows_of(f"{title}, with backward", bare | both, calls=1)


def step_lines() -> Iterator[str]:
    """What a step costs the host, launches included, and the device: 64 sequences of 512 tokens,
    scored again afterwards."""
    yield from (
        "| control | score | gate | step | kernels and copies | device | waits |",
        "|---|---|---|---|---|---|---|",
    )
    controls = {
        "none": None,
        "clip_v": isentrope.Control(method="clip_v", mu_low=1.0, mu_high=1.0),
        "clip_cov": isentrope.Control(method="clip_cov", parameters={"ratio": 0.01}),
    }
    logits = torch.randn(64, 512, 4096, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    token_ids, advantages = (
        torch.randint(0, 4096, (64, 512), device="cuda"),
        torch.randn(64, device="cuda"),
    )
    for name, control in controls.items():
        probe = isentrope.Probe(
            "benchmark", transport=InMemoryTransport(keep_messages=False), control=control
        )
        seconds: dict[str, list[float]] = {"score": [], "gate": [], "step": []}

        def timed(
            part: str, run: Callable[[], Any], seconds: dict[str, list[float]] = seconds
        ) -> Any:
            started = time.perf_counter()
            result = run()
            seconds[part].append(time.perf_counter() - started)
            return result

        def one(step: int, probe: isentrope.Probe = probe, timed: Any = timed) -> None:
            scores = timed("score", lambda: probe.score(logits, token_ids))
            old = scores.logprobs.detach() + 0.01
            timed(
                "gate", lambda: probe.gate(scores, advantages, old_logprobs=old, groups=8)
            ).sum().backward()
            logits.grad = None
            timed("step", lambda: probe.step(step, None, lambda: token_scores(logits, token_ids)))
            torch.cuda.synchronize()

        for step in range(40):
            one(step)
        host = " | ".join(
            f"{statistics.median(values[10:]) * 1e3:.2f} ms" for values in seconds.values()
        )
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as trace:
            for step in range(40, 43):
                one(step)
        events = [event for event in trace.events() if event.device_type.name == "CUDA"]
        device = sum(event.device_time_total for event in events) / 3e3
        waits = [
            event.name
            for event in trace.events()
            if event.name in ("cudaStreamSynchronize", "cudaMemcpy")
        ]
        yield f"| {name} | {host} | {len(events) // 3} | {device:.2f} ms | {len(waits)} |"
        probe.finish()


def heads_lines() -> Iterator[str]:
    yield from ("| what | by | ms | × the first | - | MiB on top |", "|---|---|---|---|---|---|")
    for width in WIDTHS:
        yield from head_lines(width)


PARTS = {"logits": logits_lines, "head": heads_lines, "step": step_lines}

if __name__ == "__main__":
    print(f"torch {torch.__version__}, Triton {triton.__version__}, {torch.cuda.get_device_name()}")
    for part in sys.argv[1:] or PARTS:
        print()
        for line in PARTS[part]():
            print(line, flush=True)
