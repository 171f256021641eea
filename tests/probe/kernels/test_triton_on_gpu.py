"""The Triton kernels on a CUDA or ROCm device: `TRITON_INTERPRET=0 pytest -m gpu`. Left out where
there is none."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from isentrope.kernels import triton_backend
from isentrope.kernels.dispatch import backend_for
from isentrope.kernels.moments import Upstream, finish, merge
from isentrope.scores import token_scores
from tests.probe.kernels import numerics
from tests.probe.kernels.numerics import Case
from tests.probe.scores.reference64 import scores64

pytestmark = pytest.mark.gpu
TOLERANCE = 1e-6
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.fixture(autouse=True)
def compiled() -> None:
    assert torch.cuda.is_available(), (
        "These tests need a CUDA or ROCm device, and a torch built for it."
    )
    assert not triton_backend.interpreted(), (
        "Run them with TRITON_INTERPRET=0: the kernels were to be compiled."
    )


@pytest.fixture
def no_wait_for_the_device() -> Iterator[None]:
    torch.cuda.set_sync_debug_mode("error")
    yield
    torch.cuda.set_sync_debug_mode("default")


def on_device(tensor: Tensor, device: str = "cuda") -> Tensor:
    """The same view of memory that lies on the device."""
    memory = torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage())
    return memory.to(device).as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def errors_of(case: Case, device: str = "cuda") -> dict[str, float]:
    logits, token_ids = on_device(case.logits, device), case.token_ids.to(device)
    temperature = (
        case.temperature.to(device) if isinstance(case.temperature, Tensor) else case.temperature
    )
    return numerics.errors_of(
        triton_backend.row_scores(logits, token_ids, temperature, squared=True), case
    )


def test_device_tensors_go_to_triton() -> None:
    assert backend_for(torch.zeros(2, 8, device="cuda")) is triton_backend


@pytest.mark.parametrize("vocabulary", [2, 3, 97, 4099, 50257, 151_936])
def test_scores_equal_float64(vocabulary: int) -> None:
    errors = {
        (case.name, field): error
        for case in numerics.cases(vocabulary)
        if triton_backend.supports(on_device(case.logits)) and case.token_ids.numel() > 0
        for field, error in errors_of(case).items()
    }
    assert len(errors) > 80
    assert numerics.too_large(errors, TOLERANCE) == {}


def test_devices_score_their_own_tensors() -> None:
    """Triton launches on the current device, which is not the tensor's."""
    (case,) = (case for case in numerics.cases(4099) if case.name == "N(0, 9)")
    for index in range(torch.cuda.device_count()):
        assert max(errors_of(case, f"cuda:{index}").values()) <= TOLERANCE


@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
def test_only_broken_rows_are_nan(broken: float) -> None:
    logits = numerics.normal_logits(50257, 3, 3.0)
    logits[1, 7 if broken != -math.inf else slice(None)] = broken
    token_ids = torch.zeros(3, dtype=torch.int64, device="cuda")
    rows = triton_backend.row_scores(logits.cuda(), token_ids, 1.0, squared=True)
    assert [numbers.isnan().tolist() for numbers in numerics.numbers_of(rows)] == [
        [False, True, False]
    ] * 6


@pytest.mark.parametrize("dtype", DTYPES)
def test_slices_merge_into_whole_row(dtype: torch.dtype) -> None:
    logits = numerics.normal_logits(50257, 4, 3.0).to(dtype)
    token_ids = numerics.drawn(logits)
    slices = [
        triton_backend.row_moments(
            logits.cuda()[:, first:last], token_ids.cuda(), 0.8, start=first, squared=True
        )
        for first, last in ((0, 1), (1, 30001), (30001, 50257))
    ]
    exact, rows = scores64(logits, token_ids, 0.8), finish(merge(slices))
    for field in numerics.FIELDS:
        torch.testing.assert_close(getattr(rows, field).cpu(), exact[field], rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("offset", [0.0, 1e4])
@pytest.mark.parametrize("vocabulary", [97, 4096, 50257])
def test_gradients_equal_float64_autograd(
    vocabulary: int, offset: float, dtype: torch.dtype
) -> None:
    logits = (
        (numerics.normal_logits(vocabulary, 12, 3.0) + offset)
        .reshape(3, 4, vocabulary)
        .to(dtype)[:, :-1]
    )
    case = Case("view", logits, numerics.drawn(logits), 0.7)
    g, h = torch.randn(2, 3, 3, generator=torch.Generator().manual_seed(3))
    leaf = on_device(logits).requires_grad_()
    scores = token_scores(leaf, case.token_ids.cuda(), 0.7, entropy_gradient=True)
    objective = (scores.logprobs * g.cuda()).sum() + (scores.entropies * h.cuda()).sum()
    (gradient,) = torch.autograd.grad(objective, leaf)
    assert numerics.gradient_excess(gradient, numerics.exact_gradient(case, g, h), TOLERANCE) <= 1


def test_rows_beyond_32_bits_work() -> None:
    rows, vocabulary = 16_400, 131_072
    assert rows * vocabulary > 2**31
    logits = torch.zeros(rows, vocabulary, dtype=torch.bfloat16, device="cuda")
    last = numerics.normal_logits(vocabulary, 1, 3.0)[0].bfloat16()
    logits[-1] = last.cuda()
    token_ids = torch.full((rows,), 77, device="cuda")
    scores = triton_backend.row_scores(logits, token_ids, 1.0)
    exact = scores64(last, torch.tensor(77))
    assert scores.entropies[0].item() == pytest.approx(math.log(vocabulary), abs=TOLERANCE)
    assert scores.entropies[-1].item() == pytest.approx(exact["entropies"].item(), abs=TOLERANCE)
    upstream = Upstream(
        token_ids, scores.log_normalizer, None, torch.ones(rows, device="cuda"), None
    )
    gradient = triton_backend.logit_gradient(logits, upstream, 1.0)
    assert gradient[-1, 77].item() == pytest.approx(1 - exact["logprobs"].exp().item(), rel=2**-7)


def test_scoring_never_waits_for_device(no_wait_for_the_device: None) -> None:
    logits = torch.randn(8, 4099, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    token_ids = torch.zeros(8, dtype=torch.int64, device="cuda")
    token_scores(logits, token_ids).logprobs.sum().backward()
    assert logits.grad is not None


def test_scoring_takes_little_memory() -> None:
    logits = torch.randn(512, 151_936, device="cuda", dtype=torch.bfloat16)
    token_ids = torch.zeros(512, dtype=torch.int64, device="cuda")
    token_scores(logits, token_ids)
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    scores = token_scores(logits, token_ids)
    assert torch.cuda.max_memory_allocated() - before < 2**20
    assert scores.entropies.isfinite().all()
