"""The Triton kernels, interpreted on the CPU: against float64, and where their blocks and splits
meet."""

from __future__ import annotations

import importlib.util
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from isentrope.kernels import triton_backend
from tests.probe.kernels import numerics
from tests.probe.kernels.numerics import Case

ROOT = Path(__file__).parents[3]
TOLERANCE = 1e-6
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> int:
    """Blocks of 128 logits, so that a small row has many, and is split over four programs."""
    monkeypatch.setattr(triton_backend, "GROUPS", 2)
    monkeypatch.setattr(triton_backend, "threads_of", lambda warp_size: warp_size // 4)
    monkeypatch.setattr(triton_backend, "GRADIENT_BLOCK", 128)
    return 128


def errors_of(case: Case) -> dict[str, float]:
    """Of `row_scores`, the pass in two launches, against float64."""
    rows = triton_backend.row_scores(case.logits, case.token_ids, case.temperature, squared=True)
    return numerics.errors_of(rows, case)


@pytest.mark.parametrize("vocabulary", [515, pytest.param(2055, marks=pytest.mark.slow)])
def test_scores_equal_float64_over_many_blocks(vocabulary: int, small_blocks: int) -> None:
    """515: four blocks and a bit in one program. 2055: four splits of four blocks and a bit."""
    splits = triton_backend.splits_of(2, vocabulary, small_blocks, 1)
    assert splits == (1 if vocabulary < 16 * small_blocks else 4)
    errors = {
        (case.name, field): error
        for case in numerics.cases(vocabulary, rows=2)
        if triton_backend.supports(case.logits) and case.token_ids.numel() > 0
        for field, error in errors_of(case).items()
    }
    assert len(errors) > 80
    assert numerics.too_large(errors, TOLERANCE) == {}


def test_two_launches_equal_merged_moments(small_blocks: int) -> None:
    case = numerics.cases(2055, rows=2)[0]
    in_two = triton_backend.row_scores(case.logits, case.token_ids, case.temperature, squared=True)
    merged = numerics.numbers_of(numerics.scored(triton_backend, case))
    for got, expected in zip(numerics.numbers_of(in_two), merged, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("vocabulary", [2, 151_936])
def test_real_blocks_equal_float64(vocabulary: int) -> None:
    logits = numerics.normal_logits(vocabulary, 1, 3.0).bfloat16()
    assert max(errors_of(Case("real", logits, numerics.drawn(logits))).values()) <= TOLERANCE


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_begin_at_any_element(dtype: torch.dtype, small_blocks: int) -> None:
    """17 rows of 263 logits begin at every place within an aligned piece, and end at every byte of
    32 bits."""
    logits = numerics.normal_logits(264, 17, 3.0).to(dtype)[:, 1:]
    case = Case("views", logits, torch.arange(17) * 16 + 6)
    assert max(errors_of(case).values()) <= TOLERANCE


@pytest.mark.parametrize("dtype", DTYPES)
def test_memory_beside_rows_never_counts(dtype: torch.dtype, small_blocks: int) -> None:
    memory = torch.full((4, 300), math.nan, dtype=dtype)
    logits = memory[:, 7:270]
    logits.copy_(numerics.normal_logits(263, 4, 3.0))
    assert max(errors_of(Case("island", logits, logits.argmax(-1))).values()) <= TOLERANCE


def test_new_maximum_moves_all_sums(small_blocks: int) -> None:
    """A block's maximum is the row's so far, block after block; and the first is so low that its
    sums must vanish."""
    logits = torch.linspace(-40, 40, 1030).repeat(2, 1)
    logits[1, :128] = torch.finfo(torch.float32).min
    assert max(errors_of(Case("rising", logits, torch.tensor([1029, 200]))).values()) <= TOLERANCE


@pytest.mark.parametrize("broken", [math.nan, math.inf, "all masked"])
def test_only_broken_rows_are_nan(broken: float | str, small_blocks: int) -> None:
    logits = numerics.normal_logits(2055, 5, 3.0)
    for row, column in enumerate((0, 700, 2054), start=1):
        if isinstance(broken, str):
            logits[row] = -math.inf
        else:
            logits[row, column] = broken
    rows = triton_backend.row_scores(logits, torch.full((5,), 5), 1.0, squared=True)
    spoilt = [numbers.isnan().tolist() for numbers in numerics.numbers_of(rows)]
    assert spoilt == [[False, True, True, True, False]] * 6


def test_token_outside_vocabulary_is_impossible() -> None:
    rows = triton_backend.row_scores(torch.zeros(2, 9), torch.tensor([-1, 9]), 1.0)
    assert rows.logprobs.tolist() == [-math.inf] * 2
    assert rows.discriminator_scores.tolist() == [0.0] * 2


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_gradients_equal_autograd_over_blocks(
    dtype: torch.dtype, offset: float, small_blocks: int
) -> None:
    logits = (numerics.normal_logits(301, 6, 3.0) + offset).reshape(2, 3, 301).to(dtype)[:, :-1]
    case = Case("blocks", logits, torch.tensor([[0, 127], [128, 300]]), 0.7)
    g, h = torch.tensor([[1.0, -0.5], [0.0, 2.0]]), torch.tensor([[0.3, 0.0], [-1.0, 1.0]])
    for upstream in ((g, None), (None, h), (g, h)):
        gradient = numerics.gradient_by(triton_backend, case, *upstream)
        exact = numerics.exact_gradient(case, *upstream)
        assert (gradient.dtype, gradient.shape) == (dtype, logits.shape)
        assert numerics.gradient_excess(gradient, exact, TOLERANCE) <= 1


@pytest.mark.parametrize(
    ("view", "expected"),
    [
        (torch.empty(7, 5), (7, 0, 0, 5)),
        (torch.empty(5), (1, 0, 0, 0)),
        (torch.empty(3, 4, 5)[1:, :-1], (3, 20, 20, 5)),
        (torch.empty(3, 4, 5), (12, 0, 0, 5)),
        (torch.empty(3, 1, 5).expand(3, 4, 5), (4, 0, 5, 0)),
        (torch.empty(2, 3, 4, 5)[:, :, 1:], (3, 5, 20, 5)),
        (torch.empty(2, 3, 4, 5)[:, 1:, 1:], None),
    ],
)
def test_two_strides_reach_every_row(view: Tensor, expected: tuple[int, ...] | None) -> None:
    layout = triton_backend.row_layout(view)
    assert layout == expected
    if layout is not None:
        starts = [
            layout.offset_storage
            + row // layout.inner_rows * layout.outer_stride
            + row % layout.inner_rows * layout.inner_stride
            for row in range(view.numel() // 5)
        ]
        memory = torch.arange(view.untyped_storage().nbytes() // 4)
        assert (
            starts
            == memory.as_strided(view.shape, view.stride(), view.storage_offset())[..., 0]
            .flatten()
            .tolist()
        )


def test_rows_split_until_device_is_full() -> None:
    processors, vocabulary = 132, 151_936
    splits = {
        rows: triton_backend.splits_of(rows, vocabulary, 4096, processors)
        for rows in (0, 1, 100, 1024, 8192)
    }
    assert splits == {0: 1, 1: 8, 100: 8, 1024: 4, 8192: 1}
    assert triton_backend.splits_of(1, 4096, 4096, processors) == 1


def test_missing_triton_is_only_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    spec = importlib.util.spec_from_file_location(
        "triton_backend_without_triton", triton_backend.__file__
    )
    assert spec is not None
    assert spec.loader is not None
    fresh = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(fresh)
    assert "triton" in fresh.unavailable_because().lower()
    assert not fresh.supports(torch.zeros(2, 8))


@pytest.mark.slow
def test_missing_device_names_the_interpreter() -> None:
    code = (
        "import torch; torch.cuda.is_available = torch.xpu.is_available = lambda: False\n"
        "from isentrope.kernels import triton_backend; print(triton_backend.unavailable_because())"
    )
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    ran = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, env=environment
    )
    assert "no CUDA, ROCm or XPU device" in ran.stdout
    assert "TRITON_INTERPRET=1" in ran.stdout
