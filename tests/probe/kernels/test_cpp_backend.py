"""What the C++ kernels read in place, how they use threads, and what a forked child gets."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from isentrope.kernels import cpp_backend
from isentrope.kernels.moments import Upstream, finish
from tests.probe.kernels import numerics


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def moments_of(logits: Tensor) -> Tensor:
    ids = torch.zeros(logits.shape[:-1], dtype=torch.int64)
    return torch.stack(numerics.numbers_of(cpp_backend.row_moments(logits, ids, 0.9, squared=True)))


@pytest.mark.usefixtures("threads")
def test_scores_are_equal_for_any_threads() -> None:
    logits = numerics.normal_logits(50257, 12, 3.0)
    token_ids = numerics.drawn(logits)
    log_normalizer = finish(cpp_backend.row_moments(logits, token_ids, 1.0)).log_normalizer
    results = []
    for count in (1, 2, 5):
        torch.set_num_threads(count)
        upstream = Upstream(token_ids, log_normalizer, None, torch.ones(12), None)
        gradient = cpp_backend.logit_gradient(logits, upstream, 1.0)
        results.append((moments_of(logits), gradient))
    for moments, gradient in results[1:]:
        assert torch.equal(moments, results[0][0])
        assert torch.equal(gradient, results[0][1])


def test_rows_use_torch_s_threads() -> None:
    """The OpenMP runtime that torch has loaded is found: two pools would fight for the cores."""
    assert cpp_backend._loaded().team is not None


def test_forked_child_scores_alone() -> None:
    code = """if True:
        import os, torch
        from isentrope.kernels import cpp_backend
        torch.set_num_threads(2)
        logits, token_ids = torch.randn(64, 20000), torch.zeros(64, dtype=torch.int64)
        before = torch.stack(cpp_backend.row_moments(logits, token_ids, 1.0)[:6])
        child = os.fork()
        if child == 0:
            after = torch.stack(cpp_backend.row_moments(logits, token_ids, 1.0)[:6])
            same = after.numpy() == before.numpy()
            os._exit(0 if same.all() else 3)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """
    ran = subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=120
    )
    assert ran.stdout == "0\n", ran.stderr


def test_views_are_read_in_place() -> None:
    logits = numerics.normal_logits(300, 24, 3.0).reshape(2, 3, 4, 300)
    for view in (
        logits[:, :, :-1],
        logits[::2, 1:],
        logits.permute(2, 0, 1, 3),
        logits[..., 7:-9],
        logits[:, :1].expand(2, 5, 4, 300),
    ):
        assert cpp_backend.supports(view)
        assert torch.equal(moments_of(view), moments_of(view.contiguous()))


def test_token_ids_may_be_any_integers() -> None:
    logits = numerics.normal_logits(50, 12, 3.0).reshape(3, 4, 50)
    token_ids = numerics.drawn(logits)
    exact = cpp_backend.row_moments(logits, token_ids, 1.0).chosen_shifted
    turned = token_ids.T.contiguous().T
    for ids in (turned, token_ids.int(), token_ids.to(torch.uint8)):
        assert torch.equal(cpp_backend.row_moments(logits, ids, 1.0).chosen_shifted, exact)


def test_upstream_gradients_may_have_any_type() -> None:
    logits = numerics.normal_logits(50, 12, 3.0).reshape(3, 4, 50)
    token_ids = numerics.drawn(logits)
    rows = finish(cpp_backend.row_moments(logits, token_ids, 1.0))
    upstream = torch.arange(12.0).reshape(3, 4)
    gradients = [
        cpp_backend.logit_gradient(
            logits, Upstream(token_ids, rows.log_normalizer, rows.entropies, g, g), 1.0
        )
        for g in (
            upstream,
            upstream.T.contiguous().T,
            upstream.reshape(-1).half(),
            upstream.clone().requires_grad_(),
        )
    ]
    assert all(torch.equal(gradient, gradients[0]) for gradient in gradients)
    assert not any(gradient.requires_grad for gradient in gradients)


def test_gradients_halfway_round_to_even() -> None:
    for dtype, half in ((torch.bfloat16, 2**-8), (torch.float16, 2**-11)):
        case = numerics.Case(
            "ties", torch.zeros(2, 2, dtype=dtype), torch.zeros(2, dtype=torch.int64)
        )
        gradient = numerics.gradient_by(
            cpp_backend, case, 2 * torch.tensor([1 + half, 1 + 3 * half]), None
        )
        assert gradient[:, 0].tolist() == [1.0, 1 + 4 * half]


def test_temperature_is_not_rounded() -> None:
    """One token against all others together: what rounding T to float32 would change grows with the
    distance."""
    temperature = 1.49  # the float32 next to T log 2 / 32 is off by 5e-8 of it
    logits = numerics.normal_logits(151936, 1, 0.5)
    logits[0, 0] = (logits / temperature).logsumexp(-1).item() * temperature
    case = numerics.Case("T", logits, torch.tensor([0]), temperature)
    assert numerics.errors_of(numerics.scored(cpp_backend, case), case)["logprobs"] <= 3e-7


def test_unbounded_gradient_stays_nan_or_infinite() -> None:
    # A NaN whose payload is all ones, which rounding up would turn into zero.
    full = torch.tensor([0x7FFFFFFF], dtype=torch.int32).view(torch.float32).item()
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        case = numerics.Case(
            "upstream", torch.zeros(3, 40, dtype=dtype), torch.zeros(3, dtype=torch.int64)
        )
        upstream = torch.tensor([full, math.inf, 1.0], dtype=torch.float64)
        gradient = numerics.gradient_by(cpp_backend, case, upstream, None)
        assert gradient[0].isnan().all()
        assert gradient[1, 1:].isneginf().all()
        assert gradient[2].isfinite().all()
